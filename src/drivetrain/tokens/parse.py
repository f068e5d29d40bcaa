"""Sampled text -> reasoning, content and tool calls. Malformed output surfaces as text (design section 4, "Parse").

>>> get_parser("think+hermes")('<think>so</think>Go. <tool_call>{"name": "ls", "arguments": {}}</tool_call>').content
'Go.'
"""

from __future__ import annotations

from drivetrain.tokens.parsers.base import Parsed, ParsedCall, ParseNote, Span
from drivetrain.tokens.parsers.choose import Choice, choose_parser, explain_choice
from drivetrain.tokens.parsers.registry import Parser, get_parser

__all__ = [
    "Choice",
    "ParseNote",
    "Parsed",
    "ParsedCall",
    "Parser",
    "Span",
    "choose_parser",
    "explain_choice",
    "get_parser",
    "parse_hermes",
    "parse_text",
]

parse_hermes = get_parser("hermes")
"""``<tool_call>{...}</tool_call>`` blocks, no reasoning; see :mod:`drivetrain.tokens.parsers.hermes`."""

parse_text = get_parser("text")
"""Plain text actions: the text is the reply (harnesses that read code blocks from it, and calls without tools)."""
