"""XML-like calls with one tag per parameter: Qwen3-Coder, MiniMax M2, Muse. The grammar is data.

Values are bare text. A value ends at the first close tag that is followed by the next parameter or by the end of the
call, so that a value may hold the tags themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from drivetrain.messages import ToolSpec
from drivetrain.tokens.parsers.base import Block, ParsedCall, skip_space, unread
from drivetrain.tokens.parsers.typed_values import encode_arguments


class Grammar(msgspec.Struct, frozen=True):
    """One markup.

    ``invoke`` and ``parameter`` are patterns of open tags whose group ``name`` is the name; ``value_end`` is the
    pattern of a parameter's close tag with what must follow it. ``padded``: one line break on either side of a value
    belongs to the tags.
    """

    open: str
    close: str
    invoke: re.Pattern[str]
    invoke_close: str
    parameter: re.Pattern[str]
    value_end: re.Pattern[str]
    padded: bool


QWEN_XML = Grammar(
    open="<tool_call>",
    close="</tool_call>",
    invoke=re.compile(r"<function=(?P<name>[^\s<>]+)>"),
    invoke_close="</function>",
    parameter=re.compile(r"<parameter=(?P<name>[^<>\n]+)>"),
    value_end=re.compile(r"</parameter>(?=\s*(?:<parameter=[^<>\n]+>|</function>\s*</tool_call>))"),
    padded=True,
)
"""``<tool_call><function=f><parameter=x>value</parameter></function></tool_call>``

Source: chat templates of Qwen3-Coder, Qwen3.5, Qwen3.6, Qwen3.8 and Nemotron 3.
"""

MINIMAX = Grammar(
    open="<minimax:tool_call>",
    close="</minimax:tool_call>",
    invoke=re.compile(r'<invoke name="(?P<name>[^"<>\n]+)">'),
    invoke_close="</invoke>",
    parameter=re.compile(r'<parameter name="(?P<name>[^"<>\n]+)">'),
    value_end=re.compile(
        r'</parameter>(?=\s*(?:<parameter name="[^"<>\n]+">|</invoke>\s*(?:<invoke name=|</minimax:tool_call>)))'
    ),
    padded=False,
)
"""``<minimax:tool_call><invoke name="f"><parameter name="x">value</parameter></invoke></minimax:tool_call>``

Source: chat template and tool-calling guide of MiniMax-M2.
"""

ATEM = Grammar(
    open="<atem:function_calls>",
    close="</atem:function_calls>",
    invoke=re.compile(r'<atem:invoke name="(?P<name>[^"<>\n]+)">'),
    invoke_close="</atem:invoke>",
    parameter=re.compile(r'<atem:parameter name="(?P<name>[^"<>\n]+)">'),
    value_end=re.compile(
        r'</atem:parameter>(?=\s*(?:<atem:parameter name="[^"<>\n]+">|'
        r"</atem:invoke>\s*(?:<atem:invoke name=|</atem:function_calls>)))"
    ),
    padded=False,
)
"""As MiniMax, in the ``atem`` name space. Source: chat template of Muse Glimmer in TRL."""


def scan_qwen_xml(text: str, at: int, tools: Sequence[ToolSpec]) -> Iterator[Block]:
    """Blocks of :data:`QWEN_XML`."""
    return scan(QWEN_XML, text, at, tools)


def scan_minimax(text: str, at: int, tools: Sequence[ToolSpec]) -> Iterator[Block]:
    """Blocks of :data:`MINIMAX`."""
    return scan(MINIMAX, text, at, tools)


def scan(grammar: Grammar, text: str, at: int, tools: Sequence[ToolSpec]) -> Iterator[Block]:
    """Blocks of a grammar; see :data:`~drivetrain.tokens.parsers.base.TypedScan`."""
    while (start := text.find(grammar.open, at)) >= 0:
        block = read_block(grammar, text, start, tools)
        yield block
        at = block.end


def read_block(grammar: Grammar, text: str, start: int, tools: Sequence[ToolSpec]) -> Block:
    """The block whose open tag is at ``start``."""
    body = start + len(grammar.open)
    at = skip_space(text, body)
    calls: list[ParsedCall] = []
    while (invoke := grammar.invoke.match(text, at)) is not None:
        call = _read_call(grammar, text, invoke, tools)
        if call is None:
            return unread(text, start, body, grammar.close)
        calls.append(call)
        at = skip_space(text, call.span[1])
    if not calls or not text.startswith(grammar.close, at):
        return unread(text, start, body, grammar.close)
    return Block(start, at + len(grammar.close), tuple(calls))


def _read_call(grammar: Grammar, text: str, invoke: re.Match[str], tools: Sequence[ToolSpec]) -> ParsedCall | None:
    values: dict[str, str] = {}
    at = skip_space(text, invoke.end())
    while (parameter := grammar.parameter.match(text, at)) is not None:
        end = grammar.value_end.search(text, parameter.end())
        if end is None:
            return None
        value = text[parameter.end() : end.start()]
        values[parameter["name"]] = _unpad(value) if grammar.padded else value
        at = skip_space(text, end.end())
    if not text.startswith(grammar.invoke_close, at):
        return None
    end_at = at + len(grammar.invoke_close)
    return ParsedCall(invoke["name"], encode_arguments(tools, invoke["name"], values), (invoke.start(), end_at))


def _unpad(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")
