"""Structure cases (docs/cases.md, C) that need several calls at once."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.trace.sample import rows_of
from drivetrain.trace.validate import check_graph, check_rows
from tests.gateway.conftest import BASH, StartRig, bash_call
from tests.gateway.raw import eventually

USER = {"role": "user", "content": "fix the bug"}


@pytest.mark.case("C3")
@pytest.mark.parametrize("same", [False, True])
async def test_two_calls_continue_one_turn_at_the_same_instant(
    start_rig: StartRig, tiny_model: ModelDir, same: bool
) -> None:
    """Both find the turn without a child; the first to be committed extends it, the second is a fork beside it."""
    arrived = asyncio.Event()

    async def both_are_there() -> None:
        await eventually(lambda: engine.running == 2)
        arrived.set()

    class Meeting(ScriptedEngine):
        async def generate(self, *args, **options):  # type: ignore[no-untyped-def]
            completion = await super().generate(*args, **options)
            if len(self.calls) > 1:
                self.running += 1
                await arrived.wait()
                self.running -= 1
            return completion

    engine = Meeting.from_lines([bash_call("ls"), "left", "right"], tiny_model)
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    done = await client.chat.completions.create(model="m", messages=[USER], tools=[BASH])  # type: ignore[list-item]
    said = done.choices[0].message
    assert said.tool_calls
    result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "a long listing " * 20}

    async def go_on(name: str) -> str:
        history = [USER, said, result, *([] if same else [{"role": "user", "content": name}])]
        headers = {"x-session-id": name}  # equal bodies of two agents are two requests
        answer = await client.chat.completions.create(
            model="m",
            messages=history,
            tools=[BASH],
            extra_headers=headers,  # type: ignore[arg-type]
        )
        return answer.choices[0].message.content or ""

    answers = await asyncio.gather(go_on("one"), go_on("two"), both_are_there())
    assert sorted(filter(None, answers)) == ["left", "right"]
    await eventually(lambda: all(turn.delivered for turn in session.graph))
    first, second, third = session.graph
    assert (second.parent, second.link, second.fork_reason) == (first.id, "linear", "")
    reason = "same_prompt" if same else "branch"
    assert (third.parent, third.link, third.fork_reason) == (first.id, "fork", reason)
    through = session.graph.ids_through(first)
    for turn in (second, third):
        assert np.array_equal(session.graph.prompt_ids(turn)[: len(through)], through)
    assert third.base == second.id and len(third.delta_ids) < len(second.delta_ids) / 2
    rows = rows_of(session.graph)
    assert [row.metadata["trained_turns"] for row in rows] == [[first.id, second.id], [third.id]]
    assert check_graph(session.graph) == check_rows(session.graph, rows) == []
