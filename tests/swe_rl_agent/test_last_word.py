"""Outcomes are read from the harness's own words."""

from __future__ import annotations

import json

from swe_rl_agent.harness import scrub
from swe_rl_agent.last_word import LastWord, mini_trajectory, pi_json


def events(*items: dict[str, object]) -> bytes:
    return b"\n".join(json.dumps(item).encode() for item in items)


def end(reason: str, error: str = "") -> dict[str, object]:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "stopReason": reason, "errorMessage": error}]
    return {"type": "agent_end", "messages": messages}


def test_pi_the_last_agent_end_decides() -> None:
    assert pi_json(events(end("error", "500"), {"type": "auto_retry_start"}, end("stop")), b"") == LastWord("stop")
    assert pi_json(events(end("stop"), end("error", "gone")), b"") == LastWord("error", "gone")
    assert pi_json(events({"type": "message_end", "text": '"agent_end"'}), b"") == LastWord("")


def test_pi_exhausted_retries_are_an_error() -> None:
    gave_up = {"type": "auto_retry_end", "success": False, "attempt": 2, "finalError": "503 busy"}
    assert pi_json(events(end("stop"), gave_up), b"") == LastWord("error", "503 busy")
    assert pi_json(events(end("stop"), {"type": "auto_retry_end", "success": True}), b"") == LastWord("stop")


def test_pi_a_cut_line_is_not_a_word() -> None:
    assert pi_json(b'type":"agent_end"}\n' + events(end("stop")), b"") == LastWord("stop")
    assert pi_json(events(end("stop"))[:-5], b"") == LastWord("")


def test_mini_reads_the_trajectory() -> None:
    done = {"info": {"exit_status": "Submitted"}, "messages": [{"role": "exit", "content": "diff"}]}
    assert mini_trajectory(b"", json.dumps(done).encode()) == LastWord("Submitted", "diff")
    assert mini_trajectory(b"", b"") == LastWord("")
    assert mini_trajectory(b"", json.dumps({"info": {"exit_status": ""}, "messages": []}).encode()) == LastWord("")


def test_the_key_is_scrubbed() -> None:
    assert scrub(b'{"apiKey":"dt-secret-1"} dt-secret-1', "dt-secret-1") == b'{"apiKey":"<api_key>"} <api_key>'
