"""A reader beside a writer sees one state of a session, whatever is committed while it reads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from drivetrain.journal import records
from drivetrain.journal.reader import JournalReader
from drivetrain.journal.writer import Journal
from tests.journal.test_journal import make_turn, open_session


async def test_a_turn_committed_between_two_queries_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    await open_session(journal)
    await journal.add_turn("s-1", make_turn(0))
    reader, loop = JournalReader(journal.path), asyncio.get_running_loop()
    decode = records._read_record
    commits: list[int] = []

    def meanwhile(data: bytes) -> Any:
        """The reader has begun to read the turns, and has not counted them yet."""
        if not commits:
            commits.append(1)
            adding = asyncio.run_coroutine_threadsafe(journal.add_turn("s-1", make_turn(1, parent=0)), loop)
            adding.result(60)
        return decode(data)

    monkeypatch.setattr(records, "_read_record", meanwhile)
    try:
        assert len(await asyncio.to_thread(reader.graph, "s-1", "t")) == 1
        assert commits and len(await asyncio.to_thread(reader.graph, "s-1", "t")) == 2
    finally:
        journal.close()
