"""Hermes JSON: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, one block per call.

Source: the chat templates of Qwen2.5, Qwen3, Qwen3-Instruct-2507, Qwen3-VL; the SmolLM2 tool template shipped here;
the format is that of the Hermes function-calling data sets.
"""

from __future__ import annotations

from collections.abc import Iterator

from drivetrain.tokens.parsers.base import Block, skip_space, unread
from drivetrain.tokens.parsers.json_text import CallKeys, JsonError, read_call

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEYS = CallKeys()


def scan(text: str, at: int) -> Iterator[Block]:
    """Blocks of the format; see :data:`~drivetrain.tokens.parsers.base.Scan`."""
    while (start := text.find(_OPEN, at)) >= 0:
        block = _block(text, start)
        yield block
        at = block.end


def _block(text: str, start: int) -> Block:
    body = start + len(_OPEN)
    try:
        call, end = read_call(text, skip_space(text, body), _KEYS)
    except JsonError:
        return unread(text, start, body, _CLOSE)
    end = skip_space(text, end)
    if call is not None and text.startswith(_CLOSE, end):
        return Block(start, end + len(_CLOSE), (call,))
    return unread(text, start, body, _CLOSE)
