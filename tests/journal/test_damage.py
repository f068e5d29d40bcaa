"""Storage that lies: a torn tail is a crash and is tolerated, anything else is named and refused."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.journal.errors import JournalDamaged
from drivetrain.journal.reader import JournalReader
from drivetrain.journal.writer import Journal
from drivetrain.tokens.codec import TokenCodec
from tests.journal.test_journal import make_turn, open_session

TURNS = 12
_FRAME = 24 + 4096


@pytest.fixture
async def crashed(tmp_path: Path) -> Path:
    """A journal as a killed process leaves it: everything in the write-ahead log, one transaction per turn."""
    journal = Journal(tmp_path / "live.sqlite")
    await open_session(journal)
    for number in range(TURNS):
        await journal.add_turn("s-1", make_turn(number, count=200))
    path = tmp_path / "journal.sqlite"
    for suffix in ("", "-wal"):
        shutil.copy(f"{journal.path}{suffix}", f"{path}{suffix}")
    journal.close()
    return path


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def turns(path: Path) -> list[int]:
    return [turn.id for turn in JournalReader(path).graph("s-1", "0" * 8)]


def commit_ends(log: bytes) -> list[int]:
    """Where each transaction in a log ends."""
    starts = range(32, len(log), _FRAME)
    return [start + _FRAME for start in starts if int.from_bytes(log[start + 4 : start + 8], "big")]


async def test_whatever_is_cut_off_the_tail_the_whole_transactions_in_front_are_there(crashed: Path) -> None:
    log = log_of(crashed).read_bytes()
    ends = commit_ends(log)
    assert len(ends) >= TURNS
    assert turns(crashed) == list(range(TURNS))
    whole_file = crashed.read_bytes()
    for cut in [*random.Random(7).sample(range(ends[0], len(log)), 20), ends[3], ends[3] + 1, ends[3] - 1]:
        crashed.write_bytes(whole_file)
        log_of(crashed).write_bytes(log[:cut])
        journal = Journal(crashed)
        kept = turns(crashed) if cut >= ends[2] else []
        journal.close()
        # schema, session and each turn are a transaction of their own
        first = len(ends) - TURNS
        assert kept == list(range(max(0, sum(end <= cut for end in ends) - first))), cut


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


@pytest.mark.parametrize("opener", [Journal, JournalReader])
def test_a_flipped_bit_in_front_of_committed_turns_is_refused(crashed: Path, opener: Callable[[Path], object]) -> None:
    log = log_of(crashed).read_bytes()
    ends = commit_ends(log)
    at = ends[5] + 24 + 100  # in the first page after the sixth transaction
    log_of(crashed).write_bytes(flipped(log, at))
    frame = (ends[5] - 32) // _FRAME + 1
    with pytest.raises(JournalDamaged, match=rf"journal.sqlite-wal is damaged: frame {frame} of \d+") as refused:
        opener(crashed)
    assert f"truncate --size {ends[5]} {log_of(crashed)}" in str(refused.value)
    assert log_of(crashed).read_bytes() == flipped(log, at), "the evidence is untouched"

    log_of(crashed).write_bytes(log[: ends[5]])  # as the message says
    Journal(crashed).close()
    assert turns(crashed) == list(range(6 - (len(ends) - TURNS)))


def test_a_flipped_bit_in_the_last_transaction_is_a_torn_tail(crashed: Path) -> None:
    log = log_of(crashed).read_bytes()
    log_of(crashed).write_bytes(flipped(log, commit_ends(log)[-2] + 24 + 100))
    Journal(crashed).close()
    assert turns(crashed) == list(range(TURNS - 1))


def test_a_broken_header_of_the_log_is_refused(crashed: Path) -> None:
    log = log_of(crashed).read_bytes()
    log_of(crashed).write_bytes(flipped(log, 18))
    with pytest.raises(JournalDamaged, match="its header is not what was written"):
        Journal(crashed)
    log_of(crashed).write_bytes(b"\0" * 4096)  # a file system that extended it and crashed before it wrote
    Journal(crashed).close()


@pytest.fixture
async def closed(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "journal.sqlite")
    for session in ("s-1", "s-2"):
        await journal.add_session(
            session,
            key_digest=session.encode(),
            policy=msgspec.msgpack.encode(SessionPolicy(model="m")),
            labels={},
            created_at=1.0,
        )
        await journal.add_event(session, "noticed", what="something")
        for number in range(3):
            await journal.add_turn(session, make_turn(number))
        await journal.mark_delivered(session, 0, at=5.0)
    journal.close()
    return journal.path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE turns SET sampled_ids = x'00000000' WHERE turn_id = 1", r"turn 1 of session s-1 \(number 1\) is not"),
        ("UPDATE turns SET delivered = 1 WHERE turn_id = 2", r"turn 2 of session s-1 \(number 2\) is not"),
        ("DELETE FROM turns WHERE turn_id = 1", "turn number 1 of session s-1 is missing"),
        ("UPDATE sessions SET policy = x'00'", "the record of session s-1 is not"),
        ("UPDATE sessions SET state = 'sealed'", "the record of session s-1 is not"),
        ("UPDATE events SET detail = '{}'", "event 0 of session s-1 is not"),
    ],
)
def test_a_changed_record_is_named(
    closed: Path, change: str, says: str, codec: TokenCodec, tiny_model: ModelDir
) -> None:
    with closing(sqlite3.connect(closed)) as db, db:
        where = " AND " if "WHERE" in change else " WHERE "
        db.execute(f"{change}{where}{'id' if 'sessions' in change else 'session_id'} = 's-1'")
    reader = JournalReader(closed)
    with pytest.raises(JournalDamaged, match=f"{closed} is damaged: {says}.*Restore it from a copy"):
        reader.sessions()
        reader.events("s-1")
        reader.graph("s-1", "0" * 8)
    assert len(reader.graph("s-2", "0" * 8)) == 3 and reader.events("s-2"), "a session that is whole can be read"
    with pytest.raises(JournalDamaged):  # and no gateway goes on with it as if nothing were wrong
        Gateway(ScriptedEngine.from_lines([], tiny_model), codec, closed, model="m")


def test_a_broken_page_is_named(closed: Path) -> None:
    data = bytearray(closed.read_bytes())
    with closing(sqlite3.connect(closed)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'turns'").fetchone()
    data[(page - 1) * 4096 : (page - 1) * 4096 + 40] = b"\xff" * 40
    closed.write_bytes(bytes(data))
    with pytest.raises(JournalDamaged, match=rf"{closed.name} is damaged: .*malformed.*Page {page}"):
        JournalReader(closed).graph("s-1", "0" * 8)
