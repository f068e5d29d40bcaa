"""Read a journal, also while it is being written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.journal.records import read_turns
from drivetrain.journal.schema import check_version
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.provenance import SessionProvenance


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
    """Read-only view of a journal file.

    Raises:
        ConfigError: no such file, or no journal of this version.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ConfigError(f"no journal at {path}.", fix="Name a run directory that holds journal.sqlite.")
        self.path = path
        with self._connect() as db:
            check_version(db, path)

    def sessions(self) -> list[StoredSession]:
        """Every session, oldest first."""
        query = "SELECT id, key_digest, policy, labels, state, created_at, sealed_at FROM sessions ORDER BY created_at"
        with self._connect() as db:
            rows = db.execute(query).fetchall()
        return [
            StoredSession(sid, digest, policy, json.loads(labels), state, created, sealed)
            for sid, digest, policy, labels, state, created, sealed in rows
        ]

    def graph(self, session_id: str, session_tag: str) -> TraceGraph:
        """The turn graph of a session, rebuilt from its committed turns."""
        graph = TraceGraph(session_tag)
        with self._connect() as db:
            for turn in read_turns(db, session_id):
                graph.add(turn)
        return graph

    def events(self, session_id: str) -> list[StoredEvent]:
        """Events of a session in order."""
        query = "SELECT session_id, kind, detail, at FROM events WHERE session_id = ? ORDER BY id"
        with self._connect() as db:
            return [
                StoredEvent(sid, kind, json.loads(text), at) for sid, kind, text, at in db.execute(query, (session_id,))
            ]

    def provenance(self, session_id: str) -> SessionProvenance:
        """Where the turns of a session come from."""
        found = SessionProvenance()
        for event in self.events(session_id):
            found.learn(event.kind, event.detail)
        return found

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            yield connection
