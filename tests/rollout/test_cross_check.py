"""Each difference between a log and the record is found, and only differences are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from drivetrain.gateway.turn import STOPPING
from drivetrain.rollout.cross_check import cross_check
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.labels import infer_labels
from swe_rl_agent.log_work import LoggedWork
from tests.gateway.conftest import BASH, StartRig, bash_call, start_rig  # noqa: F401 (a fixture)

Recorded = tuple[TraceGraph, list[str], int]


@pytest.fixture
async def recorded(start_rig: StartRig) -> Recorded:  # noqa: F811
    """Two turns, the first with one call: the graph, the call's id, output tokens in all."""
    rig = await start_rig([bash_call("ls"), "It is done."])
    session, client = await rig.session()
    history = [{"role": "user", "content": "fix it"}]
    first = await client.chat.completions.create(model="m", messages=history, tools=[BASH])  # type: ignore[arg-type, list-item, call-overload]
    message = first.choices[0].message
    history += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a.py"},
    ]
    second = await client.chat.completions.create(model="m", messages=history, tools=[BASH])  # type: ignore[arg-type, list-item, call-overload]
    await client.close()
    await rig.gateway.seal_session(session.id)
    assert all(turn.delivered for turn in session.graph)
    total = first.usage.completion_tokens + second.usage.completion_tokens
    return session.graph, [message.tool_calls[0].id], total


def codes(recorded: Recorded, work: LoggedWork, *besides: str) -> list[str]:
    graph = recorded[0]
    return [found.code for found in cross_check(graph, infer_labels(graph), work, served_besides=besides)]


TEXTS = ("Let me look.", "It is done.")


async def test_a_log_that_agrees(recorded: Recorded) -> None:
    _, ids, total = recorded
    assert codes(recorded, LoggedWork(call_ids=tuple(ids), texts=TEXTS, output_tokens=total)) == []
    prefixed = (f"run_shell_command__{ids[0]}",)
    spaced = (" Let me\nlook. ", "It is done.")
    assert codes(recorded, LoggedWork(call_ids=prefixed, texts=spaced)) == []
    assert codes(recorded, LoggedWork()) == [], "a log that says nothing contradicts nothing"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda ids, total: LoggedWork(call_ids=(*ids, "call_other")), ["log_unknown_call"]),
        (lambda ids, total: LoggedWork(call_ids=()), ["log_missing_call"]),
        (lambda ids, total: LoggedWork(texts=(*TEXTS, "I was never asked.")), ["log_unknown_text"]),
        (lambda ids, total: LoggedWork(texts=TEXTS[:1]), ["log_missing_text"]),
        (lambda ids, total: LoggedWork(output_tokens=total + 1), ["log_token_total"]),
    ],
)
async def test_each_difference_has_its_code(
    recorded: Recorded, change: Callable[[list[str], int], LoggedWork], expected: list[str]
) -> None:
    assert codes(recorded, change(recorded[1], recorded[2])) == expected


async def test_nothing_is_missing_from_a_log_that_was_cut(recorded: Recorded) -> None:
    _, _, total = recorded
    assert codes(recorded, LoggedWork(call_ids=(), texts=(), output_tokens=total - 5, complete=False)) == []
    assert codes(recorded, LoggedWork(call_ids=("call_x",), complete=False)) == ["log_unknown_call"]


async def test_the_budgets_stop_is_no_turn(recorded: Recorded) -> None:
    stop = f"{STOPPING} (max_turns) is used up."
    work = LoggedWork(texts=(*TEXTS, stop))
    assert codes(recorded, work) == ["log_unknown_text"]
    assert codes(recorded, work, STOPPING) == []
