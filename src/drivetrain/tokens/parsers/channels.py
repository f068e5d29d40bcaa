"""Turns made of messages with headers: harmony (GPT-OSS) and Muse.

A turn is ``header<|message|>body`` over and over; the header of the first message begins in the prompt
(``<|start|>assistant``). The header says what the body is: reasoning, an answer, or a call to a tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from drivetrain.messages import ToolSpec
from drivetrain.tokens.parsers.base import Parsed, ParsedCall, ParseNote, Span, skip_space
from drivetrain.tokens.parsers.json_text import JsonError, is_cut, read_members
from drivetrain.tokens.parsers.markup import ATEM, read_block

_HEADER = re.compile(
    r"(?:<\|start\|>assistant)?(?P<role>[^<]*)"
    r"(?:<\|channel\|>(?P<channel>[^<]*)(?:<\|constrain\|>[^<]*)?)?<\|message\|>"
)
_CUT_HEADER = re.compile(
    r"(?:<\|start\|>assistant)?[^<]*(?:<\|channel\|>[^<]*)?(?:<\|constrain\|>[^<]*)?(?:<(?:\|[a-z]*\|?)?)?\Z"
)
_NEXT_HEADER = re.compile(r"<\|(?:start|channel)\|>")
_RECIPIENT = re.compile(r"(?:^|\s)to=(?P<name>[^\s<]+)")


class Header(msgspec.Struct, frozen=True):
    """Who a message is for, on which channel, and where its header begins and ends."""

    recipient: str
    channel: str
    start: int
    body: int


Kind = Literal["reasoning", "content", "call"]
ReadCall = Callable[[str, Header, Sequence[ToolSpec]], tuple[tuple[ParsedCall, ...], int] | ParseNote]


class Dialect(msgspec.Struct, frozen=True):
    """One format: tokens that end a message, what a header means, how the body of a call is read."""

    ends: re.Pattern[str]
    kind: Callable[[Header], Kind]
    call: ReadCall


def read(dialect: Dialect, text: str, tools: Sequence[ToolSpec], *, calls: bool) -> Parsed:
    """Read a turn; with ``calls`` off, calls are left in the content as they were sampled."""
    turn = _Turn(dialect, text, tools, calls)
    at = 0
    while at < len(text):
        at = turn.step(at)
    return turn.result()


class _Turn:
    """The messages of a turn, collected one by one."""

    def __init__(self, dialect: Dialect, text: str, tools: Sequence[ToolSpec], read_calls: bool) -> None:
        self._dialect, self._text, self._tools, self._read_calls = dialect, text, tools, read_calls
        self._content: list[Span] = []
        self._reasoning: list[Span] = []
        self._calls: list[ParsedCall] = []
        self._notes: list[ParseNote] = []

    def step(self, at: int) -> int:
        """Read what begins at ``at``; returns where the next message begins."""
        header = _header(self._text, at)
        if header is None:
            if _is_cut_call(self._text, at):
                self._notes.append("truncated_tool_call")
                self._content.append((at, len(self._text)))
                return len(self._text)
            following = _NEXT_HEADER.search(self._text, at + 1)
            end = len(self._text) if following is None else following.start()
            self._content.append((at, end))
            return end
        stop = self._dialect.ends.search(self._text, header.body)
        body_end = len(self._text) if stop is None else stop.start()
        end = body_end if stop is None or stop[0] == "<|start|>" else stop.end()
        kind = self._dialect.kind(header)
        if kind == "call":
            return self._call(header, end)
        if kind == "reasoning":
            self._reasoning.append((header.body, body_end))
            if stop is None:
                self._notes.append("truncated_reasoning")
        else:
            self._content.append((header.body, body_end))
        return end

    def _call(self, header: Header, end: int) -> int:
        found = self._dialect.call(self._text, header, self._tools) if self._read_calls else None
        if isinstance(found, tuple):
            calls, after = found
            stop = self._dialect.ends.match(self._text, skip_space(self._text, after))
            if stop is not None or not self._text[after:].strip():
                self._calls += calls
                if stop is None:
                    return len(self._text)
                return stop.start() if stop[0] == "<|start|>" else stop.end()
            found = "malformed_tool_call"
        if found is not None:
            self._notes.append(found)
        self._content.append((header.start, end))
        return end

    def result(self) -> Parsed:
        """What was collected; messages of a kind are joined by line breaks."""
        content, reasoning = _joined(self._content), _joined(self._reasoning)
        return Parsed(
            content="\n".join(self._text[a:b] for a, b in content),
            calls=tuple(self._calls),
            notes=tuple(self._notes),
            reasoning="\n".join(self._text[a:b] for a, b in reasoning),
            content_spans=tuple(content),
            reasoning_spans=tuple(reasoning),
        )


def _header(text: str, at: int) -> Header | None:
    match = _HEADER.match(text, at)
    if match is None:
        return None
    role, channel = match["role"] or "", match["channel"] or ""
    recipient = _RECIPIENT.search(channel) or _RECIPIENT.search(role)
    if not channel and recipient is None and not match[0].startswith("<|"):
        return None
    words = channel.split()
    return Header(recipient["name"] if recipient else "", words[0] if words else "", at, match.end())


def _is_cut_call(text: str, at: int) -> bool:
    """Whether the text ends inside the header of a call."""
    begins = text.startswith("<|", at) or (at == 0 and text.startswith(" to="))
    return begins and _CUT_HEADER.match(text, at) is not None and _RECIPIENT.search(text, at) is not None


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Spans without empty ones; those that touch are one."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif start < end:
            joined.append((start, end))
    return joined


def _harmony_kind(header: Header) -> Kind:
    if header.recipient not in ("", "user", "all"):
        return "call"
    return "reasoning" if header.channel == "analysis" else "content"


def _harmony_call(
    text: str, header: Header, _tools: Sequence[ToolSpec]
) -> tuple[tuple[ParsedCall, ...], int] | ParseNote:
    name = header.recipient.removeprefix("functions.")
    start = skip_space(text, header.body)
    if not name or name == header.recipient:
        return "malformed_tool_call"
    try:
        _, end = read_members(text, start)
    except JsonError:
        return "truncated_tool_call" if is_cut(text, start) else "malformed_tool_call"
    return (ParsedCall(name, text[start:end], (header.start, end)),), end


HARMONY = Dialect(re.compile(r"<\|(?:end|call|return|start)\|>"), _harmony_kind, _harmony_call)
"""``<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>`` with the recipient in either part
of the header; channels ``analysis`` (reasoning), ``commentary`` and ``final``.

``<|call|>`` ends generation, so that it may be missing: arguments are complete when their object is. Tools that are no
functions (``browser``, ``python``) surface as text. Source: OpenAI's harmony response format; template of GPT-OSS."""


def _muse_kind(header: Header) -> Kind:
    if header.recipient == "self":
        return "reasoning"
    return "content" if header.recipient in ("", "user") else "call"


def _muse_call(text: str, header: Header, tools: Sequence[ToolSpec]) -> tuple[tuple[ParsedCall, ...], int] | ParseNote:
    start = skip_space(text, header.body)
    if not text.startswith(ATEM.open, start):
        return "truncated_tool_call" if ATEM.open.startswith(text[start:]) else "malformed_tool_call"
    block = read_block(ATEM, text, start, tools)
    return block.note or (block.calls, block.end)


MUSE = Dialect(re.compile(r"<\|(?:eom|eot|start)\|>"), _muse_kind, _muse_call)
"""``to=self`` (reasoning), ``to=user`` (answer), ``to=tool`` with an ``<atem:function_calls>`` block, each message
ended by ``<|eom|>`` or ``<|eot|>``. Source: chat template of Muse Glimmer in TRL."""
