"""Turns that come at the same time share a transaction, and nobody is told before it is on the disk."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

from drivetrain.cli.trace import app as trace
from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.journal.reader import JournalReader
from drivetrain.journal.writer import Journal
from drivetrain.messages import Call, Message
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.tokens.codec import TokenCodec
from tests.journal.test_journal import make_turn, open_session
from tests.small_disk import until


async def test_what_comes_during_a_commit_shares_the_next(tmp_path: Path) -> None:
    """An entry waits for one commit under way and for its own, however many come."""
    journal = Journal(tmp_path / "j.sqlite")
    await open_session(journal)
    before = journal.counts.commits
    slow, go_on = threading.Event(), threading.Event()

    def disk_is_slow(_: sqlite3.Connection) -> None:
        slow.set()
        go_on.wait(60)

    first = asyncio.create_task(journal._write(disk_is_slow))
    await until(slow.is_set)
    turns = [asyncio.create_task(journal.add_turn("s-1", make_turn(number))) for number in range(100)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in turns)
    go_on.set()
    async with asyncio.timeout(60):
        await asyncio.gather(first, *turns)
    assert journal.counts.commits == before + 2
    assert journal.counts.entries >= 102
    journal.close()


async def test_nobody_resumes_before_the_transaction_is_committed_and_synced(tmp_path: Path) -> None:
    """Each of these turns is seen by another connection as soon as its writer resumes."""
    journal = Journal(tmp_path / "j.sqlite")
    await open_session(journal)
    settings = {
        name: journal._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
    }
    assert settings == {"journal_mode": "wal", "synchronous": 2}, "2: the log is synced in every commit"

    async def write(number: int) -> None:
        await journal.add_turn("s-1", make_turn(number))
        reader = JournalReader(journal.path)
        assert number in reader.graph("s-1", "0" * 8)

    await asyncio.gather(*(write(number) for number in range(20)))
    journal.close()


async def test_runs_are_shown_explained_and_exported_while_they_are_written(
    tmp_path: Path, codec: TokenCodec, tiny_model: ModelDir
) -> None:
    run = RunDir.create(tmp_path / "run")
    run.write_info({"model": {"name": "tiny", "path": str(tiny_model.path)}, "selection": Selection()})
    gateway = Gateway(ScriptedEngine.from_lines([], tiny_model, then="so"), codec, run.journal, model="m")
    done, _ = await gateway.open_session(SessionPolicy(model="m"), labels={"rollout": "t.a.0", "agent": "a"})
    live, _ = await gateway.open_session(SessionPolicy(model="m", max_turns=10**6))

    async def turn(session: Any, number: int) -> None:
        call = Call("test", "m", (Message("user", f"question {number}"),))
        await gateway.delivered(session, await gateway.serve(session, call, b"%d" % number))

    for number in range(3):
        await turn(done, number)
    await gateway.seal_session(done.id)
    run.append(
        RolloutResult(rollout_id="t.a.0", session_id=done.id, task_id="t", agent="a", group=0, status="ok", reward=1.0)
    )
    stop = asyncio.Event()

    async def keep_writing() -> int:
        number = 0
        while not stop.is_set():
            await turn(live, number)
            number += 1
        return number

    writing = asyncio.create_task(keep_writing())
    try:
        for arguments in (
            ["show", str(run.path), "t.a.0"],
            ["why-forked", str(run.path), "t.a.0", "--json"],
            ["stats", str(run.path), "--json"],
            ["export", str(run.path), "--format", "openenv"],
        ):
            before = len(live.graph)
            await asyncio.to_thread(lambda a=arguments: trace(a, standalone_mode=False))
            await until(lambda before=before: len(live.graph) > before or writing.done())
            assert not writing.done(), writing.exception()
        # A reader that holds its view open stops no writer.
        with sqlite3.connect(f"{run.journal.as_uri()}?mode=ro", uri=True) as db:
            db.execute("BEGIN")
            (seen,) = db.execute("SELECT COUNT(*) FROM turns").fetchone()
            before = len(live.graph)
            await until(lambda: len(live.graph) > before + 3 or writing.done())
            assert db.execute("SELECT COUNT(*) FROM turns").fetchone() == (seen,)
    finally:
        stop.set()
    assert await writing == len(live.graph)
    assert (run.path / "exports" / "openenv.jsonl").stat().st_size > 0
    await gateway.aclose()
    assert len(JournalReader(run.journal).graph(live.id, live.graph.session_tag)) == len(live.graph)
