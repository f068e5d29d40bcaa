"""Codex's last word: the last ``turn.completed`` or ``turn.failed`` event of ``codex exec --json``."""

from __future__ import annotations

import msgspec

from swe_rl_agent.last_word import LastWord


class _Error(msgspec.Struct):
    message: str = ""


class _Event(msgspec.Struct):
    type: str = ""
    error: _Error | None = None


def codex_json(stdout: bytes, native_log: bytes) -> LastWord:
    """``completed``, or ``failed`` with Codex's message; ``error`` events before them are attempts that it repeats.

    An answer that was cut at its token limit fails the turn (harnesses.md section 6): ``max_output_tokens``.
    """
    del native_log
    last = LastWord("")
    decoder = msgspec.json.Decoder(_Event)
    for line in stdout.splitlines():
        if b'"turn.' not in line:
            continue
        try:
            event = decoder.decode(line)
        except msgspec.MsgspecError:  # the line a bounded log was cut in
            continue
        if event.type == "turn.completed":
            last = LastWord("completed")
        elif event.type == "turn.failed":
            last = _failed(event.error.message if event.error else "")
    return last


def _failed(message: str) -> LastWord:
    cut = message.startswith("Incomplete response") and "max_output_tokens" in message
    return LastWord("max_output_tokens" if cut else "failed", message)
