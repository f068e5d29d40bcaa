"""Sampled text -> content and tool calls. Malformed output surfaces as text, it never vanishes (design section 4)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Literal

import msgspec

from drivetrain.errors import ConfigError

ParseNote = Literal["malformed_tool_call", "truncated_tool_call"]

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_OPEN = "<tool_call>"


class ParsedCall(msgspec.Struct, frozen=True):
    """A well-formed call; ``arguments`` is the JSON object text exactly as sampled."""

    name: str
    arguments: str


class Parsed(msgspec.Struct, frozen=True):
    """What a completion says. ``notes`` name what could not be read as a call and was left in ``content``."""

    content: str
    calls: tuple[ParsedCall, ...] = ()
    notes: tuple[ParseNote, ...] = ()


Parser = Callable[[str], Parsed]


def parse_text(text: str) -> Parsed:
    """Plain text actions: the text is the reply (harnesses that read code blocks from it, and calls without tools)."""
    return Parsed(text)


def parse_hermes(text: str) -> Parsed:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` blocks (Hermes, Qwen2.5, Qwen3).

    Content is the text outside well-formed blocks, outer blanks next to a block removed. A block that is not such an
    object, or whose end was not sampled, stays in the content with a note.
    """
    calls: list[ParsedCall] = []
    notes: list[ParseNote] = []
    kept: list[str] = []
    cursor = 0
    for block in _BLOCK.finditer(text):
        call = _read_call(block.group(1))
        if call is None:
            notes.append("malformed_tool_call")
            continue
        kept.append(text[cursor : block.start()])
        cursor = block.end()
        calls.append(call)
    rest = text[cursor:]
    kept.append(rest)
    if _OPEN in _BLOCK.sub("", rest):
        notes.append("truncated_tool_call")
    content = "".join(kept).strip() if calls else text
    return Parsed(content, tuple(calls), tuple(notes))


def _read_call(body: str) -> ParsedCall | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ParsedCall(name, _arguments_text(body, arguments))


def _arguments_text(body: str, arguments: dict[str, object]) -> str:
    """The sampled spelling of the arguments object where it can be cut out, else its JSON."""
    at = re.search(r'"arguments"\s*:\s*', body)
    if at is not None:
        try:
            value, end = json.JSONDecoder().raw_decode(body, at.end())
        except ValueError:
            value, end = None, 0
        if value == arguments:
            return body[at.end() : end]
    return json.dumps(arguments, ensure_ascii=False)


_PARSERS: dict[str, Parser] = {"hermes": parse_hermes, "text": parse_text}


def get_parser(name: str) -> Parser:
    """Parser by name.

    Raises:
        ConfigError: no such parser.
    """
    try:
        return _PARSERS[name]
    except KeyError:
        raise ConfigError(f"no parser named {name!r}.", fix=f"Choose one of: {', '.join(sorted(_PARSERS))}.") from None
