"""One forward pass over tokens of many sequences, packed into a single row.

Weights are read once per step for all tokens, whether they are prompt chunks or single decoded tokens; only attention
runs per sequence, over exactly that sequence's own keys. There is no padding and no mask between sequences, hence
nothing a neighbour could change. It plugs into transformers through its attention interface, so any decoder whose
attention goes through that interface works unmodified (Llama, Qwen2, Qwen3, SmolLM, Mistral without a window, ...).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from drivetrain.engines.kv_cache import KVShape, SequenceKV
from drivetrain.engines.protocol import EngineError
from drivetrain.errors import ConfigError

ATTENTION = "drivetrain_packed"
_UNSUPPORTED = ("softcap", "s_aux", "position_bias", "sliding_window")


class Span:
    """``ids`` of one sequence to run after the ``kv.length`` tokens it already holds."""

    __slots__ = ("ids", "kv", "mask", "past", "seen", "written")

    def __init__(self, kv: SequenceKV, ids: Sequence[int]) -> None:
        self.kv = kv
        self.ids = ids
        self.past = kv.length
        self.mask: Any = None
        self.written: Sequence[Any] = ()
        self.seen: Sequence[Any] = ()

    def open(self) -> None:
        """Make room, and cut the views that every layer writes to and reads from: one call each, not one per layer."""
        stop = self.past + len(self.ids)
        self.kv.reserve(stop)
        self.written = self.kv.layers(self.past, stop)
        self.seen = self.kv.layers(0, stop)


class _Current(threading.local):
    spans: Sequence[Span] = ()
    lengths: list[int] = []
    singles = 0  # spans of one token that come first
    calls = 0


_current = _Current()


def forward(model: Any, spans: Sequence[Span], wanted: Sequence[int]) -> Any:
    """Run ``spans``; append their keys and values; return logits ``[len(wanted), vocab]`` at the spans' last tokens.

    ``wanted`` are indices into ``spans``. The model's attention implementation and training mode are switched for
    the duration of the call, so nobody else may use the module meanwhile.

    Raises:
        EngineError: the model's attention does not go through the transformers attention interface.
    """
    ids = [token for span in spans for token in span.ids]
    positions = [span.past + i for span in spans for i in range(len(span.ids))]
    ends, end = [], 0
    for span in spans:
        end += len(span.ids)
        ends.append(end - 1)
    device = model.device
    with torch.inference_mode(), _switched(model):
        for span in spans:
            span.open()
        _current.spans, _current.calls = spans, 0
        _current.lengths = [len(span.ids) for span in spans]
        _current.singles = next((i for i, length in enumerate(_current.lengths) if length > 1), len(spans))
        try:
            logits = model(
                input_ids=torch.tensor([ids], device=device),
                position_ids=torch.tensor([positions], device=device),
                use_cache=False,
                logits_to_keep=torch.tensor([ends[i] for i in wanted], dtype=torch.long, device=device),
            ).logits[0]
        finally:
            _current.spans = ()
    if _current.calls == 0:
        raise EngineError(
            f"{type(model).__name__} does not use the transformers attention interface.",
            fix="Serve this model with vLLM or SGLang.",
            retryable=False,
        )
    for span in spans:
        span.kv.length = span.past + len(span.ids)
    return logits


def kv_shape(model: Any) -> KVShape:
    """What the cache of ``model`` looks like.

    Raises:
        ConfigError: the model has layers that are not full attention.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    window = getattr(config, "sliding_window", None) and not hasattr(config, "layer_types")
    if kinds or window:
        raise ConfigError(
            f"{type(model).__name__} has {', '.join(sorted(kinds)) or 'sliding-window attention'} layers; "
            "the embedded engine serves full attention only.",
            fix="Serve this model with vLLM or SGLang.",
        )
    heads = config.num_attention_heads
    parameter = next(model.parameters())
    return KVShape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=parameter.dtype,
        device=parameter.device,
    )


@contextlib.contextmanager
def _switched(model: Any) -> Iterator[None]:
    """Packed attention and eval mode inside, what the owner had set outside."""
    config = model.config
    before = config._attn_implementation
    training = [module for module in model.modules() if module.training] if model.training else []
    config._attn_implementation = ATTENTION
    for module in training:
        module.training = False
    try:
        yield
    finally:
        config._attn_implementation = before
        for module in training:
            module.training = True


def _attend(
    module: Any, query: Any, key: Any, value: Any, _mask: Any, scaling: float | None = None, **kwargs: Any
) -> tuple[Any, None]:
    """The attention function transformers calls, once per layer: ``[1, heads, n, dim]`` in, ``[1, n, heads, dim]`` out.

    ``_mask`` is always None here: transformers builds masks for its own implementations only.
    """
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise EngineError(f"the embedded engine does not know attention with {name}.", retryable=False)
    _current.calls += 1
    layer, spans, singles = module.layer_idx, _current.spans, _current.singles
    kv_heads = key.shape[1]
    new: Any = torch.cat((key, value))
    for span, part in zip(spans, new.split(_current.lengths, dim=2), strict=True):
        span.written[layer].copy_(part)
    out = []
    if singles:  # [singles, 1, kv_heads, groups, dim]: cut once for all of them
        heads = query[0, :, :singles].transpose(0, 1)
        rows = heads.reshape(singles, 1, kv_heads, -1, heads.shape[-1]).unbind()
        out = [_mix(row, span.seen[layer], None, scaling) for row, span in zip(rows, spans, strict=False)]
        out = [torch.cat(out).reshape(heads.shape)]
    start = singles
    for span in spans[singles:]:
        stop = start + len(span.ids)
        out.append(_attend_chunk(query[0, :, start:stop], span, layer, kv_heads, scaling))
        start = stop
    return (out[0] if len(out) == 1 else torch.cat(out)).unsqueeze(0), None


def _attend_chunk(query: Any, span: Span, layer: int, kv_heads: int, scaling: float | None) -> Any:
    """``[heads, n, dim]`` over all that the span sees -> ``[n, heads, dim]``."""
    heads, n, dim = query.shape
    groups = heads // kv_heads
    if span.mask is None and n > 1:  # the same for every layer
        span.mask = _causal(span.past, n, query).repeat(groups, 1)
    mixed = _mix(query.reshape(1, kv_heads, groups * n, dim), span.seen[layer], span.mask, scaling)
    return mixed.reshape(heads, n, dim).transpose(0, 1)


def _mix(rows: Any, seen: Any, mask: Any, scaling: float | None) -> Any:
    """``[1, kv_heads, rows, dim]`` over ``[2, kv_heads, seen, dim]``: attention of one sequence.

    The query heads that share a key head are stacked as extra rows, so that grouped heads need no copy of the keys.
    """
    keys, values = seen.split(1)
    return scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scaling)


def _causal(past: int, n: int, like: Any) -> Any:
    """Additive mask ``[n, past + n]``: token ``i`` sees the past and the chunk up to itself."""
    mask = torch.full((n, past + n), float("-inf"), dtype=like.dtype, device=like.device)
    return mask.triu_(past + 1)


AttentionInterface.register(ATTENTION, _attend)
