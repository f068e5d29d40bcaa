"""Mistral: ``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``, or one ``[TOOL_CALLS]name[ARGS]{...}`` per call.

The newer form may carry ``[CALL_ID]id`` between name and arguments and may leave ``[ARGS]`` out.
Source: mistral-common tokenizers v3 (list), v11 and v13 (name and arguments); chat templates of Mistral Small,
Ministral and Devstral.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from drivetrain.tokens.parsers.base import Block, ParsedCall, skip_space
from drivetrain.tokens.parsers.json_text import CallKeys, JsonError, is_cut, read_calls, read_members

_TAG = "[TOOL_CALLS]"
_KEYS = CallKeys(required=True)
_HEAD = re.compile(r"\s*(?P<name>[^\s\[\]{}\"<>]+)\s*(?:\[CALL_ID\](?P<id>[^\s\[\]{}]*)\s*)?(?:\[ARGS\])?\s*(?=\{)")
_LIST = re.compile(r"\[\s*(?:[{\]]|\Z)")
_PART_OF_HEAD = re.compile(
    r"\s*[^\s\[\]{}\"<>]*\s*(?:\[CALL_ID\][^\s\[\]{}]*\s*)?"
    r"(?:\[(?:C(?:A(?:L(?:L(?:_(?:I(?:D)?)?)?)?)?)?|A(?:R(?:G(?:S)?)?)?)?|\[ARGS\])?\s*\Z"
)


def scan(text: str, at: int) -> Iterator[Block]:
    """Blocks of the format; see :data:`~drivetrain.tokens.parsers.base.Scan`."""
    while (start := text.find(_TAG, at)) >= 0:
        block = _block(text, start)
        yield block
        at = block.end


def _block(text: str, start: int) -> Block:
    body = skip_space(text, start + len(_TAG))
    head = _HEAD.match(text, body)
    value = body if head is None else head.end()
    if head is not None or _LIST.match(text, body):
        try:
            calls, end = _read(text, start, value, head)
        except JsonError:
            if is_cut(text, value):
                return Block(start, len(text), note="truncated_tool_call")
        else:
            if calls:
                return Block(start, end, tuple(calls))
    elif _PART_OF_HEAD.match(text, body):
        return Block(start, len(text), note="truncated_tool_call")
    following = text.find(_TAG, body)
    return Block(start, len(text) if following < 0 else following, note="malformed_tool_call")


def _read(text: str, start: int, value: int, head: re.Match[str] | None) -> tuple[Sequence[ParsedCall] | None, int]:
    if head is None:
        return read_calls(text, value, _KEYS)
    _, end = read_members(text, value)
    return [ParsedCall(head["name"], text[value:end], (start, end), head["id"] or "")], end
