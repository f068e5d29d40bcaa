"""Where a ``rollout_func`` gets its episodes from: recorded rollouts, or episodes run now."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from drivetrain.errors import ConfigError, DrivetrainError
from drivetrain.rollout.loop_thread import LoopThread
from drivetrain.rollout.result import RolloutResult, RolloutStatus

GroupKey = tuple[str, str]
T = TypeVar("T")


class EpisodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One episode to run: a task, an agent and which copy of its group it is.

    ``group`` numbers the copies of one prompt from 0. ``seed`` differs for every episode of a run and is a
    reproducible function of the run's seed, the training step, the task, the agent and ``group``. ``prompt`` is the
    dataset's prompt, unrendered. ``training`` is False during evaluation.
    """

    task_id: str
    agent: str
    group: int
    seed: int
    prompt: Any
    training: bool = True

    @property
    def key(self) -> GroupKey:
        return (self.task_id, self.agent)


class EpisodeSource(Protocol):
    """Runs (or looks up) episodes: one result per request, in the order of the requests."""

    def run(self, requests: Sequence[EpisodeRequest]) -> list[RolloutResult]:
        """Return exactly ``len(requests)`` results; a failed episode is a result with an error status.

        Raises:
            DrivetrainError: only when no episode could be run at all (a wrong set-up).
        """


def failed_result(request: EpisodeRequest, error: str, *, status: RolloutStatus = "infra_error") -> RolloutResult:
    """The result of an episode that left nothing: no rows, reward None, and the reason."""
    return RolloutResult(
        rollout_id=f"failed-{uuid.uuid4().hex[:12]}",
        session_id="",
        task_id=request.task_id,
        agent=request.agent,
        group=request.group,
        status=status,
        reward=None,
        error=error,
    )


def group_results(results: Iterable[RolloutResult]) -> dict[GroupKey, list[RolloutResult]]:
    """Rollouts by (task, agent), each group ordered by its ``group`` number, groups in order of appearance."""
    groups: dict[GroupKey, list[RolloutResult]] = defaultdict(list)
    for result in results:
        groups[(result.task_id, result.agent)].append(result)
    return {key: sorted(members, key=lambda member: member.group) for key, members in groups.items()}


class RecordedSource:
    """Replays recorded rollouts: copy k of a prompt is the k-th recorded rollout of its (task, agent).

    Args:
        results: the recorded rollouts.
        policy_version: when given, every row's ``policy_versions`` must be exactly this version: rollouts of other
            weights are off-policy and their recorded log-probs do not belong to the model about to be trained.

    Raises:
        ConfigError: a row was sampled by another policy version.
    """

    def __init__(self, results: Iterable[RolloutResult], *, policy_version: int | None = None) -> None:
        self.groups = group_results(results)
        if policy_version is not None:
            for members in self.groups.values():
                for member in members:
                    _check_versions(member, policy_version)

    def run(self, requests: Sequence[EpisodeRequest]) -> list[RolloutResult]:
        """Look the requests up.

        Raises:
            ConfigError: a (task, agent) was not recorded, or not often enough.
        """
        return [self._lookup(request) for request in requests]

    def _lookup(self, request: EpisodeRequest) -> RolloutResult:
        members = self.groups.get(request.key, [])
        if request.group >= len(members):
            raise ConfigError(
                f"task {request.task_id} with agent {request.agent} has {len(members)} recorded rollouts; "
                f"copy {request.group} was asked for.",
                fix="Record more rollouts of that group or lower num_generations.",
            )
        return members[request.group]


class LiveSource:
    """Runs episodes now, concurrently, on an event loop in its own thread (TRL calls synchronously).

    Args:
        episode: coroutine function that runs one episode (the rollout runner provides it). What it raises becomes a
            failed result; it never reaches the trainer.
        concurrency: episodes in flight at a time.
        timeout: seconds one episode may take before it is cancelled, None for no limit. The slowest episode holds
            every rank, so a limit is wise.
    """

    def __init__(
        self,
        episode: Callable[[EpisodeRequest], Awaitable[RolloutResult]],
        *,
        concurrency: int = 4,
        timeout: float | None = None,
    ) -> None:
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}.", fix="Give at least 1.")
        self._episode = episode
        self._concurrency = concurrency
        self._timeout = timeout
        self._thread = LoopThread("drivetrain-episodes")

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which episodes, engine and gateway live."""
        return self._thread.loop

    def run(self, requests: Sequence[EpisodeRequest]) -> list[RolloutResult]:
        """Run all requests and wait for the last one; results in the order of the requests."""
        return self._thread.wait(self._run_all(requests))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one coroutine on the episodes' loop and return its value: start or stop the engine and the gateway."""
        return self._thread.wait(work)

    def close(self) -> None:
        """Stop the event loop; idempotent."""
        self._thread.close()

    async def _run_all(self, requests: Sequence[EpisodeRequest]) -> list[RolloutResult]:
        gate = asyncio.Semaphore(self._concurrency)

        async def one(request: EpisodeRequest) -> RolloutResult:
            async with gate:
                return await self._run_one(request)

        return await asyncio.gather(*(one(request) for request in requests))

    async def _run_one(self, request: EpisodeRequest) -> RolloutResult:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._episode(request)
        except TimeoutError:
            return failed_result(request, f"the episode took longer than {self._timeout} s.")
        except DrivetrainError as error:
            return failed_result(request, str(error))
        except Exception as error:
            return failed_result(request, f"{type(error).__name__}: {error}")


def _check_versions(result: RolloutResult, policy_version: int) -> None:
    for row in result.rows:
        other = sorted(_versions(row.metadata) - {policy_version})
        if other:
            raise ConfigError(
                f"rollout {result.rollout_id} was sampled by policy version {other[0]}, "
                f"the model to train is version {policy_version}.",
                fix="Record new rollouts with the current weights, or train the weights that sampled these.",
            )


def _versions(metadata: dict[str, Any]) -> set[int]:
    """Versions of a row's turns: ``policy_versions`` holds a (start, end) pair per turn."""
    pairs = metadata.get("policy_versions", [])
    return {int(version) for pair in pairs for version in (pair if isinstance(pair, list | tuple) else [pair])}
