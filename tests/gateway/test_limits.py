"""Limits of a session and of a gateway: each refuses in the dialect, says when to come back, and lets go again."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import weakref
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.admission import GatewayLimits
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.server import GatewayServer
from drivetrain.gateway.sessions import Session, session_tag
from drivetrain.journal.errors import JournalBlocked
from drivetrain.journal.reader import JournalReader
from drivetrain.journal.writer import Journal
from drivetrain.messages import Call, Message
from drivetrain.tokens.codec import TokenCodec
from tests.gateway.raw import Wire
from tests.journal.test_journal import make_turn, open_session
from tests.small_disk import until

USER = {"role": "user", "content": "hi"}
ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai_chat": ("/v1/chat/completions", {"messages": [USER]}),
    "openai_responses": ("/v1/responses", {"input": "hi"}),
    "anthropic": ("/v1/messages", {"messages": [USER], "max_tokens": 50}),
    "google": ("/v1beta/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
}


def said(dialect: str, error: Mapping[str, Any]) -> str:
    """What a dialect calls the error: each has its own word and place."""
    body = error["error"]
    return str({"anthropic": body.get("type"), "google": body.get("status")}.get(dialect) or body.get("code"))


class Running:
    """A gateway with limits, on loopback, whose engine can be held."""

    def __init__(self, model: ModelDir, codec: TokenCodec, journal: Path, **limits: Any) -> None:
        self.engine = ScriptedEngine.from_lines([], model, then="fine")
        self.gateway = Gateway(self.engine, codec, journal, model="m", limits=GatewayLimits(**limits))
        self.server = GatewayServer(self.gateway)
        self.port = 0

    async def __aenter__(self) -> Running:
        self.port = await self.server.listen_tcp(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.resume()
        await self.server.aclose()

    async def open(self, **policy: Any) -> tuple[Session, dict[str, str]]:
        session, key = await self.gateway.open_session(SessionPolicy(model="m", **policy))
        return session, {"Authorization": f"Bearer {key}", "x-goog-api-key": key}

    async def post(self, headers: dict[str, str], dialect: str, text: str = "hi") -> tuple[int, dict[str, Any], str]:
        path, body = ASKS[dialect]
        data = msgspec.json.encode({"model": "m", **body}).replace(b'"hi"', msgspec.json.encode(text))
        wire = await Wire.open(self.port)
        try:
            answer = await wire.post(path, data, headers)
        finally:
            await wire.close()
        return answer.status, answer.json(), answer.headers.get("retry-after", "")


@pytest.mark.parametrize("dialect", ASKS)
async def test_a_gateway_serves_so_many_requests(
    dialect: str, tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path
) -> None:
    async with Running(tiny_model, codec, tmp_path / "j.sqlite", max_requests=1) as running:
        _, headers = await running.open()
        await running.engine.pause()
        first = asyncio.create_task(running.post(headers, dialect, "first"))
        await until(lambda: running.engine.running)
        status, error, wait = await running.post(headers, dialect, "second")
        assert (status, wait) == (503, "5")
        assert said(dialect, error) == {"anthropic": "api_error", "google": "UNAVAILABLE"}.get(dialect, "overloaded")
        assert len(running.engine.calls) == 1, "nothing was done for it"
        await running.engine.resume()
        assert (await first)[0] == 200
        await until(lambda: not running.gateway.admission.requests)
        assert running.gateway.admission.body_bytes == 0
        assert (await running.post(headers, dialect, "second"))[0] == 200


async def test_a_gateway_holds_so_many_bytes_of_bodies(tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path) -> None:
    async with Running(tiny_model, codec, tmp_path / "j.sqlite", max_body_bytes=3000) as running:
        _, headers = await running.open()
        await running.engine.pause()
        first = asyncio.create_task(running.post(headers, "openai_chat", "x" * 4000))  # one alone may be as large
        await until(lambda: running.engine.running)
        status, error, wait = await running.post(headers, "openai_chat", "small")
        assert (status, wait, said("openai_chat", error)) == (503, "5", "overloaded")
        await running.engine.resume()
        assert (await first)[0] == 200
        await until(lambda: not running.gateway.admission.requests)
        assert (await running.post(headers, "openai_chat", "small"))[0] == 200
        await until(lambda: not running.gateway.admission.requests)
        # A body that does not say its size counts as the largest it may have.
        async with (
            aiohttp.ClientSession() as http,
            http.post(
                f"http://127.0.0.1:{running.port}/v1/chat/completions", data=_chunks(), headers=headers
            ) as answer,
        ):
            assert answer.status == 200


async def _chunks() -> Any:
    yield b'{"model": "m", "messages": '
    yield b'[{"role": "user", "content": "in pieces"}]}'


@pytest.mark.parametrize("dialect", ASKS)
async def test_a_session_holds_so_much(dialect: str, tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path) -> None:
    """Also after a restart; another session is not harmed."""
    async with Running(tiny_model, codec, tmp_path / "j.sqlite") as running:
        session, headers = await running.open(max_session_bytes=1000)
        assert (await running.post(headers, dialect, "x" * 2000))[0] == 200
        assert session.retained_bytes > 2000
        status, error, wait = await running.post(headers, dialect, "again")
        assert (status, wait) == (413, "")
        assert said(dialect, error) in ("request_too_large", "session_too_large", "INVALID_ARGUMENT")
        assert "max_session_bytes" in error["error"]["message"]
        _, other = await running.open(max_session_bytes=1000)
        assert (await running.post(other, dialect))[0] == 200
    async with Running(tiny_model, codec, tmp_path / "j.sqlite") as again:
        assert (await again.post(headers, dialect, "again"))[0] == 413
        assert again.gateway.sessions.get(session.id).retained_bytes == session.retained_bytes


async def test_so_many_sessions_are_open(tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path) -> None:
    async with Running(tiny_model, codec, tmp_path / "j.sqlite", max_sessions=2) as running:
        port = await running.server.listen_admin(0, "a" * 40)
        url = f"http://127.0.0.1:{port}/admin/sessions"
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer " + "a" * 40}) as http:
            names = []
            for status in (201, 201, 429):
                async with http.post(url, json={}) as answer:
                    assert answer.status == status
                    body = await answer.json()
                    names.append(body.get("session_id"))
            assert answer.headers["Retry-After"] == "10" and body["error"]["code"] == "too_many_sessions"
            async with http.delete(f"{url}/{names[0]}") as answer:
                assert answer.status == 200
            async with http.post(url, json={}) as answer:
                assert answer.status == 201, "a session that has ended makes room"
            async with http.get(url) as answer:
                listed = (await answer.json())["sessions"]
        assert sorted(session["state"] for session in listed) == ["open", "open", "sealed"]


async def test_open_sessions_hold_so_much_together(tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path) -> None:
    """Beyond it none is opened, also after a restart; those that are open go on, and one that is sealed makes room."""
    async with Running(tiny_model, codec, tmp_path / "j.sqlite", max_retained_bytes=15_000) as running:
        store = running.gateway.sessions
        first, headers = await running.open()
        second, others = await running.open()
        assert (await running.post(headers, "openai_chat", "x" * 2000))[0] == 200
        assert 2000 < store.retained_bytes < 15_000  # a byte, its token and its log-prob: nine bytes a letter
        await running.open()
        assert (await running.post(others, "openai_chat", "y" * 2000))[0] == 200
        assert store.retained_bytes == first.retained_bytes + second.retained_bytes
        with pytest.raises(Refusal, match="no session is opened") as caught:
            await running.open()
        assert (caught.value.code, caught.value.status, caught.value.retry_after_s) == ("overloaded", 503, 10)
        assert (await running.post(headers, "anthropic", "z" * 2000))[0] == 200, "an open session goes on"
    async with Running(tiny_model, codec, tmp_path / "j.sqlite", max_retained_bytes=15_000) as again:
        url = f"http://127.0.0.1:{await again.server.listen_admin(0, 'a' * 40)}/admin/sessions"
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer " + "a" * 40}) as http:
            async with http.post(url, json={}) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
                assert (await answer.json())["error"]["code"] == "overloaded"
            await again.gateway.seal_session(first.id)
            assert again.gateway.sessions.retained_bytes == second.retained_bytes
            async with http.post(url, json={}) as answer:
                assert answer.status == 201


async def test_the_journal_has_a_largest_size(tmp_path: Path) -> None:
    """No session is opened near the limit; at the limit nobody waits, because waiting does not help."""
    journal = Journal(tmp_path / "j.sqlite", max_bytes=1 << 20)
    await open_session(journal)
    written = 0
    with pytest.raises(JournalBlocked, match=r"has reached the 1048576 bytes it may have.*Go on with a new journal"):
        async with asyncio.timeout(60):
            for written in range(1000):
                await journal.add_turn("s-1", make_turn(written, count=2000))
    assert journal.blocked
    with pytest.raises(JournalBlocked, match="has reached"):
        await journal.writable()
    journal.close()
    assert len(JournalReader(journal.path).graph("s-1", "0" * 8)) == written
    again = Journal(journal.path, max_bytes=1 << 20)
    with pytest.raises(JournalBlocked, match="nearly the 1048576 bytes"):
        await open_session(again, "s-2")
    again.close()
    larger = Journal(journal.path, max_bytes=1 << 22)
    await open_session(larger, "s-2")
    await larger.add_turn("s-1", make_turn(written))
    larger.close()


@pytest.mark.parametrize("name", GatewayLimits.__struct_fields__)
def test_limits_that_cannot_be(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be positive"):
        GatewayLimits(**{name: 0})


async def test_a_sealed_session_leaves_memory_and_can_still_be_asked(
    tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path
) -> None:
    async with Running(tiny_model, codec, tmp_path / "j.sqlite") as running:
        gateway, wire = running.gateway, await Wire.open(running.port)
        alive: list[weakref.ref[Any]] = []
        kept: list[tuple[str, dict[str, str]]] = []
        for number in range(12):
            session, headers = await running.open()
            for turn in range(3):
                body = {"model": "m", "messages": [{"role": "user", "content": f"{number} {turn}"}]}
                answer = await wire.post("/v1/chat/completions", msgspec.json.encode(body), headers)
                assert answer.status == 200
            await gateway.seal_session(session.id)
            alive += [weakref.ref(session), weakref.ref(session.graph)]
            kept.append((session.id, headers))
            del session

        def kept_in_memory() -> int:
            gc.collect()
            return sum(ref() is not None for ref in alive)

        await until(lambda: not kept_in_memory())  # also while the client's connection stays open
        assert gateway.sessions.open_sessions() == []

        session_id, headers = kept[0]
        assert (await running.post(headers, "openai_chat"))[0] == 409
        found = gateway.sessions.get(session_id)
        assert (found.state, len(found.graph), found.budget.turns) == ("sealed", 3, 3)
        assert gateway.sessions.get(session_id) is found, "as long as somebody holds it"
        summary = msgspec.json.decode(gateway.sessions.summary(session_id))
        assert (summary["state"], summary["turns"]) == ("sealed", 3)
        with pytest.raises(ConfigError, match="exists already"):
            await gateway.open_session(session_id=session_id)
        gateway.sessions.forget(session_id)
        with pytest.raises(Refusal, match="no session"):
            gateway.sessions.get(session_id)
        assert (await running.post(headers, "openai_chat"))[0] == 401
        await wire.close()
    async with Running(tiny_model, codec, tmp_path / "j.sqlite") as again:
        assert again.gateway.recovered == 12
        summaries = [msgspec.json.decode(text) for text in again.gateway.sessions.summaries()]
        assert [each["turns"] for each in summaries] == [3] * 12
        assert (await again.post(kept[1][1], "openai_chat"))[0] == 409


async def test_a_damaged_sealed_session_does_not_hide_the_others(
    tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path
) -> None:
    path = tmp_path / "j.sqlite"
    async with Running(tiny_model, codec, path) as running:
        for name in ("s-1", "s-2"):
            session, _ = await running.gateway.open_session(session_id=name)
            await running.gateway.serve(session, Call("test", "m", (Message("user", "hi"),)), b"hi")
            await running.gateway.seal_session(name)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE turns SET sampled_ids = x'00000000' WHERE session_id = 's-1'")
    async with Running(tiny_model, codec, path) as again:
        listed = {each["session_id"]: each for each in map(msgspec.json.decode, again.gateway.sessions.summaries())}
        assert "turn 0 of session s-1 (number 0) is not what was written" in listed["s-1"]["error"]
        assert listed["s-2"]["turns"] == 1
        assert len(JournalReader(path).graph("s-2", session_tag("s-2"))) == 1
