"""Llama 3 JSON: ``{"name": ..., "parameters": {...}}`` as the whole turn, or after ``<|python_tag|>``.

Several objects may follow each other, separated by ``;``. Objects are read from the beginning of the turn; what
follows the last one is content. JSON that carries no parameters is an answer, not a call.
Source: chat templates of Llama 3.1, 3.2 and 3.3 (calls of builtin tools, ``<|python_tag|>tool.call(...)``, are not JSON
and surface as text).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from drivetrain.tokens.parsers.base import Block, skip_space
from drivetrain.tokens.parsers.json_text import CallKeys, JsonError, is_cut, read_call

_TAG = "<|python_tag|>"
_KEYS = CallKeys(arguments=("parameters", "arguments"), required=True)
_LOOKS = re.compile(r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:')
_NEXT = re.compile(r"\s*;?\s*(?=\{)")


def scan(text: str, at: int) -> Iterator[Block]:
    """Blocks of the format; see :data:`~drivetrain.tokens.parsers.base.Scan`."""
    begin = skip_space(text, at)
    if text.startswith("{", begin):
        yield from _objects(text, begin, begin, tagged=False)
        return
    start = text.find(_TAG, at)
    if start >= 0:
        yield from _objects(text, start, skip_space(text, start + len(_TAG)), tagged=True)


def _objects(text: str, start: int, at: int, *, tagged: bool) -> Iterator[Block]:
    while True:
        try:
            call, end = read_call(text, at, _KEYS)
        except JsonError:
            if tagged or _LOOKS.match(text, at):
                cut = at >= len(text) or is_cut(text, at)
                yield Block(start, len(text), note="truncated_tool_call" if cut else "malformed_tool_call")
            return
        if call is None:
            if tagged or '"parameters"' in text[at:end]:
                yield Block(start, end, note="malformed_tool_call")
            return
        yield Block(start, end, (call,))
        following = _NEXT.match(text, end)
        if following is None:
            return
        start, at, tagged = end, following.end(), False
