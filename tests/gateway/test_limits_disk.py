"""A full disk under a gateway: harnesses see slow replies, no errors, and every turn once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.admission import GatewayLimits
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.server import GatewayServer
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader
from drivetrain.tokens.codec import TokenCodec
from tests.gateway.conftest import StartRig
from tests.gateway.raw import Wire
from tests.small_disk import SmallDisk, small_disk, until

LONG = "word " * 2000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "32m") as made:
        yield made


async def test_harnesses_wait_for_space_and_nothing_is_lost(
    start_rig: StartRig, disk: SmallDisk, tiny_model: ModelDir
) -> None:
    engine = ScriptedEngine.from_lines((), tiny_model, then=LONG, context_length=10**6)
    rig = await start_rig(engine=engine, journal=disk.path / "j.sqlite", patience=Patience(grace_s=0.1, every_s=0.1))
    journal = rig.gateway.journal
    seen: dict[str, list[str]] = {}
    stop = False

    async def harness(number: int) -> None:
        session, client = await rig.session(max_tokens_per_turn=10**5)
        got = seen.setdefault(session.id, [])
        async with client:
            while not stop:
                ask: Any = {"model": "m", "messages": [{"role": "user", "content": f"{number} {len(got)}"}]}
                if number % 2:
                    got.append((await client.chat.completions.create(**ask)).id)
                else:
                    stream = await client.chat.completions.create(**ask, stream=True)
                    ids = {chunk.id async for chunk in stream}
                    got.append(ids.pop())

    work = asyncio.gather(*(harness(number) for number in range(6)))
    await until(lambda: len(seen) == 6 and all(seen.values()))
    disk.fill()
    await until(lambda: journal.blocked)
    # Whoever had sampled waits for its commit, the others wait in front of the engine.
    await until(lambda: all(s.delivery.in_flight for s in rig.gateway.sessions) and not engine.running)
    sampled, replies = len(engine.calls), sum(map(len, seen.values()))
    await asyncio.sleep(0.5)
    assert not work.done() and len(engine.calls) == sampled and sum(map(len, seen.values())) == replies

    before = {name: len(got) for name, got in seen.items()}
    stop = True
    disk.free()
    async with asyncio.timeout(60):
        await work
    assert all(len(got) == before[name] + 1 for name, got in seen.items()), "the call that waited was answered"
    for name in seen:
        await rig.gateway.seal_session(name)
    reader = JournalReader(rig.journal)
    for name, got in seen.items():
        turns = list(reader.graph(name, session_tag(name)))
        assert [f"chatcmpl-{turn.reply.id}" for turn in turns] == got
        assert all(turn.delivered for turn in turns)


async def test_a_wait_without_end_is_a_503_that_can_be_asked_again(
    disk: SmallDisk, tiny_model: ModelDir, codec: TokenCodec
) -> None:
    """The refusal comes from the gate in front of the engine and from the commit alike; the retry is served."""
    engine = ScriptedEngine.from_lines((), tiny_model, then=LONG, context_length=10**6)
    gateway = Gateway(engine, codec, disk.path / "j.sqlite", model="m", limits=GatewayLimits(journal_patience_s=0.5))
    server = GatewayServer(gateway)
    port = await server.listen_tcp(0)
    session, key = await gateway.open_session(SessionPolicy(model="m", max_tokens_per_turn=10**5))
    wire = await Wire.open(port)
    headers = {"Authorization": f"Bearer {key}"}
    disk.fill()
    statuses = []
    for number in range(60):
        body = b'{"model": "m", "messages": [{"role": "user", "content": "%d"}]}' % number
        answer = await wire.post("/v1/chat/completions", body, headers)
        statuses.append(answer.status)
        if statuses[-2:] == [503, 503]:
            break
    assert statuses[-2:] == [503, 503], statuses
    assert answer.headers["retry-after"] == "30"
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "journal_unavailable")
    assert "no space is left" in error["message"] and "Make room" in error["message"]
    served = len(statuses) - 2
    assert len(session.graph) == served
    disk.free()
    await until(lambda: not gateway.journal.blocked)
    assert (await wire.post("/v1/chat/completions", body, headers)).status == 200
    assert session.budget.turns == len(session.graph) == served + 1
    await wire.close()
    await server.aclose()
    stored = JournalReader(disk.path / "j.sqlite")
    assert len(stored.graph(session.id, session_tag(session.id))) == served + 1
    refused = [event.detail["code"] for event in stored.events(session.id) if event.kind == "refused"]
    assert refused == ["journal_unavailable"] * 2
