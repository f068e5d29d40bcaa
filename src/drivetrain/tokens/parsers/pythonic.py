"""Pythonic calls: ``[f(a=1), g(b="x")]`` with literals only, read through :mod:`ast`; nothing is evaluated.

Llama 3.2 and 4 write the list as the whole turn; LFM2 puts it between ``<|tool_call_start|>`` and
``<|tool_call_end|>`` and writes JSON inside (``true``, ``null``). Positional arguments and expressions are malformed.
Source: the Llama 3.2 / 4 prompt format pages; chat templates of LFM2 and LFM2.5.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Any

from drivetrain.tokens.parsers.base import Block, ParsedCall, skip_space, unread
from drivetrain.tokens.parsers.json_text import JsonError, dump, valid_name

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_LOOKS = re.compile(r"\[\s*[^\W\d][\w.]*\(")
_NEWLINE = re.compile("\r\n|\r|\n")
_NAMES = {"true": True, "false": False, "null": None}
_FILE = "sampled_call"
# An unknown escape such as "\d" is read as it stands; sampled text is no place to warn about.
warnings.filterwarnings("ignore", category=SyntaxWarning, module=_FILE)


class _NotLiteral(ValueError):
    """More than calls with keyword literals."""


def scan_llama(text: str, at: int) -> Iterator[Block]:
    """The turn begins with a list of calls (Llama); what follows the list is content."""
    start = skip_space(text, at)
    if _LOOKS.match(text, start) is None:
        return
    end = _list_end(text, start)
    if end is None:
        yield Block(start, len(text), note="truncated_tool_call")
        return
    calls = _read_list(text, start, end)
    yield Block(start, end, tuple(calls)) if calls else Block(start, end, note="malformed_tool_call")


def scan_lfm2(text: str, at: int) -> Iterator[Block]:
    """Lists between the tags of LFM2."""
    while (start := text.find(_OPEN, at)) >= 0:
        block = _tagged(text, start)
        yield block
        at = block.end


def _tagged(text: str, start: int) -> Block:
    body = start + len(_OPEN)
    begin = skip_space(text, body)
    end = _list_end(text, begin)
    if end is not None:
        close = skip_space(text, end)
        calls = _read_list(text, begin, end) if text.startswith(_CLOSE, close) else None
        if calls:
            return Block(start, close + len(_CLOSE), tuple(calls))
    return unread(text, start, body, _CLOSE)


def _list_end(text: str, at: int) -> int | None:
    """Position after the bracket that closes the one at ``at``; brackets in strings do not count."""
    if not text.startswith("[", at):
        return None
    depth, quote = 0, ""
    position = at
    while position < len(text):
        char = text[position]
        if quote:
            if char == "\\":
                position += 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in "[({":
            depth += 1
        elif char in "])}":
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return None


def _read_list(text: str, start: int, end: int) -> list[ParsedCall] | None:
    source = text[start:end]
    try:
        tree = ast.parse(source, filename=_FILE, mode="eval").body
        if not isinstance(tree, ast.List):
            return None
        place = _Places(source, start)
        return [_read_call(node, place) for node in tree.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Places:
    """From lines and UTF-8 columns of ``ast`` to characters of the text."""

    def __init__(self, source: str, offset: int) -> None:
        self._source = source
        self._offset = offset
        self._lines = [0, *(match.end() for match in _NEWLINE.finditer(source))]

    def at(self, line: int, column: int) -> int:
        """Character of the text."""
        return self._offset + self._local(line, column)

    def spelled(self, node: ast.expr) -> str:
        """Source of a node."""
        end = self._local(node.end_lineno or 0, node.end_col_offset or 0)
        return self._source[self._local(node.lineno, node.col_offset) : end]

    def _local(self, line: int, column: int) -> int:
        start = self._lines[line - 1]
        return start + len(self._source[start : start + column].encode()[:column].decode(errors="ignore"))


def _read_call(node: ast.expr, places: _Places) -> ParsedCall:
    if not isinstance(node, ast.Call) or node.args:
        raise _NotLiteral
    name = places.spelled(node.func)
    if not all(part.isidentifier() for part in name.split(".")) or not valid_name(name):
        raise _NotLiteral
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise _NotLiteral
        arguments[keyword.arg] = _literal(keyword.value)
    try:
        text = dump(arguments)
    except JsonError as error:
        raise _NotLiteral from error
    span = places.at(node.lineno, node.col_offset), places.at(node.end_lineno or 0, node.end_col_offset or 0)
    return ParsedCall(name, text, span)


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(
            value, bool
        ):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _literal(value) for key, value in zip(keys, values, strict=True)}
        case _:
            raise _NotLiteral


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise _NotLiteral
