"""Gemma: ``<|tool_call>call:name{key:<|"|>text<|"|>,n:5}<tool_call|>`` (Gemma 4), other tags in FunctionGemma.

Keys are bare, strings stand between string tags and are never escaped, everything else is written as JSON does
(older templates write ``None``). Gemma 2 and 3 have no call format of their own: their templates render no tools.
Source: chat templates of Gemma 4 and DiffusionGemma in TRL; model card of FunctionGemma.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from drivetrain.tokens.parsers.base import Block, ParsedCall, skip_space, unread
from drivetrain.tokens.parsers.json_text import JsonError, dump, read_value

_HEAD = re.compile(r"\s*call:(?P<name>[^\s{}<>]+)(?=\{)")
_BARE = re.compile(r"[^,{}\[\]<>\s][^,{}\[\]<>\n]*")
_KEY = re.compile(r"(?P<key>[^:{}\[\],<>\n]+):")
_PYTHON = {"True": "true", "False": "false", "None": "null"}


class Tags(msgspec.Struct, frozen=True):
    """Tags around a call and around a string."""

    open: str
    close: str
    quote: str


GEMMA4 = Tags("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTIONGEMMA = Tags("<start_function_call>", "<end_function_call>", "<escape>")


def scan_gemma4(text: str, at: int) -> Iterator[Block]:
    """Blocks of Gemma 4."""
    return _scan(GEMMA4, text, at)


def scan_functiongemma(text: str, at: int) -> Iterator[Block]:
    """Blocks of FunctionGemma."""
    return _scan(FUNCTIONGEMMA, text, at)


def _scan(tags: Tags, text: str, at: int) -> Iterator[Block]:
    while (start := text.find(tags.open, at)) >= 0:
        block = _block(tags, text, start)
        yield block
        at = block.end


def _block(tags: Tags, text: str, start: int) -> Block:
    body = start + len(tags.open)
    head = _HEAD.match(text, body)
    if head is not None:
        try:
            arguments, end = _object(tags, text, head.end())
        except (JsonError, RecursionError):
            return unread(text, start, body, tags.close)
        close = skip_space(text, end)
        if text.startswith(tags.close, close):
            close += len(tags.close)
            return Block(start, close, (ParsedCall(head["name"], arguments, (start, close)),))
    return unread(text, start, body, tags.close)


def _value(tags: Tags, text: str, at: int) -> tuple[str, int]:
    """JSON text of the value at ``at`` and its end."""
    if text.startswith(tags.quote, at):
        string, end = _string(tags, text, at)
        return dump(string), end
    if text.startswith("{", at):
        return _object(tags, text, at)
    if text.startswith("[", at):
        return _array(tags, text, at)
    bare = _BARE.match(text, at)
    if bare is None:
        raise JsonError("no value")
    spelled = bare[0].rstrip()
    spelled = _PYTHON.get(spelled, spelled)
    if read_value(spelled, 0).end != len(spelled):
        raise JsonError("not one value")
    return spelled, bare.end()


def _string(tags: Tags, text: str, at: int) -> tuple[str, int]:
    start = at + len(tags.quote)
    end = text.find(tags.quote, start)
    if end < 0:
        raise JsonError("unterminated string")
    return text[start:end], end + len(tags.quote)


def _object(tags: Tags, text: str, at: int) -> tuple[str, int]:
    members: dict[str, str] = {}
    at = skip_space(text, at + 1)
    while not text.startswith("}", at):
        key, at = _key(tags, text, at)
        members[key], at = _value(tags, text, skip_space(text, at))
        at = _comma(text, at, "}")
    return "{" + ", ".join(f"{dump(key)}: {value}" for key, value in members.items()) + "}", at + 1


def _array(tags: Tags, text: str, at: int) -> tuple[str, int]:
    items: list[str] = []
    at = skip_space(text, at + 1)
    while not text.startswith("]", at):
        item, at = _value(tags, text, at)
        items.append(item)
        at = _comma(text, at, "]")
    return "[" + ", ".join(items) + "]", at + 1


def _key(tags: Tags, text: str, at: int) -> tuple[str, int]:
    if text.startswith(tags.quote, at):
        key, at = _string(tags, text, at)
        if text.startswith(":", at):
            return key, at + 1
        raise JsonError("no colon")
    bare = _KEY.match(text, at)
    if bare is None:
        raise JsonError("no key")
    return bare["key"], bare.end()


def _comma(text: str, at: int, close: str) -> int:
    at = skip_space(text, at)
    if text.startswith(",", at):
        return skip_space(text, at + 1)
    if not text.startswith(close, at):
        raise JsonError("no comma")
    return at
