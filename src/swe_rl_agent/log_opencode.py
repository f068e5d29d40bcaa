"""Log reader of OpenCode: the events of ``run --format json``."""

from __future__ import annotations

import msgspec

from swe_rl_agent.last_word import LastWord
from swe_rl_agent.log_events import events_of


class _Part(msgspec.Struct):
    reason: str = ""


class _Data(msgspec.Struct):
    message: str = ""


class _Error(msgspec.Struct):
    name: str = ""
    data: _Data = msgspec.field(default_factory=_Data)


class _Event(msgspec.Struct):
    type: str = ""
    part: _Part = msgspec.field(default_factory=_Part)
    error: _Error = msgspec.field(default_factory=_Error)


def opencode_json(stdout: bytes, native_log: bytes) -> LastWord:
    """The last of ``step_finish`` (its reason) and ``error``: a step that follows an error recovered from it."""
    del native_log
    last = LastWord("")
    for event in events_of(stdout, _Event, b'"step_finish"', b'"error"'):
        if event.type == "step_finish":
            last = LastWord(event.part.reason)
        elif event.type == "error":
            last = LastWord("error", f"{event.error.name}: {event.error.data.message}")
    return last
