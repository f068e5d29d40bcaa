"""Episodes of the oracle through the real harness: what the policy is warm-started from."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.cache import Progress
from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.runner import run_rollouts
from drivetrain.rollout.stack import open_stack
from drivetrain.training.quickstart.oracle import MediocreOracle
from swe_rl_env.tasks.model import SweTask


async def record(
    config: RolloutConfig,
    model: ModelDir,
    oracle: MediocreOracle,
    tasks: Sequence[SweTask],
    run: RunDir,
    tell: Progress,
) -> list[RolloutResult]:
    """Run every episode of ``config`` with ``oracle`` in the place of the model whose tokenizer it uses.

    Raises:
        ConfigError, MissingDependency: see :func:`drivetrain.rollout.stack.open_stack`.
    """
    engine = ScriptedEngine(model, oracle)
    done = 0

    def count(result: RolloutResult) -> None:
        nonlocal done
        done += 1
        if done % 16 == 0 or result.status != "ok":
            tell(f"{done} episodes recorded; {result.rollout_id}: {result.status} {result.error}")

    async with open_stack(config, run, tell, engine=engine, model=model, tasks=tasks) as runner:
        return await run_rollouts(runner, episodes_of(config), concurrency=config.concurrency, on_done=count)
