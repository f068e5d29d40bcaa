"""Ids of the Responses API, all derived from the id of one reply, so that a replay spells them again.

``resp_<reply>`` names the response, ``rs_``, ``msg_``, ``fc_`` and ``ctc_`` its items (reasoning, message, function and
custom tool calls; calls carry their index). Tool-call ids are another thing: they are the session's watermarks.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, cast

ItemKind = Literal["rs", "msg", "fc", "ctc"]
_RESPONSE = re.compile(r"resp_([0-9a-f]{24})")
_ITEM = re.compile(r"(rs|msg|fc|ctc)_([0-9a-f]{24})(?:_([0-9]{1,4}))?")
_SEAL = re.compile(r"drivetrain\.([0-9a-f]{24})")


class ItemId(NamedTuple):
    """What an item id of ours says; ``number`` counts the calls of the reply."""

    kind: ItemKind
    reply_id: str
    number: int


def response_id(reply_id: str) -> str:
    """Id of the response that carries a reply."""
    return f"resp_{reply_id}"


def read_response_id(text: str) -> str | None:
    """The reply a response id names, or None when the id is not of our form."""
    found = _RESPONSE.fullmatch(text)
    return found and found[1]


def item_id(kind: ItemKind, reply_id: str, index: int | None = None) -> str:
    """Id of an output item."""
    return f"{kind}_{reply_id}" if index is None else f"{kind}_{reply_id}_{index}"


def read_item_id(text: str) -> ItemId | None:
    """What an item id says, or None when it is not of our form (the API's own are longer)."""
    found = _ITEM.fullmatch(text)
    return found and ItemId(cast(ItemKind, found[1]), found[2], int(found[3] or 0))


def seal(reply_id: str) -> str:
    """``encrypted_content`` of a reasoning item: names the reply and carries nothing else."""
    return f"drivetrain.{reply_id}"


def read_seal(text: str) -> str | None:
    """The reply whose reasoning stands behind an ``encrypted_content``, or None when it is somebody else's."""
    found = _SEAL.fullmatch(text)
    return found and found[1]
