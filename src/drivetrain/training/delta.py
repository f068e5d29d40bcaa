"""The log-prob difference between trainer and sampler: the proof that a trace is faithful.

With the right ids, masks, alignment and temperature it is rounding noise (0 to 1e-5 in fp32). An off-by-one in the
log-probs gives about 1, log-probs before temperature about 0.1, dropout in the trainer more than 1.
"""

from __future__ import annotations

from typing import Any

import msgspec


class LogpDelta(msgspec.Struct, frozen=True, kw_only=True):
    """``|log p_trainer - log p_sampler|`` over the trained tokens (mask 1) of one generation batch, in nats.

    ``per_row`` is the largest difference of each row (0.0 for a row without trained tokens); ``tokens`` is how many
    tokens were compared. ``max`` and ``mean`` are 0.0 when that is none.
    """

    max: float
    mean: float
    tokens: int
    per_row: list[float]


def measure_delta(batch: dict[str, Any]) -> LogpDelta | None:
    """Measure the batch GRPOTrainer scored: its no-grad recomputation against the log-probs of the rows.

    Args:
        batch: output of ``GRPOTrainer._generate_and_score_completions`` with the importance-sampling correction on;
            ``old_per_token_logps`` and ``sampling_per_token_logps`` are tensors of shape (rows, C).

    Returns:
        None when TRL did not recompute log-probs (the correction is off).
    """
    if "old_per_token_logps" not in batch or "sampling_per_token_logps" not in batch:
        return None
    mask = trained_mask(batch)
    delta = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).abs().masked_fill(~mask, 0.0)
    tokens = int(mask.sum())
    return LogpDelta(
        max=float(delta.max()) if tokens else 0.0,
        mean=float(delta.double().sum() / tokens) if tokens else 0.0,
        tokens=tokens,
        per_row=[float(value) for value in delta.max(dim=1).values],
    )


def trained_mask(batch: dict[str, Any]) -> Any:
    """Bool tensor of shape (rows, C): the tokens that enter the loss."""
    mask = batch["completion_mask"].bool()
    return mask & batch["tool_mask"].bool() if "tool_mask" in batch else mask
