"""Live GRPO through the whole stack: real Pi in a sandbox samples from the module being trained."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from drivetrain.engines.tiny import build_tiny_model
from drivetrain.errors import ConfigError
from drivetrain.rollout.audit import audit_run
from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.run_dir import RunDir
from drivetrain.training.episodes import LiveRollouts
from drivetrain.training.live import train_live
from tests.swe_rl_agent.test_custom_agent import example

TASK = "pypi__xmltodict-0.14.2"


@pytest.mark.real
@pytest.mark.timeout(300)
def test_pi_samples_from_the_model_being_trained(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path / "model", context=8192)
    config = RolloutConfig(tasks=(TASK,), agents=("pi",), n=2, variant="small", max_turns=2, max_tokens=16)
    run = RunDir.create(tmp_path / "run")
    with LiveRollouts(config, model, run, lambda _: None) as live:
        report = train_live(
            live.make_source,
            live.tasks,
            model.path,
            out_dir=tmp_path / "out",
            steps=2,
            num_generations=2,
            learning_rate=1e-2,
            sync=live.sync,
        )
    assert report.steps == 2
    assert max(entry["sampling/sampling_logp_difference/max"] for entry in report.history) < 1e-4
    results = run.results()
    assert sorted(result.rollout_id for result in results) == [
        f"step{step}.{TASK}.pi.{group}" for step in range(2) for group in range(2)
    ]
    versions = {pair[0] for result in results for row in result.rows for pair in row.metadata["policy_versions"]}
    assert versions == {0, 1}
    assert [audit.problems for audit in audit_run(run)] == [[]] * 4


def test_an_agent_given_as_a_preset_file_goes_by_its_name(tmp_path: Path, tiny_model) -> None:  # type: ignore[no-untyped-def]
    preset = tmp_path / "own.toml"
    preset.write_text(example("preset"), encoding="utf-8")
    config = RolloutConfig(tasks=(TASK,), agents=("pi", str(preset)))
    live = LiveRollouts(config, tiny_model, RunDir.create(tmp_path / "run"), lambda _: None)
    assert [task.agent for task in live.tasks] == ["pi", tomllib.loads(example("preset"))["name"]]


def test_agents_without_a_model_are_refused(tmp_path: Path, tiny_model) -> None:  # type: ignore[no-untyped-def]
    config = RolloutConfig(tasks=(TASK,), agents=("noop",))
    with pytest.raises(ConfigError, match="uses no model"):
        LiveRollouts(config, tiny_model, RunDir.create(tmp_path / "run"), lambda _: None)
