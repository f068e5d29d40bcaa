"""Log readers: the harness's own last word, from its event stream or trajectory.

Exit codes lie (Pi exits 0 on every failure in JSON mode, mini-swe-agent on repeated format errors), so the outcome is
read here; no word at all means that the harness died before it could say one.
"""

from __future__ import annotations

import msgspec


class LastWord(msgspec.Struct, frozen=True):
    """``word`` is the harness's own term ("" = none found), ``detail`` its message."""

    word: str
    detail: str = ""


class _Message(msgspec.Struct):
    role: str = ""
    stopReason: str = ""  # noqa: N815 - Pi's spelling
    errorMessage: str = ""  # noqa: N815


class _Event(msgspec.Struct):
    type: str = ""
    messages: list[_Message] = []
    success: bool = True
    finalError: str = ""  # noqa: N815


def pi_json(stdout: bytes, native_log: bytes) -> LastWord:
    """The last ``agent_end`` event decides, unless automatic retries ended without success after it."""
    del native_log
    result = LastWord("")
    decoder = msgspec.json.Decoder(_Event)
    for line in stdout.splitlines():
        if b'"agent_end"' not in line and b'"auto_retry_end"' not in line:
            continue
        try:
            event = decoder.decode(line)
        except msgspec.MsgspecError:  # the line a bounded log was cut in
            continue
        if event.type == "agent_end":
            answers = [message for message in event.messages if message.role == "assistant"]
            result = LastWord(answers[-1].stopReason, answers[-1].errorMessage) if answers else LastWord("")
        elif event.type == "auto_retry_end" and not event.success:
            result = LastWord("error", event.finalError or result.detail)
    return result


class _Info(msgspec.Struct):
    exit_status: str = ""


class _Step(msgspec.Struct):
    role: str = ""
    content: msgspec.Raw = msgspec.Raw(b'""')


class _Trajectory(msgspec.Struct):
    info: _Info = msgspec.field(default_factory=_Info)
    messages: list[_Step] = []


def mini_trajectory(stdout: bytes, native_log: bytes) -> LastWord:
    """``info.exit_status`` of the trajectory; it is rewritten after every step and empty until the end."""
    del stdout
    try:
        trajectory = msgspec.json.decode(native_log, type=_Trajectory)
    except msgspec.MsgspecError:
        return LastWord("")
    detail = ""
    if trajectory.messages and trajectory.messages[-1].role == "exit":
        detail = str(msgspec.json.decode(trajectory.messages[-1].content) or "")
    return LastWord(trajectory.info.exit_status, detail[:2000])
