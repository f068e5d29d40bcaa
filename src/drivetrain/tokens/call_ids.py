"""Tool-call ids as a model knows them.

Ids on the wire are ours (they recognise a turn); some templates write ids into the prompt, and their models expect
their own form there, the id the policy itself sampled first of all.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from drivetrain.messages import Message, ToolCall

IdStyle = Literal["any", "nine", "kimi"]
"""``any``: the template takes every id. ``nine``: nine letters and digits, others raise (Mistral). ``kimi``:
``functions.NAME:N``, counted over the conversation (tool-call guide of Kimi-K2)."""

_NINE = re.compile(r"[A-Za-z0-9]{9}")
_KIMI = re.compile(r"functions\.\S+:\d+")
_LETTERS = string.ascii_letters + string.digits


def in_style(messages: Sequence[Message], style: IdStyle) -> Sequence[Message]:
    """The conversation with its ids in the model's form; ids that have it stay, equal ids stay equal."""
    if style == "any":
        return messages
    ids: dict[str, str] = {}
    calls = [call for message in messages for call in message.tool_calls]
    for number, call in enumerate(calls):
        ids.setdefault(call.id, _nine(call.id) if style == "nine" else _kimi(call, number))
    if style == "nine":
        ids |= {m.tool_call_id: _nine(m.tool_call_id) for m in messages if m.role == "tool"}
    return [rename(message, ids) for message in messages]


def rename(message: Message, ids: Mapping[str, str]) -> Message:
    """A message with its ids replaced where ``ids`` knows them."""
    if message.tool_calls:
        calls = tuple(msgspec.structs.replace(c, id=ids.get(c.id, c.id)) for c in message.tool_calls)
        return msgspec.structs.replace(message, tool_calls=calls)
    if message.role == "tool" and message.tool_call_id in ids:
        return msgspec.structs.replace(message, tool_call_id=ids[message.tool_call_id])
    return message


def _nine(call_id: str) -> str:
    if _NINE.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode()).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:9])


def _kimi(call: ToolCall, number: int) -> str:
    return call.id if _KIMI.fullmatch(call.id) else f"functions.{call.name}:{number}"
