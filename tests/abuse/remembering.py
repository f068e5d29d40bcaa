"""Reading a body with what a session remembers of earlier ones, and without: the result must be the same."""

from __future__ import annotations

from typing import Any

from drivetrain.gateway.dialects.base import WireRequest
from drivetrain.gateway.dialects.choose import DIALECTS
from drivetrain.gateway.memo import MessageMemo
from drivetrain.gateway.refusal import Refusal

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}


class _Memory:
    images = "placeholder"

    def __init__(self, memo: MessageMemo) -> None:
        self.memo = memo

    def conversation(self, reply_id: str) -> None:
        return None

    def requested(self, reply_id: str) -> None:
        return None


def read(dialect: str, path: str, body: bytes, memo: MessageMemo) -> tuple[str, Any]:
    """What a request is read as, in comparable form: messages, their keys and the tools, or why it is refused."""
    request = WireRequest(body=body, path=path.partition("?")[0], parts={"model": "m"})
    try:
        call = BY_NAME[dialect].decode(request, _Memory(memo))  # type: ignore[arg-type]
    except Refusal as refusal:
        return "refused", (refusal.code, str(refusal))
    return "read", (call.messages, call.keys, call.tools)
