"""SIGTERM of a real gateway process: calls that run may finish, new ones are told to come back, nothing is lost."""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader
from tests.gateway.test_crash import ADMIN_KEY, Served, serve  # noqa: F401 (a fixture)


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """Keeps its connections: a client that hangs up may not have read its reply."""
    with httpx.Client(timeout=120) as client:
        yield client


def admin(served: Served, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{served.admin}/{path}", data, {"Authorization": f"Bearer {ADMIN_KEY}"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        answer: dict[str, Any] = json.load(reply)
        return answer


def wait_for(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def say(http: httpx.Client, served: Served, key: str, text: str) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": f"Bearer {key}"}
    return http.post(f"{served.url}/chat/completions", json=body, headers=headers)


class InFlight(threading.Thread):
    """A call that waits at the closed gate."""

    def __init__(self, http: httpx.Client, served: Served, key: str) -> None:
        super().__init__(daemon=True)
        self.http, self.served, self.key = http, served, key
        self.status = 0
        admin(served, "pause", {})
        self.start()
        wait_for(lambda: admin(served, "fence")["waiting"] == 1)

    def run(self) -> None:
        try:
            self.status = say(self.http, self.served, self.key, "in flight").status_code
        except httpx.TransportError:
            self.status = -1


def turns(folder: Path, session_id: str) -> list[bool]:
    """Whether each turn in the journal was delivered."""
    graph = JournalReader(folder / "journal.sqlite").graph(session_id, session_tag(session_id))
    return [turn.delivered for turn in graph]


def ended(served: Served) -> int:
    code = served.process.wait(120)
    served.kill()
    return code


def test_running_calls_finish_and_the_next_process_goes_on(serve: Any, http: httpx.Client, tmp_path: Path) -> None:  # noqa: F811
    served = serve("--stop-timeout", "900")
    opened = served.open_session()
    key, session_id = opened["api_key"], opened["session_id"]
    assert say(http, served, key, "first").status_code == 200
    call = InFlight(http, served, key)
    served.process.send_signal(signal.SIGTERM)

    wait_for(lambda: admin(served, "health")["status"] == "stopping")
    answer = say(http, served, key, "late")
    assert answer.status_code == 503 and 1 <= int(answer.headers["Retry-After"]) <= 900
    assert answer.json()["error"]["code"] == "shutting_down"
    assert served.process.poll() is None and not call.status
    admin(served, "resume", {"policy_version": 0})
    call.join(120)
    assert call.status == 200
    assert ended(served) == 0
    assert turns(tmp_path, session_id) == [True, True]

    # The same key, the same journal; this time the deadline passes, and sessions are to end.
    served = serve("--stop-timeout", "0.5", "--seal-on-stop")
    assert served.ready.startswith("1 sessions recovered")
    assert say(http, served, key, "third").status_code == 200
    call = InFlight(http, served, key)
    served.process.send_signal(signal.SIGTERM)
    call.join(120)
    assert call.status in (409, -1), "sealed, or cut off"
    assert ended(served) == 0
    assert turns(tmp_path, session_id) == [True, True, True]
    assert [session.state for session in JournalReader(tmp_path / "journal.sqlite").sessions()] == ["sealed"]


def test_a_second_signal_ends_at_once(serve: Any, http: httpx.Client, tmp_path: Path) -> None:  # noqa: F811
    served = serve("--stop-timeout", "3600")
    opened = served.open_session()
    assert say(http, served, opened["api_key"], "first").status_code == 200
    call = InFlight(http, served, opened["api_key"])
    served.process.send_signal(signal.SIGTERM)
    wait_for(lambda: admin(served, "health")["status"] == "stopping")
    assert served.process.poll() is None
    served.process.send_signal(signal.SIGTERM)
    assert ended(served) == 0
    assert not (tmp_path / "journal.sqlite-wal").exists(), "closed in order"
    call.join(120)
    assert call.status != 200
    assert turns(tmp_path, opened["session_id"]) == [True]
