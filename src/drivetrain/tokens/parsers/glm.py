"""GLM-4.x: ``<tool_call>name\\n<arg_key>k</arg_key>\\n<arg_value>v</arg_value>\\n</tool_call>``, one block per call.

Strings are bare text, everything else is JSON. GLM-4.7 writes the same without line breaks.
Source: chat templates of GLM-4.5, GLM-4.6 and GLM-4.7.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from drivetrain.messages import ToolSpec
from drivetrain.tokens.parsers.base import Block, ParsedCall, skip_space, unread
from drivetrain.tokens.parsers.typed_values import encode_arguments

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_NAME = re.compile(r"\s*(?P<name>[^\s<>{}]+)")
_KEY = re.compile(r"<arg_key>(?P<key>[^<\n]+)</arg_key>\s*<arg_value>")
_VALUE_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))")


def scan(text: str, at: int, tools: Sequence[ToolSpec]) -> Iterator[Block]:
    """Blocks of the format; see :data:`~drivetrain.tokens.parsers.base.TypedScan`."""
    while (start := text.find(_OPEN, at)) >= 0:
        block = _block(text, start, tools)
        yield block
        at = block.end


def _block(text: str, start: int, tools: Sequence[ToolSpec]) -> Block:
    body = start + len(_OPEN)
    name = _NAME.match(text, body)
    if name is None:
        return unread(text, start, body, _CLOSE)
    values: dict[str, str] = {}
    at = skip_space(text, name.end())
    while (key := _KEY.match(text, at)) is not None:
        end = _VALUE_END.search(text, key.end())
        if end is None:
            break
        values[key["key"]] = text[key.end() : end.start()]
        at = skip_space(text, end.end())
    if not text.startswith(_CLOSE, at):
        return unread(text, start, body, _CLOSE)
    end_at = at + len(_CLOSE)
    call = ParsedCall(name["name"], encode_arguments(tools, name["name"], values), (start, end_at))
    return Block(start, end_at, (call,))
