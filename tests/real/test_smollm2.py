"""The main job in small: both real agents, the real model, a real task, and a GRPO step on what was sampled."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.engines.models import resolve_model
from drivetrain.rollout.audit import audit_run
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.runner import run_rollouts
from drivetrain.rollout.stack import open_stack

TASK = "pypi__xmltodict-0.14.2"


@pytest.mark.real
@pytest.mark.agent_claim("real model", agents=("pi", "mini-swe-agent"))
@pytest.mark.timeout(480)
async def test_real_agents_real_model_one_grpo_step(tmp_path: Path) -> None:
    from drivetrain.training.train import train_recorded

    model = resolve_model()
    config = RolloutConfig(
        tasks=(TASK,),
        agents=("pi", "mini-swe-agent"),
        n=2,
        variant="small",
        max_turns=2,
        max_tokens=24,
        concurrency=4,
        deadline_s=300,
        seed=7,
    )
    run = RunDir.create(tmp_path / "run")
    async with open_stack(config, run, lambda _: None, model=model) as runner:
        results = await run_rollouts(runner, episodes_of(config), concurrency=4)
    assert [result.reward for result in results] == [0.0] * 4
    assert all(result.rows for result in results)
    assert [audit.problems for audit in audit_run(run, vocab_size=model.vocab_size)] == [[]] * 4
    report = train_recorded(run.results(), model.path, out_dir=tmp_path / "out", policy_version=0)
    assert report.rollouts == 4
    assert report.trained_tokens == sum(sum(row.loss_mask) for result in results for row in result.rows)
    assert 0 < report.logp_diff_max <= 1e-4
