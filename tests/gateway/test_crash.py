"""kill -9 of a real gateway process: the same key continues and no committed turn is missing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader
from drivetrain.trace.sample import rows_of
from drivetrain.trace.validate import check_graph, check_rows
from tests.gateway.conftest import BASH, bash_call

ADMIN_KEY = "admin-key-for-the-crash-test"
USER = {"role": "user", "content": "fix the bug"}


class Served:
    """A `drivetrain serve` process."""

    def __init__(self, model: ModelDir, folder: Path, *more: str) -> None:
        script = folder / "script.json"
        script.write_text(json.dumps([bash_call(f"step {i}") for i in range(6)]))
        command = [sys.executable, "-c", "from drivetrain.cli.main import main; main()", "serve"]
        options = ["--model", str(model.path), "--journal", str(folder / "journal.sqlite"), "--script", str(script)]
        self.process = subprocess.Popen(
            [*command, *options, "--port", "0", "--admin-port", "0", *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "DRIVETRAIN_ADMIN_KEY": ADMIN_KEY},
        )
        assert self.process.stdout is not None
        lines: dict[str, str] = {}
        for line in self.process.stdout:
            name, _, rest = line.partition(" ")
            lines[name] = rest.strip()
            if name == "ready:":
                break
        assert "ready:" in lines, self.process.stderr.read() if self.process.stderr else ""
        self.url, self.admin, self.ready = lines["harness"], lines["admin"], lines["ready:"]

    def open_session(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        request = urllib.request.Request(f"{self.admin}/sessions", data=b"{}", headers=headers)
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert reply.status == 201
            return json.load(reply)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def serve(tiny_model: ModelDir, tmp_path: Path) -> Iterator[Any]:
    running: list[Served] = []

    def start(*more: str) -> Served:
        running.append(Served(tiny_model, tmp_path, *more))
        return running[-1]

    yield start
    for served in running:
        if served.process.poll() is None:
            served.kill()


def one_turn(served: Served, key: str, history: list[dict[str, Any]]) -> None:
    client = openai.OpenAI(base_url=served.url, api_key=key, max_retries=0, timeout=20)
    done = client.chat.completions.create(model="m", messages=history, tools=[BASH])  # type: ignore[call-overload]
    message = done.choices[0].message
    calls = [call.model_dump() for call in message.tool_calls]
    history.append({"role": "assistant", "content": message.content, "tool_calls": calls})
    history.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": "output"})


def test_kill_between_two_turns(serve: Any, tmp_path: Path) -> None:
    served = serve()
    opened = served.open_session()
    history: list[dict[str, Any]] = [USER]
    for _ in range(2):
        one_turn(served, opened["api_key"], history)
    served.kill()

    served = serve()
    assert served.ready.startswith("1 sessions recovered")
    for _ in range(2):
        one_turn(served, opened["api_key"], history)
    with pytest.raises(openai.AuthenticationError):
        one_turn(served, "dt-wrong", list(history))
    served.kill()

    graph = JournalReader(tmp_path / "journal.sqlite").graph(opened["session_id"], session_tag(opened["session_id"]))
    assert [(turn.id, turn.link) for turn in graph] == [(0, "root"), (1, "linear"), (2, "linear"), (3, "linear")]
    assert check_graph(graph) == []
    rows = rows_of(graph)
    assert check_rows(graph, rows) == []
    assert len(rows) == 1


def test_every_acknowledged_turn_survives_kills_at_random_moments(serve: Any, tmp_path: Path) -> None:
    """Clients hammer the gateway while it is killed; each reply a client saw is in the journal, once."""
    seen: list[str] = []
    served = serve()
    keys = [served.open_session() for _ in range(3)]

    async def hammer(key: str, name: str, url: str) -> None:
        client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=5)
        for number in range(200):
            text = {"role": "user", "content": f"{name} {number} {len(seen)}"}
            try:
                done = await client.chat.completions.create(model="m", messages=[text])
            except openai.APIConnectionError:
                return
            seen.append(done.id)

    async def round_of(url: str, more: int) -> None:
        work = [asyncio.create_task(hammer(o["api_key"], o["session_id"], url)) for o in keys]
        before = len(seen)
        while len(seen) < before + more:  # noqa: ASYNC110 (bounded by the test's timeout)
            await asyncio.sleep(0.001)
        served.process.send_signal(signal.SIGKILL)
        await asyncio.gather(*work)

    for more in (7, 18):
        asyncio.run(round_of(served.url, more))
        served.kill()
        served = serve()
    served.kill()
    reader = JournalReader(tmp_path / "journal.sqlite")
    stored = [
        f"chatcmpl-{turn.reply.id}"
        for opened in keys
        for turn in reader.graph(opened["session_id"], session_tag(opened["session_id"]))
    ]
    assert len(seen) >= 25
    assert len(stored) == len(set(stored))
    assert set(seen) <= set(stored)
