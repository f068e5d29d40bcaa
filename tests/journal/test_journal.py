"""The journal: what is written is read back, and what it cannot do it says."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.errors import ConfigError
from drivetrain.journal.reader import JournalReader
from drivetrain.journal.records import INSERT_TURN, read_turns, turn_row
from drivetrain.journal.schema import prepare
from drivetrain.journal.writer import Journal, JournalError
from drivetrain.messages import Message, Reply, RequestedSampling, ToolCall, ToolSpec, Usage
from drivetrain.trace.turn import Turn, pack_ids, pack_logprobs


def make_turn(turn_id: int, parent: int | None = None, count: int = 3) -> Turn:
    calls = (ToolCall("call_1", "bash", '{"command": "ls é"}'),)
    return Turn(
        id=turn_id,
        parent=parent,
        link="linear" if parent is not None else "root",
        delta_ids=pack_ids([1, 2, 70_000]),
        sampled_ids=pack_ids(range(count)),
        logprobs=pack_logprobs([-0.1 * i for i in range(count)]),
        prompt_len=3,
        prompt_sha256=b"p" * 32,
        tail_keys=(b"a" * 16, b"\x00" * 16),
        prompt_chain=b"c" * 16,
        reply_key=b"k" * 16,
        reply_chain=b"r" * 16,
        finish_reason="tool_calls",
        notes=("malformed_tool_call",),
        policy_version_start=3,
        policy_version_end=4,
        dialect="openai_chat",
        requested=RequestedSampling(temperature=0.2, stop=("x",), extra={"reasoning_effort": "low"}),
        effective={"temperature": 1.0, "stop_token_ids": [2]},
        engine="scripted",
        reply=Reply("id", "m", 1, "text", "", calls, "tool_calls", Usage(3, count)),
        messages=(Message("user", "hi"),),
        tools=(ToolSpec("bash", "d", {"type": "object"}),) if parent is None else None,
        started_at=1.5,
        dispatched_at=2.5,
        completed_at=3.5,
    )


async def open_session(journal: Journal, session_id: str = "s-1") -> None:
    await journal.add_session(
        session_id, key_digest=session_id.encode(), policy=b"p", labels={"task": "t"}, created_at=time.time()
    )


def same(left: Turn, right: Turn) -> bool:
    arrays = ("delta_ids", "sampled_ids", "logprobs")
    if not all(np.array_equal(getattr(left, name), getattr(right, name)) for name in arrays):
        return False
    rest = [name for name in Turn.__struct_fields__ if name not in arrays]
    return [getattr(left, name) for name in rest] == [getattr(right, name) for name in rest]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 2**31 - 1), max_size=20),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20),
    st.text(),
)
def test_turn_round_trip(ids: list[int], logprobs: list[float], text: str) -> None:
    turn = make_turn(0)
    turn.delta_ids, turn.sampled_ids, turn.logprobs = pack_ids(ids), pack_ids(ids), pack_logprobs(logprobs)
    turn.reply = msgspec.structs.replace(turn.reply, content=text)
    turn.messages = (Message("user", text),)
    with sqlite3.connect(":memory:") as db:
        prepare(db, Path("memory"))
        db.execute("PRAGMA foreign_keys=OFF")
        db.execute(INSERT_TURN, turn_row("s", turn))
        (back,) = read_turns(db, "s", Path("memory"))
    assert same(turn, back)


def test_integers_of_a_tool_schema_are_of_any_size() -> None:
    turn = make_turn(0)
    turn.tools = (ToolSpec("t", parameters={"maximum": 2**70, "minimum": -(2**70), "multipleOf": 0.1}),)
    with sqlite3.connect(":memory:") as db:
        prepare(db, Path("memory"))
        db.execute("PRAGMA foreign_keys=OFF")
        db.execute(INSERT_TURN, turn_row("s", turn))
        (back,) = read_turns(db, "s", Path("memory"))
    assert same(turn, back)


async def test_written_is_read_back_while_open(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    await open_session(journal)
    await journal.add_turn("s-1", make_turn(0))
    await journal.add_turn("s-1", make_turn(1, parent=0))
    await journal.mark_delivered("s-1", 0)
    await journal.add_event("s-1", "budget_stop", budget="max_turns")
    reader = JournalReader(journal.path)
    graph = reader.graph("s-1", "0" * 8)
    assert [(turn.id, turn.parent, turn.delivered) for turn in graph] == [(0, None, True), (1, 0, False)]
    assert [(event.kind, event.detail) for event in reader.events("s-1")] == [("budget_stop", {"budget": "max_turns"})]
    await journal.seal_session("s-1")
    assert [session.state for session in reader.sessions()] == ["sealed"]
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        await journal.add_event("s-1", "late")


async def test_many_writers_are_all_committed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    for name in ("s-1", "s-2"):
        await open_session(journal, name)
    await asyncio.gather(*(journal.add_turn(f"s-{1 + i % 2}", make_turn(i)) for i in range(200)))
    reader = JournalReader(journal.path)
    assert sorted(turn.id for name in ("s-1", "s-2") for turn in reader.graph(name, "0" * 8)) == list(range(200))
    journal.close()


async def test_one_bad_operation_does_not_harm_its_batch(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    await open_session(journal)
    outcomes = await asyncio.gather(
        journal.add_turn("s-1", make_turn(0)),
        journal.add_turn("s-1", make_turn(0)),
        journal.add_turn("unknown session", make_turn(1)),
        journal.add_turn("s-1", make_turn(2)),
        return_exceptions=True,
    )
    assert [isinstance(outcome, JournalError) for outcome in outcomes] == [False, True, True, False]
    assert [turn.id for turn in JournalReader(journal.path).graph("s-1", "0" * 8)] == [0, 2]
    journal.close()


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no journal at"):
        JournalReader(tmp_path / "none.sqlite")
    text = tmp_path / "text.sqlite"
    text.write_text("this is no database, only text that is long enough to be read as one" * 20)
    with pytest.raises(ConfigError, match="journal"):
        Journal(text)
    newer = tmp_path / "newer.sqlite"
    Journal(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("UPDATE meta SET value = '99'")
    for opener in (Journal, JournalReader):
        with pytest.raises(ConfigError, match="version 99"):
            opener(newer)
    first = Journal(tmp_path / "busy.sqlite")
    with pytest.raises(ConfigError, match="another process"):
        Journal(first.path)
    first.close()
