"""The tolerant key: when are two messages the same to the model? (design section 4, "Match")

Tolerant where harnesses rewrite what does not matter: tool-call ids, JSON-equal arguments, null = "" = missing
content, trailing white space of an assistant's own text, reasoning present or dropped, order of the tool list.
Strict on everything a model would read differently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from drivetrain.messages import Message, ToolCall, ToolSpec

Key = bytes
_SIZE = 16
_encode = msgspec.json.Encoder(order="deterministic").encode


def _digest(*parts: Any) -> Key:
    try:
        spelled = _encode(parts)
    except UnicodeEncodeError:  # half a surrogate pair, escaped in a call's arguments, has no UTF-8
        spelled = json.dumps(parts, sort_keys=True).encode()
    return hashlib.blake2b(spelled, digest_size=_SIZE).digest()


def _argument_value(text: str) -> Any:
    """Arguments as JSON compares them: numbers by value (5000.0 = 5000), key order and spacing gone."""
    try:
        return _number_free(json.loads(text))
    except (ValueError, RecursionError):
        return ["text", text]


def _number_free(value: Any) -> Any:
    """Numbers as the double a JavaScript harness turns them into (harnesses.md section 1.2)."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        try:
            return ["number", repr(float(value))]
        except OverflowError:
            return ["number", str(value)]
    if isinstance(value, list):
        return [_number_free(item) for item in value]
    return {key: _number_free(item) for key, item in value.items()}


def calls_key(calls: Sequence[ToolCall]) -> list[Any]:
    """Name and JSON value of each call, in order; ids are left out."""
    return [[call.name, _argument_value(call.arguments)] for call in calls]


def message_key(message: Message) -> Key:
    """Key of one message."""
    if message.role == "assistant":
        return _digest("assistant", message.content.rstrip(), calls_key(message.tool_calls))
    return _digest(message.role, message.content)


def tools_key(tools: Sequence[ToolSpec]) -> Key:
    """Key of a tool list; order does not matter, the stored order is what the model sees."""
    return _digest("tools", sorted(_encode([t.name, t.description, t.parameters]).decode() for t in tools))


def extend(chain: Key, key: Key) -> Key:
    """Digest of a conversation from the digest of its beginning and the next message's key."""
    return hashlib.blake2b(chain + key, digest_size=_SIZE).digest()
