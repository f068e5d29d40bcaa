"""Log reader of Gemini CLI: its ``stream-json`` events."""

from __future__ import annotations

import msgspec

from swe_rl_agent.last_word import LastWord
from swe_rl_agent.log_events import events_of


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""


class _Event(msgspec.Struct):
    type: str = ""
    status: str = ""
    message: str = ""
    error: _Error = msgspec.field(default_factory=_Error)


def gemini_json(stdout: bytes, native_log: bytes) -> LastWord:
    """The ``result`` event decides; an ``error`` event before it explains a result that names no cause.

    A turn limit of its own and a detected loop end with ``success`` after an ``error`` event.
    """
    del native_log
    result, cause = LastWord(""), ""
    for event in events_of(stdout, _Event, b'"error"', b'"result"'):
        if event.type == "error":
            cause = event.message
        elif event.type == "result":
            word = event.status
            if "session turns" in (cause + event.error.message):
                word = "max_turns"
            elif cause.startswith("Loop detected"):
                word = "loop"
            result = LastWord(word, event.error.message or cause)
    return result
