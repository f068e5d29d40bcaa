"""A disk that is full: nothing is committed and nothing is lost, and it goes on when there is space."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from drivetrain.journal.reader import JournalReader
from drivetrain.journal.writer import Journal, JournalBlocked, JournalError
from tests.journal.test_journal import make_turn, open_session
from tests.small_disk import SmallDisk, until


def stored(path: Path) -> list[int]:
    return [turn.id for turn in JournalReader(path).graph("s-1", "0" * 8)]


async def blocked_by(disk: SmallDisk, journal: Journal, first: int) -> asyncio.Task[None]:
    """Fill the disk and commit large turns until one has to wait; that one."""
    disk.fill()
    for number in range(first, first + 50):
        task = asyncio.create_task(journal.add_turn("s-1", make_turn(number, count=20_000)))
        await until(lambda task=task: task.done() or journal.blocked)
        if not task.done():
            return task
    raise AssertionError("the disk never filled")


async def test_a_turn_waits_for_space_and_is_then_committed(disk: SmallDisk) -> None:
    journal = Journal(disk.path / "journal.sqlite")
    await open_session(journal)
    await journal.add_turn("s-1", make_turn(0))
    waiting = await blocked_by(disk, journal, 1)
    assert journal.blocked == f"no space is left for the journal {journal.path}."
    before = stored(journal.path)

    # What no reply depends on is taken at once and written later; what one depends on waits.
    async with asyncio.timeout(60):
        await journal.mark_delivered("s-1", 0)
        await journal.add_event("s-1", "noticed", while_full=True)
    gate = asyncio.create_task(journal.writable())
    disk.free(4096)  # a few bytes are no space
    tried = journal.counts.blocks
    await asyncio.sleep(0.6)
    assert not waiting.done() and not gate.done() and stored(journal.path) == before
    assert journal.blocked_s > 0.5

    disk.free()
    async with asyncio.timeout(60):
        await asyncio.gather(waiting, gate)
    assert journal.blocked == "" and journal.counts.blocks == tried == 1
    await journal.writable()
    await journal.add_event("s-1", "after")
    after = stored(journal.path)
    assert after == [*before, len(before)] and JournalReader(journal.path).graph("s-1", "0" * 8)[0].delivered
    assert [event.kind for event in JournalReader(journal.path).events("s-1")] == ["noticed", "after"]
    journal.close()


async def test_whoever_waits_too_long_is_told_and_only_what_must_be_is_kept(disk: SmallDisk) -> None:
    journal = Journal(disk.path / "journal.sqlite", patience_s=1.0)
    await open_session(journal)
    waiting = await blocked_by(disk, journal, 0)
    ending = asyncio.create_task(journal.seal_session("s-1"))
    began = time.monotonic()
    for late in (waiting, ending):
        async with asyncio.timeout(60):
            with pytest.raises(JournalBlocked, match=r"no space is left.*Make room") as told:
                await late
        assert told.value.retry_after_s == 30
    assert time.monotonic() - began > 0.5
    before = stored(journal.path)
    disk.free()
    await until(lambda: not journal.blocked)
    assert stored(journal.path) == before, "its call was answered with an error"
    assert [session.state for session in JournalReader(journal.path).sessions()] == ["sealed"]
    journal.close()


async def test_what_follows_is_kept_up_to_a_number(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.journal.committer._MOST_FOLLOWING", 3)
    journal = Journal(disk.path / "journal.sqlite")
    await open_session(journal)
    waiting = await blocked_by(disk, journal, 0)
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(
            *(journal.add_event("s-1", f"event {number}") for number in range(5)), return_exceptions=True
        )
    assert [isinstance(outcome, JournalBlocked) for outcome in outcomes] == [False] * 3 + [True] * 2
    disk.free()
    async with asyncio.timeout(60):
        await waiting
    assert [event.kind for event in JournalReader(journal.path).events("s-1")] == [f"event {n}" for n in range(3)]
    journal.close()


async def test_the_end_does_not_wait_for_space(disk: SmallDisk) -> None:
    journal = Journal(disk.path / "journal.sqlite")
    await open_session(journal)
    waiting = await blocked_by(disk, journal, 0)
    before = stored(journal.path)
    await asyncio.wait_for(asyncio.to_thread(journal.close), 60)
    with pytest.raises(JournalBlocked):
        await waiting
    again = Journal(disk.path / "journal.sqlite")  # a full disk can be read from
    assert stored(again.path) == before
    again.close()


async def test_what_cannot_be_stored_harms_nobody_else(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    await open_session(journal)
    outcomes = await asyncio.gather(
        journal.add_event("\ud800", "half a character"), journal.add_turn("s-1", make_turn(0)), return_exceptions=True
    )
    assert isinstance(outcomes[0], JournalError) and outcomes[1] is None
    assert stored(journal.path) == [0]
    journal.close()
