"""Move a sealed session from one journal to another, record by record as it was written."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.journal.checksums import Value, record_check
from drivetrain.journal.errors import JournalDamaged
from drivetrain.journal.reader import JournalReader

_SESSION = ("id", "key_digest", "policy", "labels", "state", "created_at", "sealed_at", "checksum")
_TURN = ("turn_id", "seq", "delta_ids", "sampled_ids", "logprobs", "record", "delivered", "checksum")
_EVENT = ("kind", "detail", "at", "checksum")


class SessionRecords(msgspec.Struct, frozen=True):
    """One session's rows, the values in the order of the journal's columns, checksums last.

    ``turns`` and ``events`` are in the order in which they were committed; their session id is that of ``session``.
    """

    session: list[Any]
    turns: list[list[Any]]
    events: list[list[Any]]

    @property
    def id(self) -> str:
        """Of the session."""
        return str(self.session[0])

    @property
    def sealed(self) -> bool:
        """Whether it has ended: nothing is added to it any more."""
        return bool(self.session[_SESSION.index("state")] == "sealed")

    def damage(self) -> str:
        """What is not as it was written, in words; empty when everything is."""
        *session, checksum = self.session
        if checksum != record_check(*session):
            return f"the record of session {self.id}"
        for number, (turn_id, seq, *fixed, delivered, check) in enumerate(self.turns):
            if seq != number or check - seq - delivered != record_check(self.id, turn_id, *fixed):
                return f"turn {turn_id} of session {self.id}"
        for number, (*event, check) in enumerate(self.events):
            if check != record_check(self.id, *event):
                return f"event {number} of session {self.id}"
        return ""


def read_session(path: Path, session_id: str) -> SessionRecords:
    """A session's records, also while the journal is being written.

    Raises:
        ConfigError: there is no such session or journal, or it is of a version without checksums.
        JournalDamaged: a record is not what was written.
    """
    reader = JournalReader(path)
    if not reader.checked:
        raise ConfigError(f"{path} is of an older version.", fix="Open it once with this drivetrain to convert it.")
    with reader.connect() as db:
        session = db.execute(f"SELECT {', '.join(_SESSION)} FROM sessions WHERE id = ?", (session_id,)).fetchone()
        if session is None:
            raise ConfigError(f"{path} has no session {session_id!r}.")
        turns = db.execute(f"SELECT {', '.join(_TURN)} FROM turns WHERE session_id = ? ORDER BY seq", (session_id,))
        events = db.execute(f"SELECT {', '.join(_EVENT)} FROM events WHERE session_id = ? ORDER BY id", (session_id,))
        records = SessionRecords(list(session), [list(turn) for turn in turns], [list(event) for event in events])
    if damage := records.damage():
        raise JournalDamaged(path, f"{damage} is not what was written")
    return records


def insert_session(db: sqlite3.Connection, records: SessionRecords) -> None:
    """Write the records; the caller has a transaction open."""
    _insert(db, "sessions", _SESSION, [records.session])
    _insert(db, "turns", ("session_id", *_TURN), [[records.id, *turn] for turn in records.turns])
    _insert(db, "events", ("session_id", *_EVENT), [[records.id, *event] for event in records.events])


def _insert(db: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: list[list[Value]]) -> None:
    places = ", ".join("?" * len(columns))
    db.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", rows)
