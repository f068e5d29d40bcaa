"""Claude Code's last word: the ``result`` event of ``--output-format stream-json`` (harnesses.md section 8.3)."""

from __future__ import annotations

import msgspec

from swe_rl_agent.last_word import LastWord


class _Result(msgspec.Struct):
    type: str = ""
    subtype: str = ""
    is_error: bool = False
    result: str = ""
    stop_reason: str | None = None
    errors: list[str] = []


def claude_stream_json(stdout: bytes, native_log: bytes) -> LastWord:
    """``error`` where the last result says ``is_error`` (its ``subtype`` says ``success`` even then), else the subtype.

    An answer that was cut at its token limit is ``max_tokens``.
    """
    del native_log
    last = LastWord("")
    decoder = msgspec.json.Decoder(_Result)
    for line in stdout.splitlines():
        if b'"result"' not in line:
            continue
        try:
            event = decoder.decode(line)
        except msgspec.MsgspecError:  # another event with a field of that name, or the line a bounded log was cut in
            continue
        if event.type == "result":
            last = _word(event)
    return last


def _word(event: _Result) -> LastWord:
    detail = event.result or "; ".join(event.errors)
    if event.is_error and event.subtype in ("", "success"):
        return LastWord("error", detail)
    if event.subtype == "success" and event.stop_reason == "max_tokens":
        return LastWord("max_tokens", detail)
    return LastWord(event.subtype, detail)
