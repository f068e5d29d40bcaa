"""The fault table: every fault in every API, streamed and not.

After each: no token is trained twice, no committed turn is missing, the status is the API's own, and the session goes
on as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drivetrain.engines.faulty import Bend, Fault, FaultyEngine
from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError, EngineMalformed
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.dialects.choose import DIALECTS
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.sessions import Session
from drivetrain.journal.reader import JournalReader, StoredEvent
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.sample import rows_of
from drivetrain.trace.turn import Turn
from drivetrain.trace.validate import check_graph, check_rows
from tests.conformance.wire.drivers import DRIVERS, Driver, Texts
from tests.gateway.conftest import Rig, StartRig
from tests.gateway.raw import Answer, Wire, eventually

ASK: Texts = ("fix the bug",)
QUICK = Patience(grace_s=0.05, every_s=0.05)


class Bench:
    """A gateway whose engine fails by script, one session, and an API to ask it in."""

    def __init__(self, driver: Driver, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = driver
        self.stream = stream
        self.monkeypatch = monkeypatch
        self.rig: Rig
        self.session: Session
        self.engine: FaultyEngine

    async def start(
        self, start_rig: StartRig, model: ModelDir, faults: list[Fault | None], policy: dict[str, Any]
    ) -> None:
        """Replies are ``reply 0``, ``reply 1``, ... in order of what the engine samples."""
        inner = ScriptedEngine.from_lines([f"reply {number}" for number in range(20)], model)
        self.engine = FaultyEngine(inner, faults)
        self.rig = await start_rig(engine=self.engine)
        self.session, key = await self.rig.gateway.open_session(SessionPolicy(model="policy", **policy))
        self.headers = self.driver.key(key)

    async def wire(self) -> Wire:
        return await Wire.open(self.rig.port)

    async def send(self, wire: Wire, texts: Texts = ASK, *, cut: int = 0, **headers: str) -> None:
        path, body = self.driver.request(texts, self.stream)
        await wire.send(path, body, self._with(headers), cut=cut)

    async def ask(self, texts: Texts = ASK, wire: Wire | None = None, **headers: str) -> Answer:
        """Ask on a connection, by default a new one."""
        wire = wire or await self.wire()
        await self.send(wire, texts, **headers)
        return await wire.answer()

    async def said(self, texts: Texts = ASK, wire: Wire | None = None, **headers: str) -> str:
        answer = await self.ask(texts, wire, **headers)
        assert answer.status == 200, answer.body
        return self.driver.said(answer)

    async def committed(self, turns: int = 1, *, sent: bool = True) -> None:
        """Wait until so many turns are committed, and the newest handed to the kernel."""
        await eventually(lambda: len(self.turns) == turns and (not sent or self.turns[-1].delivered))

    async def gone(self) -> None:
        """Wait until the gateway saw that all clients hung up."""
        await eventually(lambda: not self.rig.server._harness.server.connections)  # type: ignore[union-attr]

    @property
    def turns(self) -> list[Turn]:
        return list(self.session.graph)

    def events(self, kind: str) -> list[StoredEvent]:
        """What the journal says happened."""
        stored = JournalReader(self.rig.journal).events(self.session.id)
        return [event for event in stored if event.kind == kind]

    def _with(self, headers: dict[str, str]) -> dict[str, str]:
        return {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One fault: what the engine does, how the client plays, how many turns are committed and trained after it.

    ``only`` is for streams (True) or JSON replies (False) alone. What is no API's business (``shared``) is played in
    one API."""

    name: str
    play: Callable[[Bench], Awaitable[None]]
    turns: int = 1
    trained: int = 1
    faults: tuple[Fault | None, ...] = ()
    policy: dict[str, Any] = {}
    only: bool | None = None
    shared: bool = False
    cases: tuple[str, ...] = ()


async def lost_reply(bench: Bench) -> None:
    wire = await bench.wire()
    await bench.send(wire)
    await bench.committed()
    wire.reset()
    await bench.gone()
    assert [turn.delivered for turn in bench.turns] == [False]
    assert await bench.said() == "reply 0"


async def swallowed_reply(bench: Bench) -> None:
    """The kernel or a relay took it for a client that was dead already."""
    wire = await bench.wire()
    await bench.send(wire)
    await bench.committed()
    await wire.close()
    await bench.gone()
    assert await bench.said() == "reply 0"


async def blind_retry_every_turn(bench: Bench) -> None:
    texts = ASK
    for number in range(4):
        wire = await bench.wire()
        await bench.send(wire, texts)
        await bench.committed(number + 1)
        await wire.close()
        await bench.gone()
        texts = (*texts, await bench.said(texts), f"go on {number}")
    assert [turn.link for turn in bench.turns] == ["root", *["linear"] * 3]


async def sdk_retry(bench: Bench) -> None:
    wire = await bench.wire()
    failed = await bench.ask(wire=wire, x_stainless_retry_count="0")
    assert failed.status == 503
    assert await bench.said(wire=wire, x_stainless_retry_count="1") == "reply 0"


async def gone_before_dispatch(bench: Bench) -> None:
    wire = await bench.wire()
    await bench.send(wire, cut=5)
    await wire.close()
    await bench.gone()
    assert bench.engine.outcomes == []
    assert await bench.said() == "reply 0"


async def gone_while_the_gate_is_closed(bench: Bench) -> None:
    await bench.rig.gateway.fence.pause()
    wire = await bench.wire()
    await bench.send(wire)
    await eventually(lambda: bench.session.delivery.in_flight)
    await wire.close()
    await eventually(lambda: not bench.session.delivery.in_flight)
    await bench.rig.gateway.fence.resume(bench.engine.policy_version)
    assert bench.engine.outcomes == []
    assert await bench.said() == "reply 0"


async def gone_during_generation(bench: Bench) -> None:
    wire = await bench.wire()
    await bench.send(wire)
    await eventually(lambda: bench.engine.outcomes)
    await wire.close()
    await eventually(lambda: bench.engine.outcomes == ["cancelled"])
    assert bench.session.events == {"abandoned": 1}
    assert await bench.said() == "reply 0"


async def gone_between_commit_and_send(bench: Bench) -> None:
    journal = bench.rig.gateway.journal
    add_turn, written, go_on = journal.add_turn, asyncio.Event(), asyncio.Event()

    async def slow(session_id: str, turn: Turn) -> None:
        await add_turn(session_id, turn)
        written.set()
        await go_on.wait()

    with bench.monkeypatch.context() as patch:
        patch.setattr(journal, "add_turn", slow)
        wire = await bench.wire()
        await bench.send(wire)
        await written.wait()
        await wire.close()
        await bench.gone()
        go_on.set()
        await bench.committed(sent=False)
    assert [turn.delivered for turn in bench.turns] == [False]
    assert await bench.said() == "reply 0"


async def gone_after_the_first_byte(bench: Bench) -> None:
    wire = await bench.wire()
    await bench.send(wire)
    await wire.head()
    await wire.close()
    await eventually(lambda: bench.engine.outcomes == ["cancelled"])
    assert await bench.said() == "reply 0"


async def gone_after_the_first_event(bench: Bench) -> None:
    wire = await bench.wire()
    await bench.send(wire)
    await wire.until(bench.driver.first_event)
    wire.reset()
    await bench.gone()
    assert await bench.said() == "reply 0"


async def gone_after_the_terminal_event(bench: Bench) -> None:
    """That is a delivery: the next request continues, and nothing is sampled twice."""
    wire = await bench.wire()
    said = await bench.said(wire=wire)
    await wire.close()
    await bench.gone()
    assert await bench.said((*ASK, said, "go on")) == "reply 1"
    assert [turn.link for turn in bench.turns] == ["root", "linear"]


async def slow_first_byte(bench: Bench) -> None:
    """A client that asked for a stream has its headers while the engine works, and the same call goes on."""
    wire = await bench.wire()
    await bench.send(wire)
    if bench.stream:
        status, headers = await wire.head()
        assert (status, bench.engine.outcomes) == (200, ["pending"])
        assert headers["content-type"].startswith("text/event-stream")
        await wire.until(bench.driver.terminal)
        await wire.close()
    else:
        assert bench.driver.said(await wire.answer()) == "reply 0"
    assert bench.engine.outcomes == ["served"]


def fails(status: int, code: str, retry_after: str | None) -> Callable[[Bench], Awaitable[None]]:
    """The first call fails with this status, the next succeeds; the engine was asked once for each."""

    async def play(bench: Bench) -> None:
        wire = await bench.wire()
        answer = await bench.ask(wire=wire)
        assert (answer.status, answer.headers.get("retry-after")) == (status, retry_after)
        assert answer.headers["content-type"] == "application/json"
        assert "error" in answer.json()
        assert answer.headers.get("x-should-retry") == (None if status >= 429 else "false")
        assert bench.session.events.get("engine_malformed", 0) == (code == "engine_malformed")
        assert [event.detail["code"] for event in bench.events("refused")] == [code]
        assert len(bench.engine.outcomes) == 1
        assert await bench.said(wire=wire) in ("reply 0", "reply 1")

    return play


async def fails_after_the_grace(bench: Bench) -> None:
    wire = await bench.wire()
    answer = await bench.ask(wire=wire)
    assert answer.status == 200
    assert bench.driver.failed in answer.body and bench.driver.terminal not in answer.body
    assert await bench.said(wire=wire) == "reply 0"


async def masked(bench: Bench) -> None:
    """The reply is good, its evidence is not: served, never trained, with the reason."""
    assert await bench.said() == "reply 0"
    assert bench.turns[0].notes and bench.session.events["evidence_missing"] == 1
    assert [event.detail["turn"] for event in bench.events("evidence_missing")] == [0]


async def duplicate_in_flight(bench: Bench) -> None:
    one, other = await bench.wire(), await bench.wire()
    await bench.send(one)
    await eventually(lambda: bench.engine.outcomes)
    await bench.send(other)
    answers = await asyncio.gather(one.answer(), other.answer())
    assert answers[0].body == answers[1].body
    assert bench.engine.outcomes == ["served"]


async def first_of_two_duplicates_hangs_up(bench: Bench) -> None:
    one, other = await bench.wire(), await bench.wire()
    await bench.send(one)
    await bench.send(other)
    await eventually(lambda: bench.session.events.get("joined"))
    await one.close()
    assert bench.driver.said(await other.answer()) == "reply 0"


async def sub_agents_with_names(bench: Bench) -> None:
    said = await asyncio.gather(*(bench.said(x_session_id=name) for name in ("one", "two", "three")))
    assert sorted(said) == ["reply 0", "reply 1", "reply 2"]


async def twins_on_open_connections(bench: Bench) -> None:
    """Nothing tells them apart but their connections, which both stay open."""
    one, other = await bench.wire(), await bench.wire()
    assert [await bench.said(wire=one), await bench.said(wire=other)] == ["reply 0", "reply 1"]


async def context_overflow(bench: Bench) -> None:
    wire = await bench.wire()
    answer = await bench.ask(("word " * 9000,), wire)
    assert answer.status == 400
    assert bench.driver.overflow in answer.body, answer.body
    assert bench.engine.outcomes == []
    assert await bench.said(wire=wire) == "reply 0"


def error(status: int, **more: Any) -> Fault:
    return Fault(error=EngineError("no luck", status=status, retryable=status >= 429, **more))


UNUSABLE: tuple[Bend, ...] = ("empty", "no_ids", "text_ids", "negative_id")
UNTRAINABLE: tuple[Bend, ...] = (
    "short_logprobs",
    "long_logprobs",
    "no_logprobs",
    "nan_logprob",
    "positive_logprob",
    "shifted_logprobs",
)


TABLE = [
    Row(name="lost reply", play=lost_reply, cases=("D3",)),
    Row(name="swallowed reply", play=swallowed_reply, cases=("D1", "D3")),
    Row(name="blind retry every turn", play=blind_retry_every_turn, turns=4, trained=4, cases=("D1",)),
    Row(name="SDK retry", play=sdk_retry, faults=(error(503),), cases=("D1",)),
    Row(name="gone before dispatch", play=gone_before_dispatch),
    Row(name="gone while the gate is closed", play=gone_while_the_gate_is_closed),
    Row(name="gone during generation", play=gone_during_generation, faults=(Fault(hang=True),), cases=("D6",)),
    Row(name="gone between commit and send", play=gone_between_commit_and_send, cases=("D3", "D4")),
    Row(
        name="gone after the first byte",
        play=gone_after_the_first_byte,
        faults=(Fault(hang=True),),
        policy={"patience": QUICK},
        only=True,
    ),
    Row(name="cut stream", play=gone_after_the_first_event, only=True, cases=("D3",)),
    Row(name="gone after the terminal event", play=gone_after_the_terminal_event, turns=2, trained=2, cases=("D4",)),
    Row(
        name="slow first byte",
        play=slow_first_byte,
        faults=(Fault(delay_s=0.4),),
        policy={"patience": QUICK},
        cases=("D2", "D8"),
    ),
    Row(name="engine 429", play=fails(429, "rate_limited", "7"), faults=(error(429, retry_after_s=6.2),)),
    Row(name="engine 429 without Retry-After", play=fails(429, "rate_limited", "1"), faults=(error(429),)),
    Row(name="engine 500", play=fails(500, "engine_failed", None), faults=(error(500),), cases=("D6",)),
    Row(name="engine 503", play=fails(503, "engine_unavailable", "3"), faults=(error(503, retry_after_s=3),)),
    Row(name="engine 400", play=fails(400, "engine_refused", None), faults=(error(400),)),
    Row(
        name="engine hangs",
        play=fails(504, "engine_timeout", None),
        faults=(Fault(hang=True),),
        policy={"call_timeout_s": 0.2},
        cases=("D6",),
    ),
    Row(
        name="engine answers no JSON",
        play=fails(503, "engine_malformed", "1"),
        faults=(Fault(error=EngineMalformed("a page of HTML")),),
    ),
    *(
        Row(
            name=f"engine answers {bend}",
            play=fails(503, "engine_malformed", "1"),
            faults=(Fault(bend=bend),),
            shared=True,
        )
        for bend in UNUSABLE
    ),
    Row(name="engine aborts", play=fails(503, "engine_unavailable", "1"), faults=(Fault(bend="abort"),)),
    *(
        Row(name=f"engine answers {bend}", play=masked, faults=(Fault(bend=bend),), trained=0, shared=True)
        for bend in UNTRAINABLE
    ),
    Row(
        name="engine fails after the grace",
        play=fails_after_the_grace,
        faults=(Fault(delay_s=0.3, error=EngineError("too late")),),
        policy={"patience": QUICK},
        only=True,
        cases=("D8",),
    ),
    Row(name="context overflow", play=context_overflow),
    Row(name="duplicate in flight", play=duplicate_in_flight, faults=(Fault(delay_s=0.2),), cases=("D1",)),
    Row(name="one of two duplicates hangs up", play=first_of_two_duplicates_hangs_up, faults=(Fault(delay_s=0.3),)),
    Row(name="sub-agents with names", play=sub_agents_with_names, turns=3, trained=3),
    Row(name="twins on open connections", play=twins_on_open_connections, turns=2, trained=2),
]


def _params() -> list[Any]:
    return [
        pytest.param(row, driver, stream, id=f"{row.name}-{driver.dialect}-{form}", marks=marks)
        for row in TABLE
        for driver in DRIVERS
        for form, stream in (("json", False), ("stream", True))
        if row.only in (None, stream) and not (row.shared and driver is not DRIVERS[0])
        for marks in [[pytest.mark.case(*row.cases)] if row.cases else []]
    ]


@pytest.mark.parametrize(("row", "driver", "stream"), _params())
async def test_fault(
    row: Row,
    driver: Driver,
    stream: bool,
    start_rig: StartRig,
    tiny_model: ModelDir,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(driver, stream, monkeypatch)
    await bench.start(start_rig, tiny_model, list(row.faults), row.policy)
    await row.play(bench)
    assert len(bench.turns) == row.turns
    assert await bench.said(("and now something else",)) == f"reply {len(bench.turns) - 1 + _spilt(row)}"
    await _settled(bench)
    trained = _trained_once(bench.session.graph)
    assert len(trained) == row.trained + 1
    assert trained.keys() <= {turn.id for turn in bench.turns if turn.delivered}
    assert {turn.dialect for turn in bench.turns} == {driver.dialect}
    assert (bench.session.budget.turns, bench.session.budget.reserved_turns) == (row.turns + 1, 0)
    assert bench.session.delivery.in_flight == 0


def _spilt(row: Row) -> int:
    """Samples of the inner engine that became no turn: spoilt beyond use."""
    return sum(1 for fault in row.faults if fault and fault.bend in (*UNUSABLE, "abort"))


async def _settled(bench: Bench) -> None:
    """The journal alone holds what memory holds: no committed turn is lost, none was made up."""

    def same() -> bool:
        stored = JournalReader(bench.rig.journal).graph(bench.session.id, bench.session.graph.session_tag)
        return [_essence(turn) for turn in stored] == [_essence(turn) for turn in bench.turns]

    await eventually(same)


def _essence(turn: Turn) -> tuple[Any, ...]:
    return turn.id, turn.parent, turn.delivered, turn.sampled_ids.tolist(), turn.reply


def _trained_once(graph: TraceGraph) -> dict[int, int]:
    """Trained tokens per turn; every check of the trace holds."""
    rows = rows_of(graph)
    assert check_rows(graph, rows) == []
    assert {finding.code for finding in check_graph(graph)} <= {
        "logprob_count",
        "logprob_not_finite",
        "logprob_positive",
    }
    return {turn: len(graph[turn].sampled_ids) for row in rows for turn in row.metadata["trained_turns"]}


def test_every_api_is_in_the_table() -> None:
    assert {driver.dialect for driver in DRIVERS} == {dialect.name for dialect in DIALECTS}


DIE_BEFORE_THE_REPLY = """
import asyncio, os, signal, sys
from drivetrain.gateway import app
left = int(sys.argv.pop(1))

async def reached():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.Event().wait()

async def json(request, dialect, call, served):
    await reached()

async def stream(request, dialect, call, ticket, patience):
    await ticket.served()
    await reached()

app.respond_json, app.respond_stream = json, stream
from drivetrain.cli.main import main
main()
"""


@pytest.mark.case("D4")
async def test_kill_between_commit_and_reply(start_rig: StartRig, tiny_model: ModelDir, tmp_path: Path) -> None:
    """kill -9 when every API's reply is committed and no byte of it was sent: each retry gets the committed reply."""
    combinations = [(driver, stream) for driver in DRIVERS for stream in (False, True)]
    journal = tmp_path / "journal.sqlite"
    script = tmp_path / "script.json"
    script.write_text('["committed"]')
    before = Gateway(ScriptedEngine.from_lines([], tiny_model), (await _codec(tiny_model)), journal, model="policy")
    opened = [await before.open_session() for _ in combinations]
    await before.aclose()
    process = _serve(tiny_model, journal, script, dies_at=len(combinations))
    try:
        port = await asyncio.to_thread(_port, process)
        wires = [await Wire.open(port) for _ in combinations]
        for wire, (driver, stream), (_, key) in zip(wires, combinations, opened, strict=True):
            path, body = driver.request(ASK, stream)
            await wire.send(path, body, driver.key(key))
        assert await asyncio.to_thread(process.wait, 20) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    rig = await start_rig(["sampled again"], journal=journal)
    for (driver, stream), (session, key) in zip(combinations, opened, strict=True):
        recovered = rig.gateway.sessions.get(session.id)
        assert [turn.delivered for turn in recovered.graph] == [False]
        path, body = driver.request(ASK, stream)
        answer = await (await Wire.open(rig.port)).post(path, body, driver.key(key))
        assert driver.said(answer) == "committed"
        assert list(_trained_once(recovered.graph)) == [0]


def _serve(model: ModelDir, journal: Path, script: Path, *, dies_at: int) -> subprocess.Popen[str]:
    options = ["--model", str(model.path), "--journal", str(journal), "--script", str(script), "--port", "0"]
    return subprocess.Popen(
        [sys.executable, "-c", DIE_BEFORE_THE_REPLY, str(dies_at), "serve", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "DRIVETRAIN_ADMIN_KEY": "admin-key-of-the-fault-table"},
    )


async def _codec(model: ModelDir) -> Any:
    from drivetrain.gateway.model import load_codec

    return await asyncio.to_thread(load_codec, model)


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    port = 0
    for line in process.stdout:
        if line.startswith("harness"):
            port = int(line.rstrip().removesuffix("/v1").rsplit(":", 1)[1].strip("/"))
        if line.startswith("ready"):
            break
    return port


@pytest.mark.real
async def test_slow_first_byte_of_a_minute(
    start_rig: StartRig, tiny_model: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All APIs at once: a minute is long."""
    benches = [Bench(driver, True, monkeypatch) for driver in DRIVERS]
    for bench in benches:
        await bench.start(start_rig, tiny_model, [Fault(delay_s=61)], {})
    assert await asyncio.gather(*(bench.said() for bench in benches)) == ["reply 0"] * len(benches)
    assert all(bench.engine.outcomes == ["served"] for bench in benches)
