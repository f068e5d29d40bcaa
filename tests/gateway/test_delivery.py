"""Sent and acknowledged: which equal request is a retry, and what is left of a turn whose reply was lost."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drivetrain.engines.faulty import Fault, FaultyEngine
from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.gateway.app import CONNECTIONS
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.sessions import Session
from drivetrain.journal.reader import JournalReader
from drivetrain.journal.writer import JournalError
from drivetrain.messages import Call, Message
from drivetrain.sandboxes.relay import relay
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.sample import rows_of
from drivetrain.trace.turn import Turn
from tests.gateway.conftest import Rig, StartRig
from tests.gateway.raw import Answer, Wire, eventually

PATH = "/v1/chat/completions"


class Client:
    """Sends chat requests of one session over connections that the test opens."""

    def __init__(self, rig: Rig, session: Session, key: str) -> None:
        self.rig = rig
        self.session = session
        self.headers = {"Authorization": f"Bearer {key}"}

    async def wire(self) -> Wire:
        return await Wire.open(self.rig.port)

    async def send(self, wire: Wire, *texts: str, **headers: str) -> None:
        await wire.send(PATH, body(*texts), self._with(headers))

    async def ask(self, wire: Wire, *texts: str, **headers: str) -> Answer:
        return await wire.post(PATH, body(*texts), self._with(headers))

    async def closed(self) -> None:
        """Wait until the gateway knows that every connection is closed."""
        await eventually(lambda: len(self.rig.server._harness.app[CONNECTIONS]) == 0)

    async def delivered(self) -> list[bool]:
        """Per turn, as memory and (a moment later) the journal say."""

        def memory() -> list[bool]:
            return [turn.delivered for turn in self.session.graph]

        await eventually(lambda: [turn.delivered for turn in stored(self.rig.journal, self.session)] == memory())
        return memory()

    def _with(self, headers: dict[str, str]) -> dict[str, str]:
        return {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}


def body(*texts: str) -> bytes:
    """A conversation: user and assistant in turn."""
    roles = ("user", "assistant")
    return msgspec.json.encode(
        {"model": "m", "messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]}
    )


def stored(journal: Path, session: Session) -> list[Turn]:
    return list(JournalReader(journal).graph(session.id, session.graph.session_tag))


def trained(session: Session) -> list[int]:
    return [turn for row in rows_of(session.graph) for turn in row.metadata["trained_turns"]]


@pytest.fixture
async def client(start_rig: StartRig) -> AsyncIterator[Client]:
    rig = await start_rig([f"reply {n}" for n in range(9)])
    session, sdk = await rig.session()
    yield Client(rig, session, sdk.api_key)


async def test_equal_request_on_a_new_connection_after_the_old_one_closed(client: Client) -> None:
    wire = await client.wire()
    first = await client.ask(wire, "fix it")
    await wire.close()
    await client.closed()
    again = await client.ask(await client.wire(), "fix it")
    assert again.body == first.body
    assert await client.delivered() == [True]
    assert client.session.events == {"replayed": 1}
    assert trained(client.session) == [0]


async def test_equal_request_on_the_same_connection_is_a_sibling(client: Client) -> None:
    wire = await client.wire()
    first, second = await client.ask(wire, "fix it"), await client.ask(wire, "fix it")
    assert first.body != second.body
    assert [turn.fork_reason for turn in client.session.graph] == ["", "same_prompt"]
    assert await client.delivered() == [True, True]


@pytest.mark.case("C3")
async def test_equal_request_while_the_old_connection_is_open_is_a_sibling(client: Client) -> None:
    one, other = await client.wire(), await client.wire()
    first, second = await client.ask(one, "fix it"), await client.ask(other, "fix it")
    assert first.body != second.body
    await other.close()
    await one.close()
    await client.closed()
    assert (await client.ask(await client.wire(), "fix it")).body == second.body  # the newest is what may be lost
    assert await client.delivered() == [True, True]


async def test_any_other_request_on_the_connection_acknowledges(client: Client) -> None:
    wire = await client.wire()
    first = await client.ask(wire, "fix it")
    await client.ask(wire, "something else")
    await wire.close()
    await client.closed()
    assert (await client.ask(await client.wire(), "fix it")).body != first.body


async def test_continuing_acknowledges(client: Client) -> None:
    wire = await client.wire()
    first = await client.ask(wire, "fix it")
    await wire.close()
    wire = await client.wire()
    await client.ask(wire, "fix it", "reply 0", "go on")
    await wire.close()
    await client.closed()
    assert (await client.ask(await client.wire(), "fix it")).body != first.body
    assert [turn.parent for turn in client.session.graph][:2] == [None, 0]


async def test_equal_request_after_a_different_one_in_its_lineage_is_new(client: Client) -> None:
    for text in ("fix it", "fix that"):
        wire = await client.wire()
        await client.ask(wire, text)
        await wire.close()
        await client.closed()
    assert b"reply 2" in (await client.ask(await client.wire(), "fix it")).body


async def test_a_call_of_another_kind_does_not_end_a_lineage(client: Client) -> None:
    """A title call, a sub-agent: other tools or headers. The main chain's retry is still one."""
    wire = await client.wire()
    first = await client.ask(wire, "fix it")
    await wire.close()
    wire = await client.wire()
    await client.ask(wire, "name this", x_session_id="title")
    await wire.close()
    await client.closed()
    assert (await client.ask(await client.wire(), "fix it")).body == first.body


@pytest.mark.case("D3")
async def test_reset_connection_means_not_delivered(client: Client) -> None:
    wire = await client.wire()
    await client.send(wire, "fix it")
    await eventually(lambda: client.session.graph and client.session.graph[0].delivered)
    wire.reset()
    await client.closed()
    assert client.session.graph[0].delivered is False
    assert rows_of(client.session.graph) == []
    await client.rig.gateway.seal_session(client.session.id)
    assert await client.delivered() == [False]
    assert client.session.events == {"lost": 1}


async def test_reset_after_another_request_says_nothing_about_the_first(client: Client) -> None:
    wire = await client.wire()
    await client.ask(wire, "fix it")
    await client.send(wire, "fix that")
    await eventually(lambda: len(client.session.graph) == 2 and client.session.graph[1].delivered)
    wire.reset()
    await client.closed()
    assert [turn.delivered for turn in client.session.graph] == [True, False]


async def test_lost_reply_comes_again_and_counts_once(client: Client) -> None:
    wire = await client.wire()
    await client.send(wire, "fix it")
    await eventually(lambda: client.session.graph and client.session.graph[0].delivered)
    wire.reset()
    await client.closed()
    assert b"reply 0" in (await client.ask(await client.wire(), "fix it")).body
    assert trained(client.session) == [0]
    assert await client.delivered() == [True]


async def test_idempotency_key_names_the_request(client: Client) -> None:
    wire = await client.wire()
    first = await client.ask(wire, "fix it", Idempotency_Key="k1")
    assert (await client.ask(wire, "fix it", Idempotency_Key="k1")).body == first.body
    assert (await client.ask(wire, "fix it", Idempotency_Key="k2")).body != first.body
    refused = await client.ask(wire, "fix that", Idempotency_Key="k1")
    assert (refused.status, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert refused.headers["x-should-retry"] == "false"
    assert len(client.session.graph) == 2


async def test_retry_counter_replays_whatever_the_connection(client: Client) -> None:
    wire = await client.wire()
    first = await client.ask(wire, "fix it")
    assert (await client.ask(wire, "fix it", x_stainless_retry_count="1")).body == first.body
    assert (await client.ask(wire, "fix it", x_stainless_retry_count="0")).body != first.body
    assert (await client.ask(wire, "fix it", x_stainless_retry_count="many")).body != first.body
    assert len(client.session.graph) == 3


async def test_retry_of_a_failed_call_is_not_answered_with_an_older_turn(
    start_rig: StartRig, tiny_model: ModelDir
) -> None:
    lines = ["one", ScriptedReply(error=EngineError("busy")), "two"]
    rig = await start_rig(engine=ScriptedEngine.from_lines(lines, tiny_model))
    session, sdk = await rig.session()
    client = Client(rig, session, sdk.api_key)
    wire = await client.wire()
    assert b"one" in (await client.ask(wire, "fix it")).body
    assert (await client.ask(wire, "fix it")).status == 503
    assert b"two" in (await client.ask(wire, "fix it", x_stainless_retry_count="1")).body


async def test_cancel_between_the_commit_and_the_graph(
    tmp_path: Path, tiny_model: ModelDir, codec: TokenCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal commits although nobody waits any more: the graph holds the turn too, and a retry gets it."""
    engine = ScriptedEngine.from_lines(["first", "second"], tiny_model)
    gateway = Gateway(engine, codec, tmp_path / "j", model="m")
    session, _ = await gateway.open_session()
    call = Call("test", "m", (Message("user", "fix it"),))
    add_turn = gateway.journal.add_turn
    written, go_on = asyncio.Event(), asyncio.Event()

    async def slow(session_id: str, turn: Turn) -> None:
        await add_turn(session_id, turn)
        written.set()
        await go_on.wait()

    monkeypatch.setattr(gateway.journal, "add_turn", slow)
    asked = asyncio.create_task(gateway.serve(session, call, b"body"))
    await written.wait()
    asked.cancel()
    await asyncio.wait({asked})
    sealing = asyncio.create_task(session.delivery.cancel_all())  # cancels the generation itself
    await asyncio.sleep(0)
    go_on.set()
    await sealing
    assert asked.cancelled()
    assert [turn.reply.content for turn in session.graph] == ["first"]
    assert [turn.id for turn in stored(tmp_path / "j", session)] == [turn.id for turn in session.graph]
    assert (session.budget.turns, session.budget.reserved_turns) == (1, 0)
    assert rows_of(session.graph) == []
    assert (await gateway.serve(session, call, b"body")).reply.content == "first"
    await gateway.aclose()


async def test_a_recovered_session_replays_what_may_be_lost(
    tmp_path: Path, tiny_model: ModelDir, codec: TokenCodec
) -> None:
    def gateway() -> Gateway:
        engine = ScriptedEngine.from_lines(["one", "two", "three"], tiny_model, then="new")
        return Gateway(engine, codec, tmp_path / "j", model="m")

    def call(*texts: str) -> tuple[Call, bytes]:
        roles = ("user", "assistant")
        messages = tuple(Message(roles[i % 2], text) for i, text in enumerate(texts))  # type: ignore[arg-type]
        return Call("test", "m", messages), repr(texts).encode()

    before = gateway()
    session, _ = await before.open_session(SessionPolicy(model="m"))
    first = await before.serve(session, *call("a"))
    await before.delivered(session, first)
    second = await before.serve(session, *call("a", "one", "b"))  # committed, never sent
    await before.aclose()
    after = gateway()
    session = after.sessions.get(session.id)
    assert (await after.serve(session, *call("a", "one", "b"))).reply == second.reply
    assert (await after.serve(session, *call("a"))).reply.id != first.reply.id  # it was continued
    await after.aclose()


async def test_a_large_reply_that_is_not_read_is_not_delivered(start_rig: StartRig, tiny_model: ModelDir) -> None:
    """Sent means that the kernel has the last byte, not that it is queued in this process."""
    rig = await start_rig(engine=ScriptedEngine.from_lines(["word " * 6000], tiny_model))
    session, sdk = await rig.session(max_tokens_per_turn=8000)
    client = Client(rig, session, sdk.api_key)
    for site in rig.server._harness.sites:
        for listener in site._server.sockets:  # type: ignore[attr-defined]
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    narrow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", rig.port))
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body('fix it'))}\r\n"
    head += f"Authorization: {client.headers['Authorization']}\r\n\r\n"
    await asyncio.get_running_loop().sock_sendall(narrow, head.encode() + body("fix it"))
    await eventually(lambda: len(session.graph) == 1)
    await asyncio.sleep(0.1)
    assert session.graph[0].delivered is False
    narrow.close()
    await client.closed()
    assert await client.delivered() == [False]
    again = await client.ask(await client.wire(), "fix it")
    assert len(again.body) > 10_000
    assert await client.delivered() == [True]


async def test_what_a_relay_swallowed_comes_again(start_rig: StartRig, tmp_path: Path) -> None:
    """A relay reads the whole reply for a client that is dead: the gateway sees a clean end, the retry gets it."""
    rig = await start_rig(["first", "second"])
    path = tmp_path / "g.sock"
    await rig.server.listen_unix(path)
    session, sdk = await rig.session()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", relay.__file__, str(port), str(path))
    try:
        client = Client(rig, session, sdk.api_key)
        wire = await _until_up(port)
        await client.send(wire, "fix it")
        await eventually(lambda: session.graph and session.graph[0].delivered)
        await wire.close()
        await client.closed()
        again = await client.ask(await Wire.open(port), "fix it")
        assert b"first" in again.body
        assert await client.delivered() == [True]
        assert trained(session) == [0]
    finally:
        process.kill()
        await process.wait()


async def _until_up(port: int) -> Wire:
    async with asyncio.timeout(10):
        while True:
            try:
                return await Wire.open(port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)


async def test_connections_are_forgotten(client: Client) -> None:
    for number in range(20):
        wire = await client.wire()
        await client.ask(wire, f"request {number}")
        await wire.close()
    await client.closed()
    assert len(client.session.delivery._replies) == 1  # each request gave up the one before it


@pytest.mark.case("C14", "D11")
async def test_seal_does_not_wait_for_an_engine_that_ignores_cancellation(
    start_rig: StartRig, tiny_model: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivetrain.gateway.delivery._CANCEL_S", 0.2)
    inner = ScriptedEngine.from_lines([], tiny_model, then="late")
    engine = FaultyEngine(inner, [Fault(hang=True, deaf_s=1.0)])
    rig = await start_rig(engine=engine)
    session, sdk = await rig.session()
    client = Client(rig, session, sdk.api_key)
    wire = await client.wire()
    await client.send(wire, "fix it")
    await eventually(lambda: engine.outcomes)
    async with asyncio.timeout(0.9):
        await rig.gateway.seal_session(session.id)
    answer = await wire.answer()
    assert (answer.status, answer.json()["error"]["code"]) == (409, "session_sealed")
    assert len(session.graph) == 0
    assert stored(rig.journal, session) == []


async def test_an_unexpected_exception_is_typed_counted_and_quotes_nothing(
    start_rig: StartRig, tiny_model: ModelDir, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(error=KeyError("what the prompt said"))], tiny_model, then="fine")
    rig = await start_rig(engine=engine)
    session, sdk = await rig.session()
    client = Client(rig, session, sdk.api_key)
    wire = await client.wire()
    answer = await client.ask(wire, "fix it")
    assert (answer.status, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "KeyError" in caplog.text and "what the prompt said" not in caplog.text + answer.body.decode()
    assert session.events == {"internal_error": 1, "refused": 1}
    assert b"fine" in (await client.ask(wire, "fix it")).body


async def test_a_journal_that_loses_events_does_not_hide_the_refusal(
    start_rig: StartRig, tiny_model: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start_rig(engine=ScriptedEngine.from_lines([ScriptedReply(error=EngineError("busy"))], tiny_model))

    async def full(*_: Any, **__: Any) -> None:
        raise JournalError("disk full")

    session, sdk = await rig.session()
    monkeypatch.setattr(rig.gateway.journal, "add_event", full)
    answer = await Client(rig, session, sdk.api_key).ask(await Wire.open(rig.port), "fix it")
    assert (answer.status, answer.json()["error"]["code"]) == (503, "engine_unavailable")
