"""Cohere: ``<|START_ACTION|>[{"tool_name": ..., "parameters": {...}}]<|END_ACTION|>``, or ``Action:`` and a json fence.

``<|START_RESPONSE|>`` and ``<|END_RESPONSE|>`` around an answer are dropped.
Source: chat templates of Command R, Command R7B and Command A (tool use).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from drivetrain.tokens.parsers.base import Block, skip_space, unread
from drivetrain.tokens.parsers.json_text import CallKeys, JsonError, read_calls

_MARK = re.compile(r"<\|(?:START|END)_RESPONSE\|>|<\|START_ACTION\|>|^Action:\s*```json(?=\s)", re.MULTILINE)
_KEYS = CallKeys(name="tool_name", arguments=("parameters",))


def scan(text: str, at: int) -> Iterator[Block]:
    """Blocks of the format; see :data:`~drivetrain.tokens.parsers.base.Scan`."""
    while (mark := _MARK.search(text, at)) is not None:
        block = Block(mark.start(), mark.end()) if mark[0].endswith("RESPONSE|>") else _block(text, mark)
        yield block
        at = block.end


def _block(text: str, mark: re.Match[str]) -> Block:
    close = "<|END_ACTION|>" if mark[0].startswith("<") else "```"
    try:
        calls, end = read_calls(text, skip_space(text, mark.end()), _KEYS)
    except JsonError:
        return unread(text, mark.start(), mark.end(), close)
    end = skip_space(text, end)
    if calls is not None and text.startswith(close, end):
        return Block(mark.start(), end + len(close), tuple(calls))
    return unread(text, mark.start(), mark.end(), close)
