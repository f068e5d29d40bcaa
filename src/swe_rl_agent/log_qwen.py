"""Log reader of Qwen Code: its ``stream-json`` events."""

from __future__ import annotations

import msgspec

from swe_rl_agent.last_word import LastWord
from swe_rl_agent.log_events import events_of


class _Error(msgspec.Struct):
    message: str = ""


class _Event(msgspec.Struct):
    type: str = ""
    subtype: str = ""
    is_error: bool = False
    parent_tool_use_id: str | None = None
    result: str = ""
    error: _Error = msgspec.field(default_factory=_Error)


def qwen_json(stdout: bytes, native_log: bytes) -> LastWord:
    """The ``subtype`` of the last ``result`` event; those of sub-agents do not count."""
    del native_log
    last = LastWord("")
    for event in events_of(stdout, _Event, b'"result"'):
        if event.type == "result" and not event.parent_tool_use_id:
            last = LastWord(event.subtype, event.error.message)
    return last
