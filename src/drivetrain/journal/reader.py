"""Read a journal, also while it is being written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.journal.checksums import record_check
from drivetrain.journal.errors import JournalDamaged
from drivetrain.journal.records import read_turns
from drivetrain.journal.schema import check_version, is_checked
from drivetrain.journal.wal import check_wal, is_being_written
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.provenance import SessionProvenance

_SESSION = "id, key_digest, policy, labels, state, created_at, sealed_at"
_BUSY_S = 30.0


class StoredSession(msgspec.Struct, frozen=True):
    """A session as the journal holds it; ``policy`` is msgpack of the gateway's ``SessionPolicy``."""

    id: str
    key_digest: bytes
    policy: bytes
    labels: dict[str, str]
    state: str
    created_at: float
    sealed_at: float | None


class StoredEvent(msgspec.Struct, frozen=True):
    """Something that happened in a session and is no turn. ``at`` is seconds since the epoch."""

    session_id: str
    kind: str
    detail: dict[str, Any]
    at: float


class JournalReader:
    """Read-only view of a journal file, also while another process writes it.

    Every record is checked against its checksum, so that a session is read whole or not at all.

    Attributes:
        checked: whether its records have checksums (schema version 3).

    Raises:
        ConfigError: no such file, or no journal of this version.
        JournalDamaged: committed turns in its write-ahead log cannot be read any more. Every method raises it too:
            a record is not what was written.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ConfigError(f"no journal at {path}.", fix="Name a run directory that holds journal.sqlite.")
        self.path = path
        if not is_being_written(path):
            check_wal(path)
        with self.connect() as db:
            self.checked = is_checked(check_version(db, path))

    def sessions(self) -> list[StoredSession]:
        """Every session, oldest first."""
        query = f"SELECT {_SESSION}, {self._checksum} FROM sessions ORDER BY created_at"
        with self.connect() as db:
            return [self._session(row) for row in db.execute(query)]

    def session(self, session_id: str) -> StoredSession | None:
        """One session, or None."""
        query = f"SELECT {_SESSION}, {self._checksum} FROM sessions WHERE id = ?"
        with self.connect() as db:
            row = db.execute(query, (session_id,)).fetchone()
            return None if row is None else self._session(row)

    def graph(self, session_id: str, session_tag: str) -> TraceGraph:
        """The turn graph of a session, rebuilt from its committed turns.

        Raises:
            JournalDamaged: a turn is not what was written, or one that another builds on is missing.
        """
        graph = TraceGraph(session_tag)
        try:
            with self.connect() as db:
                for turn in read_turns(db, session_id, self.path, checked=self.checked):
                    graph.add(turn)
        except ValueError as error:
            what = f"the turns of session {session_id} are no graph: {error}"
            raise JournalDamaged(self.path, what) from error
        return graph

    def events(self, session_id: str) -> list[StoredEvent]:
        """Events of a session in order."""
        query = f"SELECT session_id, kind, detail, at, {self._checksum} FROM events WHERE session_id = ? ORDER BY id"
        with self.connect() as db:
            found = []
            for number, (*values, checksum) in enumerate(db.execute(query, (session_id,))):
                self._check(values, checksum, f"event {number} of session {session_id}")
                sid, kind, text, at = values
                found.append(StoredEvent(sid, kind, json.loads(text), at))
            return found

    def provenance(self, session_id: str) -> SessionProvenance:
        """Where the turns of a session come from."""
        found = SessionProvenance()
        for event in self.events(session_id):
            found.learn(event.kind, event.detail)
        return found

    @property
    def _checksum(self) -> str:
        return "checksum" if self.checked else "NULL"

    def _session(self, row: Sequence[Any]) -> StoredSession:
        *values, checksum = row
        sid, digest, policy, labels, state, created, sealed = values
        self._check(values, checksum, f"the record of session {sid}")
        return StoredSession(sid, digest, policy, json.loads(labels), state, created, sealed)

    def _check(self, values: Sequence[Any], checksum: int | None, what: str) -> None:
        if self.checked and checksum != record_check(*values):
            raise JournalDamaged(self.path, f"{what} is not what was written")

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """A read-only connection whose queries see one state of the file.

        Raises:
            JournalDamaged: SQLite finds the file corrupt.
        """
        uri = f"{self.path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S)) as connection:
            try:
                connection.execute("BEGIN")  # all queries see one state, whatever is committed meanwhile
                yield connection
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
                    raise
                raise JournalDamaged(self.path, _where(connection, error)) from error


def _where(connection: sqlite3.Connection, error: sqlite3.Error) -> str:
    """What SQLite's own check of the file says first."""
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error:
        return str(error)
    return f"{error}: {' '.join(str(found).split())}"
