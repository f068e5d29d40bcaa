"""Sections of special tokens around JSON arguments: DeepSeek V3 / R1 / V3.1 and Kimi K2. The grammar is data."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from drivetrain.tokens.parsers.base import Block, ParsedCall, skip_space, unread, wrap
from drivetrain.tokens.parsers.json_text import JsonError, read_members


class Section(msgspec.Struct, frozen=True):
    """One grammar: tags of the section and of a call, the head before the arguments (its group is
    the name) and the tail after them."""

    begin: str
    end: str
    call_begin: str
    call_end: str
    head: re.Pattern[str]
    tail: re.Pattern[str]


DEEPSEEK = Section(
    begin="<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    call_begin="<｜tool▁call▁begin｜>",
    call_end="<｜tool▁call▁end｜>",
    head=re.compile(r"\s*(?:function<｜tool▁sep｜>([^\s<>{}`]+)\s*```json\s*|([^\s<>{}`]+)\s*<｜tool▁sep｜>\s*)(?=\{)"),
    tail=re.compile(r"\s*(?:```)?\s*"),
)
"""``function<｜tool▁sep｜>name`` and a json fence (V3, R1), or ``name<｜tool▁sep｜>{...}`` (V3.1).

Source: chat templates of DeepSeek-V3, DeepSeek-R1 (and its distillations) and DeepSeek-V3.1.
"""

KIMI_K2 = Section(
    begin="<|tool_calls_section_begin|>",
    end="<|tool_calls_section_end|>",
    call_begin="<|tool_call_begin|>",
    call_end="<|tool_call_end|>",
    head=re.compile(
        r"\s*(?P<id>(?:functions\.)?(?P<name>[^\s<>{}:]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>\s*(?=\{)"
    ),
    tail=re.compile(r"\s*"),
)
"""``functions.name:0<|tool_call_argument_begin|>{...}``. Source: chat template and tool-call guide of Kimi-K2."""


def scan_deepseek(text: str, at: int) -> Iterator[Block]:
    """Blocks of :data:`DEEPSEEK`."""
    return scan(DEEPSEEK, text, at)


def scan_kimi_k2(text: str, at: int) -> Iterator[Block]:
    """Blocks of :data:`KIMI_K2`."""
    return scan(KIMI_K2, text, at)


def scan(section: Section, text: str, at: int) -> Iterator[Block]:
    """Blocks of a grammar; see :data:`~drivetrain.tokens.parsers.base.Scan`."""
    while (start := text.find(section.begin, at)) >= 0:
        blocks = _section(section, text, start)
        yield from blocks
        at = blocks[-1].end


def _section(section: Section, text: str, start: int) -> list[Block]:
    body = start + len(section.begin)
    at = skip_space(text, body)
    blocks: list[Block] = []
    while text.startswith(section.call_begin, at):
        blocks.append(_call(section, text, at))
        at = skip_space(text, blocks[-1].end)
    if not blocks:
        return [unread(text, start, body, section.end)]
    closed = text.startswith(section.end, at)
    return wrap(start, at + len(section.end) if closed else blocks[-1].end, blocks)


def _call(section: Section, text: str, start: int) -> Block:
    body = start + len(section.call_begin)
    head = section.head.match(text, body)
    if head is not None:
        try:
            _, end = read_members(text, head.end())
        except JsonError:
            return unread(text, start, body, section.call_end)
        tail = section.tail.match(text, end)
        close = end if tail is None else tail.end()
        if text.startswith(section.call_end, close):
            close += len(section.call_end)
            parts = head.groupdict()
            name = parts.get("name") or next(filter(None, head.groups()))
            return Block(start, close, (ParsedCall(name, text[head.end() : end], (start, close), parts.get("id", "")),))
    return unread(text, start, body, section.call_end)
