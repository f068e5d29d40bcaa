"""The log-prob difference between trainer and sampler: the proof that a trace is faithful.

With the right ids, masks, alignment and temperature it is rounding noise (0 to 1e-5 in fp32). An off-by-one in the
log-probs gives about 1, log-probs before temperature about 0.1, dropout in the trainer more than 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

TURNS = ("1", "2", "3", "4", "5+")
"""Buckets of trained turns of a row, counted from 1."""
AFTER_FORK = ("0", "1", "2-3", "4-7", "8-15", "16+")
"""Buckets of token positions inside the first trained turn of a row that is not its rollout's first: a wrong prompt
after a fork shows in its first tokens."""
_FIRST_POSITION = (0, 1, 2, 4, 8, 16)


class DeltaStat(msgspec.Struct, frozen=True):
    """Differences of some tokens, in nats; both are 0.0 where there are no ``tokens``."""

    max: float
    mean: float
    tokens: int


class LogpDelta(msgspec.Struct, frozen=True, kw_only=True):
    """``|log p_trainer - log p_sampler|`` over the trained tokens (mask 1) of one generation batch, in nats.

    ``per_row`` is the largest difference of each row (0.0 for a row without trained tokens); ``tokens`` is how many
    tokens were compared. ``max`` and ``mean`` are 0.0 when that is none. ``by_turn`` (:data:`TURNS`) and ``after_fork``
    (:data:`AFTER_FORK`) are parts of it.
    """

    max: float
    mean: float
    tokens: int
    per_row: list[float]
    by_turn: dict[str, DeltaStat] = {}
    after_fork: dict[str, DeltaStat] = {}


def measure_delta(batch: dict[str, Any], owners: Sequence[int] | None = None) -> LogpDelta | None:
    """Measure the batch GRPOTrainer scored: its no-grad recomputation against the log-probs of the rows.

    Args:
        batch: output of ``GRPOTrainer._generate_and_score_completions`` with the importance-sampling correction on;
            ``old_per_token_logps`` and ``sampling_per_token_logps`` are tensors of shape (rows, C).
        owners: the rollout of each row, so that the later rows of a rollout are known as forks.

    Returns:
        None when TRL did not recompute log-probs (the correction is off).
    """
    if "old_per_token_logps" not in batch or "sampling_per_token_logps" not in batch:
        return None
    mask = trained_mask(batch)
    delta = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).abs().masked_fill(~mask, 0.0)
    whole = _stat(delta, mask)
    turn, position = turns_of(mask)
    forked = _forked_rows(owners or range(len(mask)), mask)
    return LogpDelta(
        max=whole.max,
        mean=whole.mean,
        tokens=whole.tokens,
        per_row=[float(value) for value in delta.max(dim=1).values],
        by_turn={
            name: _stat(delta, mask & ((turn == index + 1) if index + 1 < len(TURNS) else (turn > index)))
            for index, name in enumerate(TURNS)
        },
        after_fork={
            name: _stat(delta, mask & forked & (turn == 1) & (position >= low) & (position < high))
            for name, low, high in zip(AFTER_FORK, _FIRST_POSITION, (*_FIRST_POSITION[1:], 1 << 62), strict=True)
        },
    )


def merge_deltas(parts: Sequence[LogpDelta]) -> LogpDelta:
    """One measurement of what several ranks measured, rows in the order of the ranks."""
    whole = _merged([DeltaStat(part.max, part.mean, part.tokens) for part in parts])
    return LogpDelta(
        max=whole.max,
        mean=whole.mean,
        tokens=whole.tokens,
        per_row=[value for part in parts for value in part.per_row],
        by_turn={name: _merged([part.by_turn[name] for part in parts]) for name in TURNS},
        after_fork={name: _merged([part.after_fork[name] for part in parts]) for name in AFTER_FORK},
    )


def trained_mask(batch: dict[str, Any]) -> Any:
    """Bool tensor of shape (rows, C): the tokens that enter the loss."""
    mask = batch["completion_mask"].bool()
    return mask & batch["tool_mask"].bool() if "tool_mask" in batch else mask


def turns_of(mask: Any) -> tuple[Any, Any]:
    """Which trained turn of its row a token belongs to (from 1), and its position in that turn (from 0).

    Between two turns there is always a token that was not sampled, so a turn is a run of ones. What is said of tokens
    outside ``mask`` means nothing.

    Args:
        mask: bool tensor of shape (rows, C).

    Returns:
        two integer tensors of that shape.
    """
    import torch

    before = torch.zeros_like(mask)
    before[:, 1:] = mask[:, :-1]
    starts = mask & ~before
    columns = torch.arange(mask.size(1), device=mask.device).expand_as(mask)
    begin = torch.where(starts, columns, torch.zeros_like(columns)).cummax(dim=1).values
    return starts.cumsum(dim=1), columns - begin


def delta_metrics(delta: LogpDelta) -> dict[str, float]:
    """What a trainer logs of it: ``delta/*``, in nats; buckets without tokens are left out."""
    out = {"delta/max": delta.max, "delta/mean": delta.mean}
    for group, stats in (("turn", delta.by_turn), ("after_fork", delta.after_fork)):
        for name, stat in stats.items():
            if stat.tokens:
                out |= {f"delta/{group}_{name}_max": stat.max, f"delta/{group}_{name}_mean": stat.mean}
    return out


def _merged(stats: Sequence[DeltaStat]) -> DeltaStat:
    tokens = sum(stat.tokens for stat in stats)
    mean = sum(stat.mean * stat.tokens for stat in stats) / tokens if tokens else 0.0
    return DeltaStat(max((stat.max for stat in stats), default=0.0), mean, tokens)


def _forked_rows(owners: Sequence[int], mask: Any) -> Any:
    import torch

    seen: set[int] = set()
    forked = []
    for owner in owners:
        forked.append(owner in seen)
        seen.add(owner)
    return torch.tensor(forked, dtype=torch.bool, device=mask.device).unsqueeze(1)


def _stat(delta: Any, where: Any) -> DeltaStat:
    tokens = int(where.sum())
    if not tokens:
        return DeltaStat(0.0, 0.0, 0)
    chosen = delta[where]
    return DeltaStat(float(chosen.max()), float(chosen.double().mean()), tokens)
