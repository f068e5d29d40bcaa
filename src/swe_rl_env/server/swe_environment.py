"""``SWEEnvironment``: OpenEnv's ``Environment`` over one episode at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import cached_property
from typing import Any, TypeVar

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

import drivetrain
from swe_rl_env.models import SWEAction, SWEObservation, SWEState
from swe_rl_env.server.catalogue import ResetOptions
from swe_rl_env.server.episode import Episode
from swe_rl_env.server.errors import EpisodeError
from swe_rl_env.server.host import Host
from swe_rl_env.server.perform import Outcome
from swe_rl_env.server.toolbox import text_of
from swe_rl_env.server.transport import ONE_REQUEST
from swe_rl_env.tasks.model import SweTask
from swe_rl_env.tasks.select import split_of

T = TypeVar("T")


class SWEEnvironment(Environment):  # type: ignore[misc]  # openenv ships no types
    """One session: any number of episodes, one after the other.

    In a request that stands alone (HTTP ``/reset`` and ``/step``), the episode stays with the host under its
    ``episode_id``, which the next request names.

    Args:
        host: opens the episodes, and may be shared by any number of environments; None = one of this environment's
            own with default settings, closed with it.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, host: Host | None = None) -> None:
        super().__init__()
        self._own = host is None
        self._host = host or Host()
        self._episode: Episode | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    # -- Environment ---------------------------------------------------------------------------------------------

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **task: Any) -> SWEObservation:
        """Close the episode there is and begin another.

        Args:
            seed: chooses a task where none is named.
            episode_id: name of the episode; made up when None.
            task: see :class:`~swe_rl_env.server.catalogue.ResetOptions`.

        Raises:
            EpisodeError: see its codes.
        """
        options = ResetOptions.of(seed=seed, episode_id=episode_id, **task)
        alone = ONE_REQUEST.get()
        return await self._host.arun(lambda: self._reset(options, alone))

    def reset(self, seed: int | None = None, episode_id: str | None = None, **task: Any) -> SWEObservation:
        """:meth:`reset_async`, blocking."""
        options = ResetOptions.of(seed=seed, episode_id=episode_id, **task)
        return self._host.run(lambda: self._reset(options, False))

    async def step_async(
        self, action: SWEAction, timeout_s: float | None = None, episode_id: str | None = None
    ) -> SWEObservation:
        """Carry out an action.

        Args:
            timeout_s: of a command that asks for no time of its own, seconds.
            episode_id: only in a request that stands alone.

        Raises:
            EpisodeError: see its codes.
        """
        alone = ONE_REQUEST.get()
        return await self._host.arun(lambda: self._step(action, timeout_s, episode_id, alone))

    def step(self, action: SWEAction, timeout_s: float | None = None, **_: Any) -> SWEObservation:
        """:meth:`step_async`, blocking."""
        return self._host.run(lambda: self._step(action, timeout_s, None, False))

    @property
    def state(self) -> SWEState:
        """Where the episode stands; without one, nothing but zeros."""
        return self._episode.state() if self._episode is not None else SWEState()

    def get_metadata(self) -> EnvironmentMetadata:
        """Name, version, what it is."""
        return EnvironmentMetadata(
            name="swe_rl_env",
            description="Fix a real issue in a sandboxed checkout; hidden tests grade the work in a sealed sandbox.",
            version=drivetrain.__version__,
        )

    def close(self) -> None:
        """End what runs and close the sandbox; idempotent, from any thread."""
        self._closed = True
        if (self._episode is not None or self._running) and not self._host.closed:
            self._host.run(self._close)
        if self._own:
            self._host.close()

    # -- TaskProvider (openenv.core.env_server.interfaces) ----------------------------------------------------------

    async def list_splits(self) -> list[str]:
        """``all``, and those of train, validation and test that have tasks."""
        return await asyncio.to_thread(self._host.catalogue.splits)

    async def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The tasks of a split, without anything that grades."""
        return await self.get_task_range(split)

    async def num_tasks(self, split: str) -> int:
        """How many."""
        return len(await asyncio.to_thread(self._host.catalogue.split, split))

    async def get_task(self, split: str, index: int) -> dict[str, Any]:
        """One of them.

        Raises:
            IndexError: ``index`` is negative or past the end.
        """
        tasks = await asyncio.to_thread(self._host.catalogue.split, split)
        if not 0 <= index < len(tasks):
            raise IndexError(index)
        return _spec(tasks[index], index)

    async def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        """Some of them, as a Python slice."""
        tasks = await asyncio.to_thread(self._host.catalogue.split, split)
        return [_spec(tasks[index], index) for index in range(len(tasks))[start:stop]]

    # -- MCP -----------------------------------------------------------------------------------------------------

    @cached_property
    def mcp_client(self) -> Any:
        """Where OpenEnv's ``/mcp`` finds the tools."""
        from swe_rl_env.server.mcp import client_for

        return client_for(self._call)

    async def _call(self, action: SWEAction) -> str:
        observation = await self._host.arun(lambda: self._step(action, None, None, False))
        if observation.done:
            # The verdict is for whoever runs the episode, over /ws; the agent learns that it is over.
            return f"{observation.error}\nThe episode is over.".strip()
        names = Outcome.__struct_fields__
        return text_of(Outcome(**{name: getattr(observation, name) for name in names}))

    # -- on the host's loop ----------------------------------------------------------------------------------------

    async def _reset(self, options: ResetOptions, alone: bool) -> SWEObservation:
        return await self._cancellable(self._reset_now(options, alone))

    async def _reset_now(self, options: ResetOptions, alone: bool) -> SWEObservation:
        task = await asyncio.to_thread(self._host.catalogue.choose, options)
        old = self._host.parked.get(options.episode_id or "") if alone else self._episode
        if old is not None:
            await self._host.drop(old)
            self._episode = None
        episode = await self._host.open(await self._host.built(task), options.episode_id)
        if alone:
            self._host.parked[episode.id] = episode
        else:
            self._episode = episode
        return episode.first()

    async def _step(self, action: SWEAction, timeout_s: float | None, named: str | None, alone: bool) -> SWEObservation:
        return await self._cancellable(self._step_now(action, timeout_s, named, alone))

    async def _step_now(
        self, action: SWEAction, timeout_s: float | None, named: str | None, alone: bool
    ) -> SWEObservation:
        episode = self._host.parked.get(named or "") if alone else self._episode
        if episode is None and alone:
            what = f"There is no episode {named!r}, or none any more." if named else "The request names no episode."
            fix = 'POST /reset, and send "episode_id" of its metadata with every /step.'
            raise EpisodeError("no_episode", what, fix=fix)
        if episode is None:
            raise EpisodeError("no_episode", "There is no episode yet.", fix="Reset.")
        return await self._host.step(episode, action, timeout_s)

    async def _cancellable(self, work: Coroutine[Any, Any, T]) -> T:
        """Work that ends when this environment is closed."""
        task = asyncio.current_task()
        assert task is not None
        if self._closed:
            work.close()
            raise EpisodeError("closed", "This session was closed.")
        self._running.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            if self._closed or self._host.closed:
                raise EpisodeError("closed", "This session was closed.") from None
            raise
        finally:
            self._running.discard(task)

    async def _close(self) -> None:
        running = [task for task in self._running if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        if self._episode is not None:
            await self._host.drop(self._episode)


def _spec(task: SweTask, index: int) -> dict[str, Any]:
    return {
        "id": task.instance_id,
        "index": index,
        "repo": task.public.repo,
        "language": task.public.language,
        "difficulty": task.difficulty,
        "split": split_of(task),
    }
