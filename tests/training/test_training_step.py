"""One GRPO step end to end on a tiny model: the log-prob difference is rounding noise; injected faults show."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import ConfigError
from drivetrain.rollout.result import RolloutResult
from drivetrain.training.rows import RowError

pytest.importorskip("trl")

from drivetrain.training.recipe import check_no_dropout, grpo_config
from drivetrain.training.report import TrainReport
from drivetrain.training.train import train_recorded

Group = Callable[..., list[RolloutResult]]


@pytest.fixture
def train(model_dir: Path, tmp_path: Path) -> Callable[..., TrainReport]:
    def run(results: list[RolloutResult], **options: Any) -> TrainReport:
        return train_recorded(results, model_dir, out_dir=tmp_path, **options)

    return run


def test_one_step_on_recorded_rollouts(train: Callable[..., TrainReport], make_group: Group) -> None:
    lines: list[str] = []
    results = make_group([1.0, 0.0, 0.5]) + make_group([0.0, 0.0, 1.0], task="t2", rows=(1, 2, 1))
    report = train(results, policy_version=0, progress=lines.append, learning_rate=1e-3)
    assert report.logp_diff_max < 1e-5
    assert report.logp_diff_max == pytest.approx(report.logp_diff_max_trl, abs=1e-9)
    assert 0 <= report.logp_diff_mean <= report.logp_diff_max
    assert report.rollouts == 6
    assert report.rows == 7
    assert report.trained_tokens == sum(sum(row.loss_mask) for result in results for row in result.rows)
    assert report.grad_norm > 0
    assert report.reward_mean == pytest.approx(2.5 / 6)
    assert report.worst_rollout in {result.rollout_id for result in results}
    assert report.saved_to == ""
    assert report.notes == []
    assert lines[-1] == "step 1/1"


def test_temperature_is_part_of_the_comparison(train: Callable[..., TrainReport], make_group: Group) -> None:
    results = make_group([1.0, 0.0], temperature=0.7)
    assert train(results, temperature=0.7).logp_diff_max < 1e-5
    assert train(results, temperature=1.0).logp_diff_max > 0.05


def shifted(results: list[RolloutResult]) -> None:
    """Off by one inside each sampled span."""
    for result in results:
        for row in result.rows:
            slots = [index for index, mask in enumerate(row.loss_mask) if mask]
            values = [row.response_logprobs[index] for index in slots]
            for index, value in zip(slots, values[1:] + values[:1], strict=True):
                row.response_logprobs[index] = value


def wrong_mask(results: list[RolloutResult]) -> None:
    """An environment token passes for a sampled one; its filler 0.0 claims certainty."""
    for result in results:
        result.rows[0].loss_mask[result.rows[0].loss_mask.index(0)] = 1


def retokenised(results: list[RolloutResult]) -> None:
    """One id differs from the one that was sampled."""
    row = results[0].rows[0]
    row.response_ids[1] = (row.response_ids[1] + 1) % 500 + 3


@pytest.mark.parametrize("fault", [shifted, wrong_mask, retokenised])
def test_silent_faults_show_in_the_difference(
    train: Callable[..., TrainReport], make_group: Group, fault: Callable[[list[RolloutResult]], None]
) -> None:
    results = make_group([1.0, 0.0])
    fault(results)
    assert train(results).logp_diff_max > 0.05


def test_short_rows_and_foreign_tokens_are_errors(train: Callable[..., TrainReport], make_group: Group) -> None:
    results = make_group([1.0, 0.0])
    results[1].rows[0].response_logprobs.pop()
    with pytest.raises(RowError, match="length_mismatch"):
        train(results)
    results = make_group([1.0, 0.0])
    results[1].rows[0].prompt_ids[0] = 100_000
    with pytest.raises(RowError, match="bad_token_id"):
        train(results)
    results = make_group([1.0, 0.0])
    results[1].rows[0].prompt_ids[:0] = [5] * 4000
    with pytest.raises(ConfigError, match=r"the model's context is 2048"):
        train(results)


def test_equal_rewards_are_reported_as_no_learning(
    train: Callable[..., TrainReport], make_group: Group, model_dir: Path
) -> None:
    report = train(make_group([1.0, 1.0]), save_model=True, learning_rate=1e-2)
    assert report.grad_norm == 0.0
    assert report.reward_std == 0.0
    assert any("All advantages are zero" in note for note in report.notes)
    assert weights_differ(model_dir, Path(report.saved_to)) == 0.0


def test_a_step_changes_the_saved_model(train: Callable[..., TrainReport], make_group: Group, model_dir: Path) -> None:
    report = train(make_group([1.0, 0.0]), save_model=True, learning_rate=1e-3)
    assert weights_differ(model_dir, Path(report.saved_to)) > 1e-4
    assert (Path(report.saved_to) / "tokenizer.json").is_file()


def test_later_steps_reuse_the_batch_and_say_so(train: Callable[..., TrainReport], make_group: Group) -> None:
    report = train(make_group([1.0, 0.0]), steps=3, learning_rate=1e-3)
    assert report.steps == 3
    assert len(report.history) == 3
    assert report.logp_diff_max < 1e-5
    assert any("off-policy" in note for note in report.notes)


def test_checkpointing_and_padding_do_not_change_the_numbers(
    train: Callable[..., TrainReport], make_group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = make_group([1.0, 0.0, 0.0, 0.5], rows=(2, 1, 1, 1))
    plain = train(results)
    monkeypatch.setattr("drivetrain.training.train.CHECKPOINT_TOKENS", 0)
    checkpointed = train(results)
    assert checkpointed.grad_norm == pytest.approx(plain.grad_norm, rel=1e-5)
    assert checkpointed.logp_diff_max < 1e-5


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda _group: [], "no rollouts"),
        (lambda group: group([1.0]), "single rollout"),
        (lambda group: group([1.0, 0.0]) + group([1.0, 0.0, 1.0], task="t2"), "different sizes"),
        (lambda group: group([1.0, 0.0]) * 2, "appears twice"),
        (lambda group: group([None, None]), "no rollout is graded"),
    ],
)
def test_what_makes_no_batch_is_refused(
    train: Callable[..., TrainReport], make_group: Group, build: Callable[[Group], list[RolloutResult]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        train(build(make_group))
    assert caught.value.fix


def test_recipe_refuses_what_breaks_the_comparison(tmp_path: Path) -> None:
    for name, value in {"top_p": 0.9, "top_k": 50, "disable_dropout": False}.items():
        with pytest.raises(ConfigError, match=name):
            grpo_config(tmp_path, num_generations=2, **{name: value})
    with pytest.raises(ConfigError, match="at least 2"):
        grpo_config(tmp_path, num_generations=1)
    with pytest.raises(ConfigError, match="do not divide"):
        grpo_config(tmp_path, num_generations=2, micro_batch=3)
    assert grpo_config(tmp_path, num_generations=2, epsilon=0.1).epsilon == 0.1


def test_attention_dropout_is_refused(model_dir: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(model_dir))
    config.attention_dropout = 0.1
    with pytest.raises(ConfigError, match="attention_dropout"):
        check_no_dropout(type("Model", (), {"config": config}))


def test_another_trl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from drivetrain.training import versions

    monkeypatch.setattr(versions, "version", lambda _name: "1.17.0")
    with pytest.raises(ConfigError, match=re.escape("TRL 1.17.0 is installed")):
        versions.require_trl()


def weights_differ(first: Path, second: Path) -> float:
    from transformers import AutoModelForCausalLM

    one, two = (AutoModelForCausalLM.from_pretrained(str(folder)).state_dict() for folder in (first, second))
    return max(float((one[name].float() - two[name].float()).abs().max()) for name in one)
