"""The one writer of a journal: what is queued is committed by a thread, several turns in one transaction.

A caller awaits its operation and resumes only after the commit, so "committed, then sent" (design invariant 5) holds
for a killed process and, with ``synchronous=FULL``, for a power cut. What happens when the disk is full:
:mod:`drivetrain.journal.committer`.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from drivetrain.errors import ConfigError
from drivetrain.journal.checksums import record_check
from drivetrain.journal.committer import Blockage, CommitCounts, Committer, Operation, WhenBlocked
from drivetrain.journal.errors import JournalBlocked, JournalError
from drivetrain.journal.records import INSERT_TURN, MARK_DELIVERED, delivery_mark, turn_row
from drivetrain.journal.schema import SESSION_CHECK, prepare
from drivetrain.journal.transfer import SessionRecords, insert_session
from drivetrain.journal.wal import check_wal
from drivetrain.trace.turn import Turn

__all__ = ["Journal", "JournalBlocked", "JournalError"]

PATIENCE_S = 600.0
"""How long a call is kept waiting for a full disk: as long as the most patient harness waits (harnesses.md 1.5)."""

_NEARLY = 0.9
_LOCK_TRIES = 5
_LOCK_WAIT_S = 0.05
_MAKE_ROOM = "Make room; calls are served again as soon as there is some."
_TOO_LARGE = "Go on with a new journal, or allow a larger one."


class Journal:
    """Open a journal for writing; one process at a time.

    Args:
        path: the SQLite file; it and its folder are created if missing.
        patience_s: how long a caller is kept waiting while the storage takes nothing.
        max_bytes: largest size of the file. It stays one file: a run is read, copied and exported as one, and SQLite
            has no need of smaller ones. From 90 % on no session is opened, so that those that run can end; what does
            not fit in the end is refused.

    Raises:
        ConfigError: another process writes it, or it is no journal of this version.
        JournalDamaged: committed turns in its write-ahead log cannot be read any more.
        JournalBlocked: there is no space to create it.
    """

    def __init__(self, path: Path, *, patience_s: float = PATIENCE_S, max_bytes: int | None = None) -> None:
        self.path = path
        self._max_bytes = max_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(path)
        try:
            check_wal(path)
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            try:
                prepare(self._connection, path)
                self._limit_size()
            except BaseException:
                self._connection.close()
                raise
        except BaseException:
            self._lock.close()
            raise
        self._committer = Committer(self._connection, path, patience_s=patience_s, explain=self._explain)
        self._closed = False

    @property
    def blocked(self) -> str:
        """Why nothing can be committed at present (no space, a failing disk); empty while it can."""
        return self._committer.blocked

    @property
    def blocked_s(self) -> float:
        """Seconds, since the start, during which nothing could be committed."""
        return self._committer.blocked_s

    @property
    def counts(self) -> CommitCounts:
        """Transactions so far."""
        return self._committer.counts

    async def writable(self) -> None:
        """Return at once while entries can be committed, else as soon as they can be again.

        Raises:
            JournalBlocked: that took longer than the journal's patience.
        """
        if self._committer.blocked:
            await self._write(lambda _: None)

    async def add_session(
        self, session_id: str, *, key_digest: bytes, policy: bytes, labels: Mapping[str, str], created_at: float
    ) -> None:
        """Record a new session; the key is stored as a digest only (design invariant 6).

        Raises:
            JournalBlocked: the file is nearly as large as it may be.
        """
        if self._max_bytes is not None and self.path.stat().st_size > _NEARLY * self._max_bytes:
            raise JournalBlocked(
                f"the journal {self.path} has nearly the {self._max_bytes} bytes it may have.", fix=_TOO_LARGE
            )
        values = (session_id, key_digest, policy, json.dumps(dict(labels)), "open", created_at, None)
        await self._write(
            lambda db: db.execute(
                "INSERT INTO sessions (id, key_digest, policy, labels, state, created_at, sealed_at, checksum) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, record_check(*values)),
            )
        )

    async def seal_session(self, session_id: str) -> None:
        """Mark a session sealed: its key is refused from now on."""
        now = time.time()
        await self._change_session(
            "state = 'sealed', sealed_at = ?1 WHERE id = ?2 AND state = 'open'", (now, session_id), session_id
        )

    async def replace_key(self, session_id: str, key_digest: bytes) -> None:
        """Another key opens the session from now on."""
        await self._change_session("key_digest = ?1 WHERE id = ?2", (key_digest, session_id), session_id)

    async def add_turn(self, session_id: str, turn: Turn) -> None:
        """Commit one turn."""
        row = turn_row(session_id, turn)
        await self._write(lambda db: db.execute(INSERT_TURN, row))

    async def mark_delivered(self, session_id: str, turn_id: int, delivered: bool = True, *, at: float = 0.0) -> None:
        """The reply of a turn was sent, at this time since the epoch if known; False when it turned out to be lost."""
        values = (delivery_mark(delivered, at), session_id, turn_id)
        await self._write(lambda db: db.execute(MARK_DELIVERED, values), "follow")

    async def add_event(self, session_id: str, kind: str, **detail: Any) -> None:
        """Record what is no turn: a refused call, a budget stop, an engine failure, an abandoned call."""
        values = (session_id, kind, json.dumps(detail), time.time())
        row = (*values, record_check(*values))
        insert = "INSERT INTO events (session_id, kind, detail, at, checksum) VALUES (?, ?, ?, ?, ?)"
        await self._write(lambda db: db.execute(insert, row), "follow")

    async def adopt(self, records: SessionRecords) -> None:
        """Take over a sealed session of another journal (:func:`drivetrain.journal.transfer.read_session`), at once or
        not at all.

        Raises:
            ConfigError: it is not sealed, or its records are not what was written.
            JournalError: this journal has a session of this id already.
        """
        if not records.sealed:
            raise ConfigError(f"session {records.id} is not sealed.", fix="Seal it before it is moved.")
        if damage := records.damage():
            raise ConfigError(f"{damage} is not what was written.", fix="Send it again.")
        await self._write(lambda db: insert_session(db, records))

    def close(self) -> None:
        """Commit what is queued and release the file; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._committer.close()
        self._connection.close()
        self._lock.close()

    async def _change_session(self, change: str, values: tuple[Any, ...], session_id: str) -> None:
        def operation(db: sqlite3.Connection) -> None:
            db.execute(f"UPDATE sessions SET {change}", values)
            db.execute(f"UPDATE sessions SET checksum = {SESSION_CHECK} WHERE id = ?", (session_id,))

        await self._write(operation, "keep")

    async def _write(self, operation: Operation, when_blocked: WhenBlocked = "drop") -> None:
        if self._closed:
            raise JournalError(f"the journal {self.path} is closed.")
        await self._committer.submit(operation, when_blocked)

    def _limit_size(self) -> None:
        if self._max_bytes is not None:
            (page,) = self._connection.execute("PRAGMA page_size").fetchone()
            self._connection.execute(f"PRAGMA max_page_count = {max(1, self._max_bytes // page)}")

    def _explain(self, error: sqlite3.Error) -> Blockage:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_FULL:
            return Blockage(f"the journal {self.path} cannot be written: {error}.", fix=_MAKE_ROOM)
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        (most,) = self._connection.execute("PRAGMA max_page_count").fetchone()
        if self._max_bytes is not None and pages > _NEARLY * most:
            what = f"the journal {self.path} has reached the {self._max_bytes} bytes it may have."
            return Blockage(what, fix=_TOO_LARGE, hopeless=True)
        return Blockage(f"no space is left for the journal {self.path}.", fix=_MAKE_ROOM)


def _locked(path: Path) -> IO[str]:
    """Be the one writer. Readers look at the lock for a moment, so one try is not enough.

    Raises:
        ConfigError: another process is.
    """
    lock = path.with_name(path.name + ".lock").open("w")
    for attempt in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError:
            if attempt < _LOCK_TRIES - 1:
                time.sleep(_LOCK_WAIT_S)
    lock.close()
    raise ConfigError(
        f"the journal {path} is being written by another process.", fix="Stop it or name another journal."
    )
