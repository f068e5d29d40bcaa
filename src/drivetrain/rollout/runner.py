"""Many rollouts at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from drivetrain.rollout.config import EpisodeSpec
from drivetrain.rollout.episode import EpisodeRunner
from drivetrain.rollout.mask_guard import MaskedFractionExceeded
from drivetrain.rollout.result import RolloutResult


async def run_rollouts(
    runner: EpisodeRunner,
    specs: Sequence[EpisodeSpec],
    *,
    concurrency: int,
    on_start: Callable[[EpisodeSpec], None] = lambda _: None,
    on_done: Callable[[RolloutResult], None] = lambda _: None,
) -> list[RolloutResult]:
    """Run every spec, at most ``concurrency`` in flight; results in the order of the specs.

    One failing rollout does not stop the others (case row F8); cancelling this cancels and cleans up all of them.

    Raises:
        MaskedFractionExceeded: so many sampled tokens are lost to faults that going on is pointless; the rollouts
            that finished are recorded, the others are cancelled.
    """
    gate = asyncio.Semaphore(concurrency)

    async def one(spec: EpisodeSpec) -> RolloutResult:
        async with gate:
            on_start(spec)
            result = await runner.run(spec)
            on_done(result)
            runner.guard.check()
            return result

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(spec)) for spec in specs]
    except BaseExceptionGroup as failures:
        stops, others = failures.split(MaskedFractionExceeded)
        if stops is None or others is not None:
            raise
        raise stops.exceptions[0] from None
    return [task.result() for task in tasks]
