"""A call beyond the budget still proves that the reply it goes on from arrived (design invariant 5)."""

from __future__ import annotations

from typing import Any

from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader
from drivetrain.trace.sample import rows_of
from tests.gateway.conftest import StartRig

USER = {"role": "user", "content": "hi"}


async def test_a_call_that_meets_the_budget_confirms_the_turn_it_continues(start_rig: StartRig) -> None:
    rig = await start_rig(["one"])
    session, client = await rig.session(max_turns=1)
    done = await client.chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]
    turn = next(iter(session.graph))
    # A relay reset its connection to us behind the reply: it counts as lost.
    turn.delivered, turn.delivered_at = False, 0.0
    await rig.gateway.journal.mark_delivered(session.id, turn.id, False)
    assert rows_of(session.graph) == []

    history: list[Any] = [USER, {"role": "assistant", "content": done.choices[0].message.content}, USER]
    stopped = await client.chat.completions.create(model="m", messages=history)
    assert "budget" in (stopped.choices[0].message.content or "")
    assert turn.delivered
    assert len(rows_of(session.graph)) == 1
    await rig.gateway.seal_session(session.id)
    stored = next(iter(JournalReader(rig.journal).graph(session.id, session_tag(session.id))))
    assert stored.delivered


async def test_another_request_confirms_nothing(start_rig: StartRig) -> None:
    rig = await start_rig(["one"])
    session, client = await rig.session(max_turns=1)
    await client.chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]
    turn = next(iter(session.graph))
    turn.delivered = False
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "something else"}])
    assert not turn.delivered
