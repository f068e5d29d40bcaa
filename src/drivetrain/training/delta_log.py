"""The measured differences beside the trace they judge: ``deltas.jsonl`` in the run's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from drivetrain.rollout.run_dir import RunDir
from drivetrain.training.delta import DeltaStat
from drivetrain.training.grpo import BatchSummary


class StoredDelta(msgspec.Struct, frozen=True, kw_only=True):
    """``|log p_trainer - log p_sampler|`` of one generation batch, in nats. ``rollouts`` holds the largest difference
    of each rollout's rows, in their order; the rest is :class:`~drivetrain.training.delta.LogpDelta`'s."""

    step: int
    max: float
    mean: float
    tokens: int
    rollouts: dict[str, list[float]]
    by_turn: dict[str, DeltaStat]
    after_fork: dict[str, DeltaStat]


def delta_writer(run: RunDir) -> Callable[[BatchSummary], None]:
    """An ``on_batch`` for :class:`~drivetrain.training.grpo.ForkGRPOTrainer`: appends a line per generation batch."""

    def write(batch: BatchSummary) -> None:
        delta = batch.delta
        if delta is None:
            return
        rollouts: dict[str, list[float]] = {name: [] for name in batch.rollout_ids}
        for owner, value in zip(batch.row_rollout, delta.per_row, strict=True):
            if owner >= 0:
                rollouts[batch.rollout_ids[owner]].append(value)
        line = StoredDelta(
            step=batch.step,
            max=delta.max,
            mean=delta.mean,
            tokens=delta.tokens,
            rollouts=rollouts,
            by_turn=delta.by_turn,
            after_fork=delta.after_fork,
        )
        with _path(run).open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    return write


def read_deltas(run: RunDir) -> list[StoredDelta]:
    """What was measured of a run, in order; empty where nothing was."""
    path = _path(run)
    if not path.is_file():
        return []
    return [msgspec.json.decode(line, type=StoredDelta) for line in path.read_bytes().splitlines()]


def _path(run: RunDir) -> Path:
    return run.path / "deltas.jsonl"
