"""What a training run reports, read from the trainer and its log."""

from __future__ import annotations

import resource
import sys
from typing import Any

import msgspec


class TrainReport(msgspec.Struct, kw_only=True):
    """Outcome of a run of GRPO steps.

    ``logp_diff_max`` and ``logp_diff_mean`` are ``|log p_trainer - log p_sampler|`` in nats over every trained token
    of every row of the *first* step, recomputed by the trainer before any update; ``logp_diff_max_trl`` is TRL's own
    metric of the same thing. ``loss``, ``grad_norm`` (before clipping) and the reward statistics are those of the
    last step. ``rows`` counts rows without padding, ``trained_tokens`` the tokens in the loss, of one generation
    batch. ``excluded`` counts rollouts left out of the baseline. ``peak_memory`` is the process's peak resident
    size in bytes. ``notes`` says what the numbers alone hide.
    """

    steps: int
    logp_diff_max: float
    logp_diff_mean: float
    logp_diff_max_trl: float
    worst_rollout: str
    loss: float
    grad_norm: float
    reward_mean: float | None
    reward_std: float | None
    rollouts: int
    excluded: int
    rows: int
    trained_tokens: int
    seconds: float
    peak_memory: int
    saved_to: str = ""
    notes: list[str] = []
    history: list[dict[str, Any]] = []


def build_report(
    trainer: Any,
    *,
    first_batch: Any,
    rollout_ids: list[str],
    excluded: int,
    seconds: float,
    saved_to: str = "",
    notes: list[str] | None = None,
) -> TrainReport:
    """Read a trained ForkGRPOTrainer.

    Args:
        trainer: after ``train()``.
        first_batch: its ``BatchSummary`` of the first generation batch.
        rollout_ids: ids of that batch's rollouts, in order.
    """
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    last = history[-1]
    delta = first_batch.delta
    worst = max(range(len(delta.per_row)), key=delta.per_row.__getitem__)
    return TrainReport(
        steps=int(trainer.state.global_step),
        logp_diff_max=delta.max,
        logp_diff_mean=delta.mean,
        logp_diff_max_trl=float(history[0]["sampling/sampling_logp_difference/max"]),
        worst_rollout=rollout_ids[max(first_batch.row_rollout[worst], 0)],
        loss=float(last["loss"]),
        grad_norm=float(last["grad_norm"]),
        reward_mean=_latest(history, "reward"),
        reward_std=_latest(history, "reward_std"),
        rollouts=first_batch.rollouts,
        excluded=excluded,
        rows=first_batch.rows,
        trained_tokens=first_batch.trained_tokens,
        seconds=seconds,
        peak_memory=peak_memory(),
        saved_to=saved_to,
        notes=[*(notes or []), *batch_notes(first_batch, excluded)],
        history=history,
    )


def batch_notes(batch: Any, excluded: int) -> list[str]:
    """Plain sentences about a batch that would otherwise look like a successful step."""
    notes = []
    if excluded:
        notes.append(f"{excluded} of {batch.rollouts} rollouts failed or are ungraded and are not in the baseline.")
    if batch.trained_tokens == 0:
        notes.append("No token is trained: every row is masked; the step changed nothing.")
    elif not any(batch.advantages):
        notes.append(
            "All advantages are zero because the rewards within each group are equal: "
            "the gradient is zero and the step changed nothing."
        )
    return notes


def peak_memory() -> int:
    """Peak resident size of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _latest(history: list[dict[str, Any]], key: str) -> float | None:
    """Latest logged value: with several updates per batch TRL logs rewards only on the first of them."""
    values = [entry[key] for entry in history if entry.get(key) is not None]
    return float(values[-1]) if values else None
