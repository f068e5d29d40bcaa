"""Reward on instances that are not trained on, measured between updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from transformers import TrainerCallback

from drivetrain.rollout.result import RolloutResult
from drivetrain.training.rollout_func import eval_mode
from drivetrain.training.sources import EpisodeRequest, EpisodeSource


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Mean reward of the graded episodes after ``step`` updates; ``stderr`` of that mean; ``failed`` had no reward."""

    step: int
    reward: float
    stderr: float
    episodes: int
    failed: int


def point(step: int, results: Sequence[RolloutResult]) -> Point:
    """Summarise episodes; without a graded one the reward is NaN."""
    rewards = [result.reward for result in results if result.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else math.nan
    variance = sum((reward - mean) ** 2 for reward in rewards) / len(rewards) if rewards else math.nan
    return Point(
        step=step,
        reward=mean,
        stderr=math.sqrt(variance / max(len(rewards), 1)),
        episodes=len(rewards),
        failed=len(results) - len(rewards),
    )


class HeldOut(TrainerCallback):
    """Attempts held-out instances before the first update and after some of the others; ``points`` is the curve.

    Args:
        source: runs the episodes; the weights are the trainer's own.
        sync: publishes the weights under a policy version, see :func:`drivetrain.training.live.train_live`.
        requests: one episode each; the seeds differ from evaluation to evaluation.
        every: in updates.
        attempts: episodes per request before the first update and after the last; one at the points between.
        on_point: told of every point.
    """

    def __init__(
        self,
        source: Callable[[], EpisodeSource],
        sync: Callable[[int], None],
        requests: Sequence[EpisodeRequest],
        *,
        every: int,
        attempts: int,
        on_point: Callable[[Point], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._sync = sync
        self._requests = requests
        self._every = every
        self._attempts = attempts
        self._on_point = on_point
        self.points: list[Point] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:  # noqa: ARG002 (transformers calls by name)
        self._measure(0, self._attempts, about["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:  # noqa: ARG002 (transformers calls by name)
        last = state.global_step >= state.max_steps
        if last or state.global_step % self._every == 0:
            self._measure(state.global_step, self._attempts if last else 1, about["model"])

    def _measure(self, step: int, attempts: int, model: Any) -> None:
        requests = [
            msgspec.structs.replace(request, group=attempt, seed=request.seed + 1009 * step + attempt)
            for request in self._requests
            for attempt in range(attempts)
        ]
        with eval_mode(model):
            self._sync(step)
            results = self._source().run(requests)
        self.points.append(point(step, results))
        self._on_point(self.points[-1])
