"""A whole evaluation: every attempt that the folder does not have yet, several at a time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from drivetrain.cache import Progress
from drivetrain.errors import ConfigError, InfrastructureError
from drivetrain.evaluation.attempt import Attempter, Endpoint
from drivetrain.evaluation.config import EvalConfig
from drivetrain.evaluation.folder import Attempt, EvalFolder
from drivetrain.evaluation.forward import forwarding
from drivetrain.rollout.socket_folder import socket_folder
from drivetrain.sandboxes.protocol import SandboxBackend
from drivetrain.sandboxes.registry import get_backend
from swe_rl_agent.registry import get_agent
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.building.prepare import prepare_task
from swe_rl_env.tasks.model import SweTask

_HOPELESS = 8
"""Attempts in a row that end in an infrastructure failure before the evaluation stops: the endpoint is down, say."""


class EndpointHopeless(InfrastructureError):
    """So many attempts in a row failed for reasons that are not the model's that going on is pointless."""


async def evaluate(
    config: EvalConfig,
    tasks: Sequence[SweTask],
    folder: EvalFolder,
    *,
    n: int,
    api_key: str = "",
    concurrency: int = 1,
    tell: Progress,
    on_done: Callable[[Attempt], None] = lambda _: None,
) -> list[Attempt]:
    """Run what is missing; all attempts in the order of the tasks, those of earlier runs included.

    Attempts go round by round (every task once, then every task again), so that a stopped evaluation has seen all of
    them equally often.

    Args:
        n: attempts per task.
        api_key: of the endpoint; enters no file, and with ``network="model_only"`` no sandbox.

    Raises:
        ConfigError, MissingDependency: an unknown agent, variant or sandbox; nothing was written then.
        EndpointHopeless: what finished is recorded.
    """
    if n < 1 or concurrency < 1:
        raise ConfigError("The numbers of attempts and of attempts at a time must be positive.")
    harness = get_agent(config.agent, variant=config.variant) if config.needs_model else None
    backend = get_backend(config.sandbox)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(backend.aclose)
        if harness is not None:
            await asyncio.to_thread(harness.prepare, None, tell)
        folder.start(config)
        endpoint = await stack.enter_async_context(_endpoint(config, api_key)) if harness is not None else None
        attempter = Attempter(config, backend, folder, harness, endpoint)
        known = {key: attempt for key, attempt in folder.attempts().items() if attempt.counts}
        wanted = [(task, index) for index in range(n) for task in tasks]
        missing = [(task, index) for task, index in wanted if (task.instance_id, index) not in known]
        if len(missing) < len(wanted):
            tell(f"{len(wanted) - len(missing)} of {len(wanted)} attempts are there already")
        await _run(attempter, missing, folder, backend, concurrency, tell, on_done)
    done = folder.attempts()
    return [done[task.instance_id, index] for task in tasks for index in range(n)]


async def _run(
    attempter: Attempter,
    missing: Sequence[tuple[SweTask, int]],
    folder: EvalFolder,
    backend: SandboxBackend,
    concurrency: int,
    tell: Progress,
    on_done: Callable[[Attempt], None],
) -> None:
    gate, built, failures = asyncio.Semaphore(concurrency), _Builder(backend, tell), 0

    async def one(task: SweTask, index: int) -> None:
        nonlocal failures
        async with gate:
            if failures >= _HOPELESS:  # it was let in before the cancellation reached it
                return
            try:
                attempt = await attempter.run(await built.get(task), index)
            except InfrastructureError as error:  # the task cannot be built here
                attempt = Attempt(task_id=task.instance_id, index=index, status="infra_error", detail=str(error)[:1000])
            folder.append(attempt)
            on_done(attempt)
            failures = 0 if attempt.counts else failures + 1
            if failures >= _HOPELESS:
                raise EndpointHopeless(
                    f"{failures} attempts in a row failed, the last with: {attempt.detail}",
                    fix=f"Put that right and go on with --out {folder.path}.",
                )

    try:
        async with asyncio.TaskGroup() as group:
            for task, index in missing:
                group.create_task(one(task, index))
    except BaseExceptionGroup as errors:
        raise _first(errors) from None


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to show of several that came at once."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


class _Builder:
    """Builds each task once, when its first attempt needs it."""

    def __init__(self, backend: SandboxBackend, tell: Progress) -> None:
        self._backend = backend
        self._tell = tell
        self._built: dict[str, asyncio.Future[BuiltTask]] = {}

    async def get(self, task: SweTask) -> BuiltTask:
        future = self._built.get(task.instance_id)
        if future is None:
            future = asyncio.ensure_future(prepare_task(task, self._backend, None, self._tell))
            self._built[task.instance_id] = future
        return await asyncio.shield(future)


@asynccontextmanager
async def _endpoint(config: EvalConfig, api_key: str) -> AsyncIterator[Endpoint]:
    if config.network == "open":
        yield Endpoint(api_key=api_key or "none")  # agents refuse an empty key
        return
    stand_in = f"dt-eval-{secrets.token_hex(16)}"
    with socket_folder() as folder:
        socket = folder / "model.sock"
        async with forwarding(socket, config.base_url, stand_in, api_key or stand_in):
            yield Endpoint(api_key=stand_in, socket=socket)
