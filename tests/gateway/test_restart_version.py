"""A gateway that restarts in front of a server that kept its weights goes on with their policy version."""

from __future__ import annotations

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from tests.gateway.conftest import StartRig


@pytest.mark.case("E1")
async def test_the_version_goes_on_after_a_restart(start_rig: StartRig, tiny_model: ModelDir) -> None:
    first = await start_rig(["one"])
    _, client = await first.session()
    await first.gateway.fence.pause()
    await first.gateway.fence.resume(7)
    question = [{"role": "user", "content": "hi"}]
    await client.chat.completions.create(model="m", messages=question)  # type: ignore[arg-type]
    await first.server.aclose()

    engine = ScriptedEngine.from_lines(["two"], tiny_model, then="two")
    second = await start_rig(engine=engine, journal=first.journal)
    assert engine.policy_version == 0
    assert await second.gateway.continue_version() == 7
    assert await second.gateway.continue_version() is None
    again = client.with_options(base_url=f"{second.url}/v1")
    more = [*question, {"role": "assistant", "content": "one"}, {"role": "user", "content": "go on"}]
    await again.chat.completions.create(model="m", messages=more)  # type: ignore[arg-type]
    (session,) = second.gateway.sessions.open_sessions()
    assert [turn.policy_version_start for turn in session.graph] == [7, 7]


async def test_an_engine_that_is_ahead_is_left_alone(start_rig: StartRig, tiny_model: ModelDir) -> None:
    first = await start_rig(["one"])
    _, client = await first.session()
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    await first.server.aclose()
    engine = ScriptedEngine.from_lines(["two"], tiny_model, then="two", policy_version=3)
    second = await start_rig(engine=engine, journal=first.journal)
    assert await second.gateway.continue_version() is None
    assert engine.policy_version == 3
