"""Sampled call arguments as the ``input`` object of a ``tool_use`` block, and back.

The API has objects only, so that whatever else was sampled travels as ``{"unparsed_arguments": "<the text>"}``: the
harness sees a well-formed call with wrong parameters and answers it as such, the call keeps its id, and the
conversation stays one chain (harnesses.md section 1.3: never a broken call).
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from drivetrain.gateway.dialects.surrogates import replace_lone_surrogates
from drivetrain.gateway.refusal import Refusal

UNPARSED = "unparsed_arguments"
_MAX_DEPTH = 100  # the official SDK's incremental parser gives up at 200


def input_json(arguments: str) -> str:
    """JSON text of an object: the arguments as they were sampled where they are one that every client can read."""
    try:
        value = json.loads(arguments, parse_constant=_refuse)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or _too_deep(value, _MAX_DEPTH):
        arguments = json.dumps({UNPARSED: arguments})
    return replace_lone_surrogates(arguments)


def arguments_of(raw: bytes, place: str) -> str:
    """The arguments of a ``tool_use`` block that comes back: its ``input`` as the harness spells it.

    Args:
        raw: valid JSON.
        place: where it stands, for errors.

    Raises:
        Refusal: no object.
        UnicodeDecodeError: not UTF-8.
    """
    text = raw.decode()
    if not text.startswith("{"):
        raise Refusal("invalid_request", f"{place}: must be an object.", param=place)
    if UNPARSED in text:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):  # a number of thousands of digits, or nested as deeply
            return text
        if len(value) == 1 and isinstance(value.get(UNPARSED), str):
            return str(value[UNPARSED])
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _too_deep(value: Any, left: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return left == 0 or any(_too_deep(item, left - 1) for item in value)
