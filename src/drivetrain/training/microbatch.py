"""Log-probs of long agent rows without paying for padding or for the prompt's vocabulary projection.

TRL 1.16 pads every row to the longest prompt plus the longest completion of the generation batch, and on devices
without Triton projects *every* position through the LM head, the prompt's included. Agent rows differ in length by
an order of magnitude, so both are trimmed here; the values are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional


def row_chunks(rows: int, batch_size: int | None, device: torch.device) -> list[slice]:
    """Slices of rows that share a forward pass: TRL's batch on accelerators, one row at a time on CPU."""
    size = 1 if device.type == "cpu" else (batch_size or rows)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def completion_logps(
    model: Any,
    backbone: torch.nn.Module,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    keep: int,
    *,
    entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs (and entropies) of the last ``keep`` columns of a left- and right-padded batch.

    Args:
        model: causal LM patched by TRL's fused LM head (``fused_lm_head=True`` returns per-token log-probs).
        backbone: the part of ``model`` that returns hidden states.
        input_ids: shape (B, P + keep).
        attention_mask: same shape, 1 for real tokens.
        keep: number of completion columns, padding included.
        entropy: whether to return entropies as well.

    Returns:
        two tensors of shape (B, keep), 0.0 at padding; the second is None without ``entropy``.
    """
    width = input_ids.size(1)
    used = attention_mask.any(dim=0).nonzero().flatten()
    first = int(used[0]) if used.numel() else width - keep - 1
    last = int(used[-1]) + 1 if used.numel() else width - keep + 1
    left = min(first, width - keep - 1)  # the completion's first token needs one position before it
    right = max(last, width - keep + 1)
    kept = right - (width - keep)
    ids, mask = input_ids[:, left:right], attention_mask[:, left:right]
    labels = ids.masked_fill(mask == 0, -100)[:, -(kept + 1) :]
    with tail_hidden_states(backbone, kept + 1):
        out = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    pad = (0, keep - kept)
    entropies = functional.pad(out.entropy, pad) if entropy else None
    return functional.pad(out.log_probs, pad), entropies


@contextmanager
def tail_hidden_states(backbone: torch.nn.Module, count: int) -> Iterator[None]:
    """Let ``backbone`` return only its last ``count`` hidden states, shape (B, count, H), inside the block."""

    def crop(_module: torch.nn.Module, _args: Any, output: Any) -> Any:
        output["last_hidden_state"] = output["last_hidden_state"][:, -count:]
        return output

    handle = backbone.register_forward_hook(crop)
    try:
        yield
    finally:
        handle.remove()
