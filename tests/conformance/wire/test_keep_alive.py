"""Keep-alives: what a waiting client gets in each API and form, and what never waits behind a generation."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import aiohttp
import pytest

from drivetrain.engines.faulty import Fault, FaultyEngine
from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.patience import KeepAliveForm, Patience
from drivetrain.gateway.policy import SessionPolicy
from swe_rl_agent.preset import PRESETS, load_preset
from tests.conformance.wire.drivers import DRIVERS, Driver
from tests.gateway.conftest import Rig, StartRig
from tests.gateway.raw import Answer, Wire, eventually

MARKS: dict[tuple[str, KeepAliveForm], bytes] = {
    ("openai_chat", "default"): b": keep-alive\n\n",
    ("openai_chat", "event"): b'"delta":{"content":""}',
    ("openai_responses", "event"): b"event: response.in_progress",
    ("anthropic", "default"): b"event: ping",
    ("anthropic", "event"): b"event: ping",
    ("google", "default"): b"\n",
    ("google", "newline"): b"\n",
}
"""Forms that were seen to work (harnesses.md section 1.5) or that the API documents."""


def slow(model: ModelDir, delay_s: float = 0.4) -> FaultyEngine:
    return FaultyEngine(ScriptedEngine.from_lines(["late"], model), [Fault(delay_s=delay_s)])


async def ask(rig: Rig, driver: Driver, patience: Patience, stream: bool = True) -> Answer:
    _, key = await rig.gateway.open_session(SessionPolicy(model="policy", patience=patience))
    path, body = driver.request(("fix it",), stream)
    return await (await Wire.open(rig.port)).post(path, body, driver.key(key))


@pytest.mark.case("D2")
@pytest.mark.parametrize("form", get_args(KeepAliveForm))
@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.dialect)
async def test_every_form_leaves_the_reply_as_it_is(
    start_rig: StartRig, tiny_model: ModelDir, driver: Driver, form: KeepAliveForm
) -> None:
    """The session's own patience wins over the server's; what is sent meanwhile adds nothing to the reply."""
    engine = slow(tiny_model)
    rig = await start_rig(engine=engine, patience=Patience(grace_s=30))
    answer = await ask(rig, driver, Patience(grace_s=0.05, every_s=0.05, form=form))
    assert driver.said(answer) == "late"
    quick = await ask(rig, driver, Patience(grace_s=30, form=form))
    assert driver.said(quick) == "late"
    assert len(answer.body) > len(quick.body)
    if mark := MARKS.get((driver.dialect, form)):
        assert answer.body.count(mark) >= quick.body.count(mark) + 3
    if form == "newline" or (driver.dialect, form) == ("google", "default"):
        assert b"\n:" not in answer.body and not answer.body.startswith(b":")
    assert engine.outcomes == ["served", "served"]


@pytest.mark.case("D8")
@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.dialect)
async def test_who_asks_for_a_stream_gets_one_and_nobody_else(
    start_rig: StartRig, tiny_model: ModelDir, driver: Driver
) -> None:
    rig = await start_rig(engine=slow(tiny_model, 0.2))
    impatient = Patience(grace_s=0.05, every_s=0.05)
    streamed = await ask(rig, driver, impatient)
    whole = await ask(rig, driver, impatient, stream=False)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert whole.headers["content-type"].startswith("application/json")
    _, key = await rig.gateway.open_session(SessionPolicy(model="policy", max_turns=1))
    for expected in ("late", "Stopping here"):  # a used-up budget is told in the form that was asked for
        path, body = driver.request((expected,), True)
        answer = await (await Wire.open(rig.port)).post(path, body, driver.key(key))
        assert expected in driver.said(answer)


@pytest.mark.case("D11")
async def test_health_and_seal_do_not_wait_for_a_generation(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = FaultyEngine(ScriptedEngine.from_lines([], tiny_model), [Fault(hang=True)] * 2)
    rig = await start_rig(engine=engine)
    admin = await rig.server.listen_admin(0, "dt-admin-" + "k" * 43)
    session, key = await rig.gateway.open_session()
    chat = DRIVERS[0]
    wires = [await Wire.open(rig.port) for _ in range(2)]
    for number, wire in enumerate(wires):
        path, body = chat.request((f"fix {number}",), False)
        await wire.send(path, body, chat.key(key))
    await eventually(lambda: engine.outcomes == ["pending", "pending"])
    headers = {"Authorization": "Bearer dt-admin-" + "k" * 43}
    async with asyncio.timeout(5), aiohttp.ClientSession(f"http://127.0.0.1:{admin}", headers=headers) as http:
        for method, route in (("GET", "/admin/health"), ("DELETE", f"/admin/sessions/{session.id}")):
            async with http.request(method, route) as response:
                assert response.status == 200
        answers = [await wire.answer() for wire in wires]
    assert [answer.status for answer in answers] == [409, 409]
    assert engine.outcomes == ["cancelled", "cancelled"]


def test_presets_say_how_their_harness_waits() -> None:
    """A preset's patience is one that the gateway takes."""
    found: dict[str, Any] = {}
    for path in sorted(PRESETS.glob("*.toml")):
        preset = load_preset(path)
        if preset.patience is not None:
            own = preset.patience
            found[preset.name] = Patience(grace_s=own.grace_s, every_s=own.every_s, form=own.form)
            assert own.grace_s + own.every_s < 60, "the least patient client waits 60 s"
    assert found["pi"] == Patience(grace_s=15, every_s=10, form="comment")
