# ruff: noqa: E402
"""Each known fault of a trace is named before anything is trained; the difference is told by turn and after forks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import ConfigError
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.training.rows import RowError

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from drivetrain.training.alarm import (
    DeltaAlarm,
    ForeignTokens,
    LogpMismatch,
    ShiftedLogprobs,
    WrongMask,
    WrongTemperature,
    WrongWeights,
)
from drivetrain.training.delta import AFTER_FORK, TURNS, LogpDelta, delta_metrics, measure_delta, merge_deltas, turns_of
from drivetrain.training.delta_log import delta_writer, read_deltas
from drivetrain.training.train import train_recorded

Group = Callable[..., list[RolloutResult]]
Train = Callable[..., Any]


@pytest.fixture
def train(model_dir: Path, tmp_path: Path) -> Train:
    def run(results: list[RolloutResult], **options: Any) -> Any:
        return train_recorded(results, model_dir, out_dir=tmp_path, **{"alarm": DeltaAlarm(), **options})

    return run


def spans(row: Any) -> list[int]:
    return [index for index, mask in enumerate(row.loss_mask) if mask]


def shift(results: list[RolloutResult], step: int) -> None:
    """Entry i holds the log-prob of the token ``step`` slots on."""
    for result in results:
        for row in result.rows:
            slots = spans(row)
            values = [row.response_logprobs[index] for index in slots]
            for number, index in enumerate(slots):
                row.response_logprobs[index] = values[(number + step) % len(values)]


def wrong_mask(results: list[RolloutResult]) -> None:
    """Environment tokens pass for sampled ones; their filler 0.0 claims certainty."""
    row = results[0].rows[0]
    row.loss_mask[:] = [1] * len(row.loss_mask)


def tokenised_again(results: list[RolloutResult]) -> None:
    """One id of the last turn is not the one that was sampled."""
    row = results[0].rows[0]
    index = spans(row)[-1]
    row.response_ids[index] = (row.response_ids[index] + 1) % 500 + 3


def other_weights(results: list[RolloutResult]) -> None:
    for result in results:
        for row in result.rows:
            for number, index in enumerate(spans(row)):
                row.response_logprobs[index] -= 0.3 + 0.1 * (number % 3)


@pytest.mark.case("B7")
@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        (lambda results: shift(results, 1), ShiftedLogprobs, "of the next token"),
        (lambda results: shift(results, -1), ShiftedLogprobs, "of the previous token"),
        (wrong_mask, WrongMask, "tokens carry log-prob 0"),
        (tokenised_again, ForeignTokens, "the others are exact"),
        (other_weights, WrongWeights, "every token is off"),
    ],
)
def test_a_fault_has_a_name(
    train: Train, make_group: Group, fault: Callable[[Any], None], error: type[LogpMismatch], says: str
) -> None:
    results = make_group([1.0, 0.0])
    fault(results)
    with pytest.raises(error, match=says) as caught:
        train(results)
    assert type(caught.value) is error
    assert caught.value.delta.max > 0.05 and caught.value.fix
    assert "rollout t1-pi-" in str(caught.value)


def test_raw_logprobs_at_another_temperature_are_named(train: Train, make_group: Group) -> None:
    """A server that ignores the temperature in its log-probs (vLLM's raw_logprobs), trainer at 0.7."""
    with pytest.raises(WrongTemperature, match=r"those of temperature 1, the trainer's is 0\.7"):
        train(make_group([1.0, 0.0], temperature=1.0), temperature=0.7)
    assert train(make_group([1.0, 0.0], temperature=0.7), temperature=0.7).logp_diff_max < 1e-5


def test_a_short_row_is_named(train: Train, make_group: Group) -> None:
    results = make_group([1.0, 0.0])
    results[1].rows[0].response_logprobs.pop()
    with pytest.raises(RowError) as caught:
        train(results)
    assert caught.value.code == "length_mismatch"


def test_nothing_is_trained_once_the_alarm_rang(
    train: Train, make_group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped: list[Any] = []
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_a, **_k: stepped.append(1))
    results = make_group([1.0, 0.0])
    shift(results, 1)
    with pytest.raises(ShiftedLogprobs):
        train(results)
    assert stepped == []


def test_a_warning_goes_on(train: Train, make_group: Group, caplog: pytest.LogCaptureFixture) -> None:
    results = make_group([1.0, 0.0])
    shift(results, 1)
    report = train(results, alarm=DeltaAlarm(action="warn"))
    assert report.logp_diff_max > 0.05
    assert "of the next token" in caplog.text
    with pytest.raises(ConfigError, match="positive"):
        DeltaAlarm(max_nats=0.0)


def test_the_difference_is_told_by_turn_and_after_a_fork() -> None:
    mask = torch.tensor([[0, 1, 1, 0, 1, 0, 1], [1, 1, 1, 0, 0, 1, 0]], dtype=torch.bool)
    turn, position = turns_of(mask)
    assert turn[mask].tolist() == [1, 1, 2, 3, 1, 1, 1, 2]
    assert position[mask].tolist() == [0, 1, 0, 0, 0, 1, 2, 0]
    theirs = torch.zeros(2, 7)
    ours = torch.arange(14).reshape(2, 7) * -0.1
    batch = {
        "completion_mask": torch.ones(2, 7, dtype=torch.long),
        "tool_mask": mask.long(),
        "old_per_token_logps": ours,
        "sampling_per_token_logps": theirs,
    }
    delta = measure_delta(batch, owners=[0, 0])
    assert delta is not None
    assert delta.by_turn["1"].tokens == 5 and delta.by_turn["2"].tokens == 2 and delta.by_turn["3"].tokens == 1
    assert delta.by_turn["1"].max == pytest.approx(0.9) and delta.by_turn["2"].max == pytest.approx(1.2)
    assert sum(stat.tokens for stat in delta.by_turn.values()) == delta.tokens == 8
    told = {name: round(stat.max, 3) for name, stat in delta.after_fork.items() if stat.tokens}
    assert told == {"0": 0.7, "1": 0.8, "2-3": 0.9}, "only the second row of the rollout"
    alone = measure_delta(batch)
    assert alone is not None and not any(stat.tokens for stat in alone.after_fork.values())
    names = delta_metrics(delta)
    assert names["delta/turn_1_max"] == pytest.approx(0.9) and "delta/turn_4_max" not in names
    both = merge_deltas([delta, alone])
    assert (both.tokens, both.max) == (16, delta.max)
    assert both.mean == pytest.approx(delta.mean) and len(both.per_row) == 4
    assert set(both.by_turn) == set(TURNS) and set(both.after_fork) == set(AFTER_FORK)
    assert both.after_fork["0"].tokens == 1


def test_differences_are_logged_and_kept_beside_the_trace(train: Train, make_group: Group, tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    run.write_info({})
    assert read_deltas(run) == []
    results = make_group([1.0, 0.0, 0.5, 0.0], rows=(2, 1, 3, 1))
    report = train(results, on_batch=delta_writer(run))
    (kept,) = read_deltas(run)
    assert {name: len(rows) for name, rows in kept.rollouts.items()} == {
        "t1-pi-0": 2,
        "t1-pi-1": 1,
        "t1-pi-2": 3,
        "t1-pi-3": 1,
    }
    assert (kept.step, kept.max, kept.tokens) == (0, report.logp_diff_max, report.trained_tokens)
    assert sum(stat.tokens for stat in kept.by_turn.values()) == kept.tokens
    assert kept.after_fork["0"].tokens == 3, "one first token per forked row"
    entry = report.history[0]
    assert entry["delta/max"] == pytest.approx(report.logp_diff_max)
    assert entry["delta/turn_1_max"] <= entry["delta/max"] and entry["delta/after_fork_0_max"] < 1e-4


def test_a_measurement_has_no_numbers_where_the_correction_is_off() -> None:
    assert measure_delta({"completion_mask": torch.ones(1, 1)}) is None
    assert not DeltaAlarm().rings(LogpDelta(max=1e-5, mean=1e-6, tokens=3, per_row=[1e-5]))
    assert DeltaAlarm().rings(LogpDelta(max=float("nan"), mean=0.0, tokens=3, per_row=[]))
