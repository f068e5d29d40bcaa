"""The learning demo in miniature, with the real agent; that it learns is measured, not tested: docs/learning.md."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("trl")

from drivetrain.errors import ConfigError
from drivetrain.rollout.result import RolloutResult
from drivetrain.training.quickstart.heldout import point
from drivetrain.training.quickstart.learn import learn
from drivetrain.training.quickstart.oracle import MediocreOracle
from drivetrain.training.quickstart.settings import QuickstartSettings
from swe_rl_env.sources.operators import WORDS, draw

TINY = QuickstartSettings(
    lessons=32, traces=2, sft_epochs=1, steps=2, tasks_per_step=1, group=2, heldout=1, eval_every=1, final_attempts=2
)


@pytest.mark.real
@pytest.mark.timeout(300)
def test_every_stage_runs_and_leaves_what_it_says(tmp_path: Path) -> None:
    said: list[str] = []
    report = learn(TINY, tmp_path / "out", said.append)
    assert [(at.step, at.episodes + at.failed) for at in report.heldout] == [(0, 1), (1, 1), (2, 2)]
    assert report.logp_diff_max < 1e-4
    assert report.failed == 0
    assert report.episodes == 2 + 2 * 2 + 4
    assert 0 <= report.oracle_reward <= 1
    assert report.sft_losses
    assert Path(report.curve).read_bytes()[:4] == b"\x89PNG"
    assert (Path(report.model) / "model.safetensors").is_file()
    kept = json.loads((tmp_path / "out" / "learning.json").read_text())
    assert kept == msgspec.to_builtins(report)
    assert [line[:3] for line in said if line[1:2] == "/"] == ["1/4", "2/4", "3/4", "4/4"]
    with pytest.raises(ConfigError, match="is not empty"):
        learn(TINY, tmp_path / "out", said.append)


@pytest.mark.parametrize(("skill", "least", "most"), [(1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (0.35, 0.2, 0.5)])
def test_the_oracle_is_as_good_as_its_skill(skill: float, least: float, most: float) -> None:
    oracle, right = MediocreOracle(skill, 0), 0
    for number in range(200):
        instance = draw(number, "train", 0)
        reply = oracle([], f"Fix it.\n{instance.statement}\n", 0)
        assert f"The {instance.word} " in reply
        right += f"/ {instance.right} /" in reply
        assert sum(f"/ {operator} /" in reply for operator in WORDS) == 1
    assert least <= right / 200 <= most


def test_a_statement_of_another_kind_is_an_error() -> None:
    with pytest.raises(ConfigError, match="none of the results"):
        MediocreOracle(1.0, 0)([], "Make it faster.", 0)


def test_ungraded_episodes_are_no_zeros() -> None:
    def result(reward: float | None) -> RolloutResult:
        return RolloutResult(
            rollout_id="r", session_id="", task_id="t", agent="pi", group=0, status="ok", reward=reward
        )

    at = point(3, [result(1.0), result(None), result(0.0)])
    assert (at.reward, at.episodes, at.failed, at.step) == (0.5, 2, 1, 3)
    assert at.stderr == pytest.approx(0.3536, abs=1e-4)
    assert point(0, [result(None)]).reward != point(0, [result(None)]).reward  # NaN


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 training instances for 5"):
        QuickstartSettings(traces=4, tasks_per_step=5)
    with pytest.raises(ConfigError, match="steps is 0"):
        QuickstartSettings(steps=0)
