"""JSON inside sampled text: values with their positions, and whether a broken one was merely cut."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from drivetrain.tokens.parsers.base import ParsedCall, skip_space

_CUT = re.compile(r"(?:[+\-.eE]{0,2}|t|tr|tru|f|fa|fal|fals|n|nu|nul|N|I|\\u[0-9a-fA-F]{0,4}|u[0-9a-fA-F]{0,4})\s*\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_IN_NAME = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class JsonError(ValueError):
    """No JSON value here."""


def _refuse(constant: str) -> NoReturn:
    raise JsonError(f"{constant} is not JSON")


_decode = json.JSONDecoder(parse_constant=_refuse).raw_decode


class Slot(msgspec.Struct, frozen=True):
    """A value and where it is spelled."""

    value: Any
    start: int
    end: int


def dump(value: Any) -> str:
    """JSON text that survives UTF-8: readable, lone surrogates escaped.

    Raises:
        JsonError: not a JSON value (infinite, too deep, not a JSON type).
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise JsonError(str(error)) from error
    return json.dumps(value) if _SURROGATE.search(text) else text


def read_value(text: str, at: int) -> Slot:
    """The JSON value that begins at ``at``; strict: no NaN, no Infinity.

    Raises:
        JsonError: none begins there.
    """
    try:
        value, end = _decode(text, at)
    except (ValueError, RecursionError) as error:
        raise JsonError(str(error)) from error
    return Slot(value, at, end)


def is_cut(text: str, at: int) -> bool:
    """Whether what begins at ``at`` is the beginning of a JSON value that runs into the end of the text."""
    try:
        _decode(text, at)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string") or bool(_CUT.match(text, error.pos))
    except (ValueError, RecursionError):
        return False
    return False


def read_members(text: str, at: int) -> tuple[dict[str, Slot], int]:
    """The members of the object at ``at`` with their positions, and its end; of equal keys the last counts.

    Raises:
        JsonError: no object begins there.
    """
    whole = read_value(text, at)
    if not isinstance(whole.value, dict):
        raise JsonError("not an object")
    members: dict[str, Slot] = {}
    at = skip_space(text, at + 1)
    while text[at] != "}":
        key = read_value(text, at)
        member = read_value(text, skip_space(text, skip_space(text, key.end) + 1))
        members[key.value] = member
        at = skip_space(text, member.end)
        if text[at] == ",":
            at = skip_space(text, at + 1)
    return members, whole.end


class CallKeys(msgspec.Struct, frozen=True):
    """How a format names the members of a call object; ``required``: a call must carry arguments."""

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments",)
    required: bool = False


def valid_name(name: object) -> bool:
    """Whether a tool name can be sent to a harness."""
    return isinstance(name, str) and bool(name.strip()) and not _NOT_IN_NAME.search(name)


def read_call(text: str, at: int, keys: CallKeys) -> tuple[ParsedCall | None, int]:
    """The call object at ``at`` (None: an object, but no call) and its end.

    Raises:
        JsonError: no object begins there.
    """
    members, end = read_members(text, at)
    name = members.get(keys.name)
    slot = next((members[key] for key in keys.arguments if key in members), None)
    if name is None or not valid_name(name.value) or (slot is None and keys.required):
        return None, end
    own = members.get("id")
    call_id = own.value if own is not None and isinstance(own.value, str) else ""
    if slot is None:
        return ParsedCall(name.value, "{}", (at, end), call_id), end
    if not isinstance(slot.value, dict):
        return None, end
    return ParsedCall(name.value, text[slot.start : slot.end], (at, end), call_id), end


def read_calls(text: str, at: int, keys: CallKeys) -> tuple[Sequence[ParsedCall] | None, int]:
    """The list of call objects at ``at`` (None: a list, but not of calls) and its end.

    Raises:
        JsonError: no list begins there.
    """
    whole = read_value(text, at)
    if not isinstance(whole.value, list):
        raise JsonError("not a list")
    calls: list[ParsedCall] = []
    at = skip_space(text, at + 1)
    for item in whole.value:
        if not isinstance(item, dict):
            return None, whole.end
        call, at = read_call(text, at, keys)
        if call is None:
            return None, whole.end
        calls.append(call)
        at = skip_space(text, skip_space(text, at) + 1)
    return calls or None, whole.end
