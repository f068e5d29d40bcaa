"""AsyncGRPOTrainer without a GPU: the two things of TRL 1.16 that need one are replaced (trl.md section 5.2).

``tree_fa3`` attention is a kernel of the Hub; here each segment of the packed tree attends to the keys of its path with
plain torch, bottom-right causal as flash attention has it. The peak FLOPS of the device are asked of CUDA.
"""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch


def flash_attn_varlen_func(
    q: Any = None,
    k: Any = None,
    v: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
    **_: Any,
) -> Any:
    """Shapes (tokens, heads, size); grouped heads allowed."""
    scale = q.size(-1) ** -0.5 if softmax_scale is None else softmax_scale
    repeat = q.size(1) // k.size(1)
    out = torch.empty_like(q)
    for index in range(len(cu_seqlens_q) - 1):
        a, b = int(cu_seqlens_q[index]), int(cu_seqlens_q[index + 1])
        c, d = int(cu_seqlens_k[index]), int(cu_seqlens_k[index + 1])
        keys = k[c:d].repeat_interleave(repeat, dim=1)
        values = v[c:d].repeat_interleave(repeat, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[a:b], keys) * scale
        rows = torch.arange(b - a).unsqueeze(1) + (d - c) - (b - a)
        columns = torch.arange(d - c).unsqueeze(0)
        hidden = columns > rows if causal else torch.zeros_like(columns > rows)
        if window_size[0] >= 0:
            hidden = hidden | (columns < rows - window_size[0])
        out[a:b] = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), values)
    return out


def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch TRL."""
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    kernel = types.SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)
    monkeypatch.setattr(packing, "_flash_attn", lambda: kernel)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_a, **_k: None)
