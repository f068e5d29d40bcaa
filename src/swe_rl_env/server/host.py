"""What all episodes of a server share: tasks, built once; the backend; and how many may run."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from drivetrain.sandboxes.protocol import Limits, SandboxBackend
from drivetrain.sandboxes.registry import get_backend
from drivetrain.sandboxes.sync import at_exit
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.building.prepare import prepare_task
from swe_rl_env.models import SWEAction, SWEObservation
from swe_rl_env.server.catalogue import Catalogue
from swe_rl_env.server.episode import CLOSING_S, Episode
from swe_rl_env.server.errors import EpisodeError, explained
from swe_rl_env.server.loop import LoopThread
from swe_rl_env.server.settings import Settings
from swe_rl_env.tasks.model import SweTask
from swe_rl_env.work.workspace import Workspace, open_workspace

T = TypeVar("T")


class Host:
    """Opens episodes. All their work is done on one event loop in a thread; see :meth:`run` and :meth:`arun`.

    Args:
        settings: limits and names.
        backend: a backend that no loop has used yet; by default the one that ``settings`` names. It is closed with
            the host.
        tasks: instead of those that ``settings`` names.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        backend: SandboxBackend | None = None,
        tasks: Sequence[SweTask] | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._backend = backend
        self.catalogue = Catalogue(self.settings, tasks)
        self._loop = LoopThread("swe-rl-env")
        self._built: dict[str, BuiltTask] = {}
        self._building: dict[str, asyncio.Lock] = {}
        self._live: dict[Episode, asyncio.TimerHandle | None] = {}
        self._opening = 0
        self.parked: dict[str, Episode] = {}
        """By id: episodes whose requests come one by one, and name it."""
        self._tasks_of_closing: set[asyncio.Task[None]] = set()
        self.closed = False
        at_exit(self.close)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run on the host's loop and wait."""
        self._refuse_if_closed()
        return self._loop.run(work)

    async def arun(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run on the host's loop, awaited from another."""
        self._refuse_if_closed()
        return await self._loop.arun(work)

    def close(self) -> None:
        """Close every sandbox, then the backend and the thread; idempotent. Blocks."""
        if self.closed:
            return
        self.closed = True
        if self._loop.started:
            try:
                self._loop.run(self._close)
            finally:
                self._loop.stop()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise EpisodeError("closed", "The server is ending.")

    async def _close(self) -> None:
        await self._loop.end_calls()
        if self._backend is not None:
            await self._backend.aclose()

    async def built(self, task: SweTask) -> BuiltTask:
        """The task made ready; once, however many ask at a time.

        Raises:
            EpisodeError: it cannot be built here.
        """
        name = task.instance_id
        async with self._building.setdefault(name, asyncio.Lock()):
            if name not in self._built:
                with explained(f"Task {name} could not be built"):
                    self._built[name] = await prepare_task(task, self.backend)
            return self._built[name]

    @property
    def backend(self) -> SandboxBackend:
        """The backend, made when it is first needed.

        Raises:
            ConfigError, MissingDependency: there is none of that name, or it lacks something.
        """
        if self._backend is None:
            self._backend = get_backend(self.settings.sandbox)
        return self._backend

    @property
    def live(self) -> int:
        """How many episodes hold a sandbox, or are about to."""
        return sum(not (episode.done or episode.closed) for episode in self._live) + self._opening

    async def open(self, built: BuiltTask, episode_id: str | None = None) -> Episode:
        """Start an episode.

        Raises:
            EpisodeError: no place is free, or the sandbox did not start.
        """
        if self.live >= self.settings.max_concurrent_envs:
            raise EpisodeError(
                "capacity_reached",
                f"{self.live} episodes run, and no more may.",
                fix="Close one, try later, or raise max_concurrent_envs.",
            )
        self._opening += 1
        try:
            with explained("The sandbox did not start"):
                workspace = await self._workspace(built)
            episode = Episode(episode_id or str(uuid.uuid4()), built, workspace, self.backend, self.settings)
            self._live[episode] = None
        finally:
            self._opening -= 1
        self._watch(episode)
        return episode

    async def step(self, episode: Episode, action: SWEAction, timeout_s: float | None = None) -> SWEObservation:
        """:meth:`Episode.step`, during which the episode is not idle."""
        with self._busy(episode):
            return await episode.step(action, timeout_s)

    async def finish(self, episode: Episode, status: Literal["ok", "truncated"]) -> SWEObservation:
        """:meth:`Episode.finish`, during which the episode is not idle."""
        with self._busy(episode):
            return await episode.finish(status)

    async def drop(self, episode: Episode) -> None:
        """Close an episode and forget it; idempotent."""
        self._unwatch(episode)
        self._live.pop(episode, None)
        if self.parked.get(episode.id) is episode:
            del self.parked[episode.id]
        await episode.close()

    async def _workspace(self, built: BuiltTask) -> Workspace:
        return await open_workspace(
            self.backend,
            built,
            image=self.settings.image,
            limits=Limits(ttl_s=self.settings.episode_timeout_s + CLOSING_S),
            labels={"role": "agent"},
        )

    @contextmanager
    def _busy(self, episode: Episode) -> Iterator[None]:
        """Nobody's episode is idle while something is done in it."""
        self._unwatch(episode)
        episode.users += 1
        try:
            yield
        finally:
            episode.users -= 1
            if not episode.users:
                self._watch(episode)

    def _watch(self, episode: Episode) -> None:
        if episode not in self._live:
            return

        def idle() -> None:
            closing = asyncio.ensure_future(self.drop(episode))
            self._tasks_of_closing.add(closing)
            closing.add_done_callback(self._tasks_of_closing.discard)

        self._unwatch(episode)
        loop = asyncio.get_running_loop()
        self._live[episode] = loop.call_later(self.settings.idle_timeout_s, idle)

    def _unwatch(self, episode: Episode) -> None:
        if (timer := self._live.get(episode)) is not None:
            timer.cancel()
            self._live[episode] = None
