"""What a parser returns, and how the pieces it found become content.

A call format is a *scan*: it yields the :class:`Block` regions of a text in order. :func:`assemble` cuts the blocks
that were read from the content and leaves the others where they are, so that nothing a policy sampled can vanish.
All positions are characters of the decoded text; :mod:`drivetrain.tokens.spans` maps them to tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from drivetrain.messages import ToolSpec

ParseNote = Literal["malformed_tool_call", "truncated_tool_call", "truncated_reasoning"]
Span = tuple[int, int]


class ParsedCall(msgspec.Struct, frozen=True):
    """A well-formed call.

    ``arguments`` is the text of a JSON object: exactly as sampled where the format is JSON. ``span`` is the call in
    the decoded text, without the tags around it where those are shared by several calls. ``id`` is the id that the
    policy itself gave to the call, in formats that have one.
    """

    name: str
    arguments: str
    span: Span = (0, 0)
    id: str = ""


class Parsed(msgspec.Struct, frozen=True):
    """What a completion says. ``notes`` name what could not be read and was left as text.

    ``content`` is the text of ``content_spans`` joined, ``reasoning`` that of ``reasoning_spans`` (joined by line
    breaks where a format has several messages in one turn).
    """

    content: str
    calls: tuple[ParsedCall, ...] = ()
    notes: tuple[ParseNote, ...] = ()
    reasoning: str = ""
    content_spans: tuple[Span, ...] = ()
    reasoning_spans: tuple[Span, ...] = ()


class Block(msgspec.Struct, frozen=True):
    """A region that is not plain content: calls that were read, or (``note``) one that could not be read."""

    start: int
    end: int
    calls: tuple[ParsedCall, ...] = ()
    note: ParseNote | None = None


Scan = Callable[[str, int], Iterator[Block]]
"""``scan(text, at)``: the blocks at or after ``at``, in order and disjoint."""

TypedScan = Callable[[str, int, Sequence[ToolSpec]], Iterator[Block]]
"""A scan that reads bare values by the schema of the tool they belong to."""


def skip_space(text: str, at: int) -> int:
    """First position at or after ``at`` that holds no white space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def unread(text: str, start: int, body: int, close: str) -> Block:
    """A call that could not be read: up to its close tag if that was sampled, else the rest of the text."""
    end = text.find(close, body)
    if end < 0:
        return Block(start, len(text), note="truncated_tool_call")
    return Block(start, end + len(close), note="malformed_tool_call")


def wrap(start: int, end: int, blocks: Sequence[Block]) -> list[Block]:
    """Blocks of one section: a single block with its tags if all was read, else the blocks alone."""
    edges = [start, *(position for block in blocks for position in (block.start, block.end)), end]
    if blocks and all(block.note is None for block in blocks) and edges == sorted(edges):
        return [Block(start, end, tuple(call for block in blocks for call in block.calls))]
    return list(blocks)


def assemble(
    text: str,
    at: int,
    blocks: Iterable[Block],
    *,
    reasoning: tuple[Span, ...] = (),
    notes: tuple[ParseNote, ...] = (),
) -> Parsed:
    """The result for ``text`` whose content begins at ``at``."""
    calls: list[ParsedCall] = []
    found: list[ParseNote] = list(notes)
    kept: list[Span] = []
    for block in blocks:
        if block.note is not None:
            found.append(block.note)
            continue
        kept.append((at, block.start))
        at = block.end
        calls += block.calls
    kept.append((at, len(text)))
    kept = [span for span in kept if span[0] < span[1]]
    if calls:
        kept = _trim(text, kept)
    return Parsed(
        content="".join(text[a:b] for a, b in kept),
        calls=tuple(calls),
        notes=tuple(found),
        reasoning="\n".join(text[a:b] for a, b in reasoning),
        content_spans=tuple(kept),
        reasoning_spans=reasoning,
    )


def _trim(text: str, spans: list[Span]) -> list[Span]:
    """Spans without the outer white space of their joined text."""
    spans = list(spans)
    while spans and not text[slice(*spans[0])].strip():
        spans.pop(0)
    while spans and not text[slice(*spans[-1])].strip():
        spans.pop()
    if spans:
        start, end = spans[0]
        spans[0] = (skip_space(text, start), end)
        start, end = spans[-1]
        spans[-1] = (start, start + len(text[start:end].rstrip()))
    return spans
