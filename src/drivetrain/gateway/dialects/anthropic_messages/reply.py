"""A :class:`Reply` as an Anthropic ``message`` object and as its stream of events.

Events come in the order of the public streaming documents: ``message_start``, then per content block
``content_block_start``, its deltas and ``content_block_stop``, then ``message_delta`` and ``message_stop``.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from drivetrain.gateway.dialects.arguments import input_json
from drivetrain.gateway.dialects.pieces import pieces
from drivetrain.messages import FinishReason, Reply

_encode = msgspec.json.encode
_STOP_REASONS: dict[FinishReason, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

Delta = tuple[str, str, str]
"""Type of a delta, the field that grows, and its piece."""


def message(reply: Reply) -> bytes:
    """The JSON reply. An empty one has no blocks."""
    content = [whole for whole, _, _ in _blocks(reply)]
    return _encode(
        _head(reply)
        | {"content": content, "stop_reason": _STOP_REASONS[reply.finish_reason]}
        | {"usage": _usage(reply, reply.usage.completion_tokens)}
    )


def events(reply: Reply) -> Iterator[bytes]:
    """The reply as framed events, the terminal one last."""
    yield event("message_start", message=_head(reply) | {"content": [], "usage": _usage(reply, 0)})
    for index, (_, opened, deltas) in enumerate(_blocks(reply)):
        yield event("content_block_start", index=index, content_block=opened)
        for kind, field, piece in deltas:
            yield event("content_block_delta", index=index, delta={"type": kind, field: piece})
        yield event("content_block_stop", index=index)
    stop = {"stop_reason": _STOP_REASONS[reply.finish_reason], "stop_sequence": None}
    yield event("message_delta", delta=stop, usage=_usage(reply, reply.usage.completion_tokens))
    yield event("message_stop")


def event(name: str, **fields: Any) -> bytes:
    """One framed event; its name is also its type."""
    return b"event: " + name.encode() + b"\ndata: " + _encode({"type": name, **fields}) + b"\n\n"


def _blocks(reply: Reply) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[Delta]]]:
    """Each content block: whole, as it opens in a stream, and the deltas that fill it."""
    if reply.reasoning:
        signature = _signature(reply.id)
        deltas = [("thinking_delta", "thinking", piece) for piece in pieces(reply.reasoning)]
        head = {"type": "thinking"}
        yield (
            head | {"thinking": reply.reasoning, "signature": signature},
            head | {"thinking": "", "signature": ""},
            [*deltas, ("signature_delta", "signature", signature)],
        )
    if reply.content:
        deltas = [("text_delta", "text", piece) for piece in pieces(reply.content)]
        yield {"type": "text", "text": reply.content}, {"type": "text", "text": ""}, deltas
    for call in reply.tool_calls:
        head = {"type": "tool_use", "id": call.id, "name": call.name}
        text = input_json(call.arguments)
        deltas = [("input_json_delta", "partial_json", piece) for piece in pieces(text)]
        yield head | {"input": msgspec.Raw(text.encode())}, head | {"input": {}}, deltas


def _head(reply: Reply) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(reply: Reply, output_tokens: int) -> dict[str, int]:
    """Every prompt token is an input token, so that a harness can tell how full the context is (openenv.md 5.1)."""
    return {
        "input_tokens": reply.usage.prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output_tokens,
    }


def _signature(reply_id: str) -> str:
    """Opaque to clients, which return it; nothing is signed."""
    return base64.b64encode(hashlib.sha256(f"thinking:{reply_id}".encode()).digest()).decode()
