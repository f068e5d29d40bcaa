"""The numbers at the top of the page."""

from __future__ import annotations

import pytest

from drivetrain.dashboard.model import RolloutView, Summary, Trouble
from drivetrain.dashboard.rate import Latency, Rate, quantile
from drivetrain.dashboard.summing import add_rollouts
from drivetrain.metrics.tally import Distribution


def attempt(task: str, number: int, reward: float | None, status: str = "ok") -> RolloutView:
    return RolloutView(
        id=f"{task}.{number}", task=task, agent="a", phase="done", status=status, reward=reward, sampled=10,
        trained=8, masked={"undelivered": 2}, forks={"branch": 1}, ended=float(number),
        error="" if reward is not None else "gone",
    )  # fmt: skip


def test_ungraded_is_not_zero() -> None:
    views = [
        attempt("x", 0, 1.0),
        attempt("x", 1, 0.0),
        attempt("y", 2, 1.0),
        attempt("y", 3, None, "infra_error"),
        RolloutView(id="z", phase="agent", sampled=5, turns=2),
    ]
    summary = Summary(troubles=[Trouble(at=9.0, what="full", kind="journal")])
    add_rollouts(summary, views)
    reward = summary.reward
    assert (reward.graded, reward.mean, reward.solved, reward.ungraded) == (3, pytest.approx(2 / 3), 2, 1)
    # pass@1: the mean over tasks of 1/2 and 1; of two attempts only x has enough
    assert [(each.k, each.value, each.tasks) for each in summary.pass_at] == [(1, 0.75, 2), (2, 1.0, 1)]
    assert summary.phases == {"done": 4, "agent": 1} and summary.statuses == {"ok": 3, "infra_error": 1}
    assert (summary.sampled, summary.judged, summary.masked) == (45, 40, {"undelivered": 8})
    assert summary.forks == {"branch": 4} and summary.turns == 2
    assert [(each.kind, each.rollout) for each in summary.troubles] == [("journal", ""), ("infra_error", "y.3")]


def test_of_nothing_nothing_is_said() -> None:
    summary = Summary()
    add_rollouts(summary, [])
    assert summary.reward.mean is None and summary.pass_at == []


def test_the_rate_is_of_the_last_ten_seconds() -> None:
    rate = Rate()
    assert rate.at(0.0, 100) == 0.0
    assert rate.at(2.0, 300) == 100.0
    for second in range(3, 30):
        last = rate.at(float(second), 300)
    assert last == 0.0
    assert rate.at(31.0, 0) == 0.0  # counted anew: never negative


def test_quantiles_are_of_the_last_minute() -> None:
    seen = Distribution((1.0, 2.0, 4.0))
    latency = Latency(seen)
    assert latency.at(0.0, (0.5,)) == [None]
    for _ in range(10):
        seen.observe(1.5)
    assert latency.at(1.0, (0.5, 1.0)) == [1.5, 2.0]
    latency.at(61.0, (0.5,))
    latency.at(62.0, (0.5,))
    seen.observe(3.0)
    assert latency.at(100.0, (0.5,)) == [3.0]
    seen.observe(99.0)
    assert quantile(seen.bounds, seen.counts, 1.0) == 4.0  # beyond the last bound it says the bound
