"""Tool-call ids that encode the turn which produced them.

Every measured harness returns our ids unchanged (harnesses.md section 1.4), so an id recognises a recorded turn even
where the harness re-serialised, rounded or re-ordered the arguments. An id alone is no proof: the path above the turn
must match too.
"""

from __future__ import annotations

import re
import secrets

_PATTERN = re.compile(r"call_([0-9a-f]{8})t([0-9a-f]{4,})c([0-9a-f]{2,})")


def mint_call_id(session_tag: str, turn_id: int, index: int) -> str:
    """Id of call ``index`` of a turn; ``session_tag`` is 8 hex digits that are no secret."""
    return f"call_{session_tag}t{turn_id:04x}c{index:02x}"


def mint_reply_id(session_tag: str) -> str:
    """Id of a reply, known before its turn is; dialects put their own prefix in front."""
    return f"{session_tag}{secrets.token_hex(8)}"


def read_call_id(call_id: str, session_tag: str) -> tuple[int, int] | None:
    """``(turn_id, index)`` of an id minted by this session, else None."""
    match = _PATTERN.fullmatch(call_id)
    if match is None or match[1] != session_tag:
        return None
    return int(match[2], 16), int(match[3], 16)
