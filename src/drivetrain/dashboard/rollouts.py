"""Metrics of a run's rollouts, from the board that shows them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from drivetrain.dashboard.board import Board
from drivetrain.dashboard.model import PHASES


class RolloutCollector(Collector):
    """Reads a board whenever its registry is asked."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead: a registry would otherwise collect once to learn the names."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Rollouts by phase and status, rewards and sandboxes, as of the board's last update."""
        summary = self._board.summary
        phases = GaugeMetricFamily("drivetrain_rollouts", "Rollouts, by phase.", labels=("phase",))
        for phase in PHASES[:5]:
            phases.add_metric((phase,), summary.phases.get(phase, 0))
        yield phases
        ended = CounterMetricFamily("drivetrain_rollouts_ended", "Rollouts that have ended.", labels=("status",))
        for status, count in sorted(summary.statuses.items()):
            ended.add_metric((status,), count)
        yield ended
        reward = summary.reward
        yield CounterMetricFamily("drivetrain_rollouts_graded", "Rollouts with a reward.", value=reward.graded)
        yield CounterMetricFamily("drivetrain_rollouts_solved", "Rollouts with a reward of 1.", value=reward.solved)
        yield GaugeMetricFamily("drivetrain_reward_mean", "Mean reward of graded rollouts.", value=reward.mean or 0.0)
        boxes = GaugeMetricFamily("drivetrain_sandboxes", "Sandboxes of running rollouts.", labels=("role",))
        for role, count in sorted(summary.sandboxes.items()):
            boxes.add_metric((role,), count)
        yield boxes
