"""The one writer of a journal: a thread that commits what is queued, several turns in one transaction.

A caller awaits its operation and resumes only after the commit, so "committed, then sent" (design invariant 5) holds
for a killed process and, with ``synchronous=FULL``, for a power cut.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import fcntl
import json
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drivetrain.errors import ConfigError, InfrastructureError
from drivetrain.journal.records import INSERT_TURN, delivery_mark, turn_row
from drivetrain.journal.schema import prepare
from drivetrain.trace.turn import Turn

_Operation = Callable[[sqlite3.Connection], None]
_Item = tuple[_Operation, "concurrent.futures.Future[None]"]
_BATCH = 256


class JournalError(InfrastructureError):
    """The journal could not commit; the reply must not be sent."""


class Journal:
    """Open a journal for writing; one process at a time.

    Args:
        path: the SQLite file; it and its folder are created if missing.

    Raises:
        ConfigError: another process writes it, or it is no journal of this version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = path.with_name(path.name + ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ConfigError(
                f"the journal {path} is being written by another process.", fix="Stop it or name another journal."
            ) from error
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            prepare(self._connection, path)
        except BaseException:
            self._connection.close()
            self._lock.close()
            raise
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="drivetrain-journal", daemon=True)
        self._thread.start()

    async def add_session(
        self, session_id: str, *, key_digest: bytes, policy: bytes, labels: Mapping[str, str], created_at: float
    ) -> None:
        """Record a new session; the key is stored as a digest only (design invariant 6)."""
        values = (session_id, key_digest, policy, json.dumps(dict(labels)), "open", created_at)
        await self._write(
            lambda db: db.execute(
                "INSERT INTO sessions (id, key_digest, policy, labels, state, created_at) VALUES (?, ?, ?, ?, ?, ?)",
                values,
            )
        )

    async def seal_session(self, session_id: str) -> None:
        """Mark a session sealed: its key is refused from now on."""
        now = time.time()
        await self._write(
            lambda db: db.execute(
                "UPDATE sessions SET state = 'sealed', sealed_at = ? WHERE id = ? AND state = 'open'", (now, session_id)
            )
        )

    async def replace_key(self, session_id: str, key_digest: bytes) -> None:
        """Another key opens the session from now on."""
        await self._write(
            lambda db: db.execute("UPDATE sessions SET key_digest = ? WHERE id = ?", (key_digest, session_id))
        )

    async def add_turn(self, session_id: str, turn: Turn) -> None:
        """Commit one turn."""
        row = turn_row(session_id, turn)
        await self._write(lambda db: db.execute(INSERT_TURN, row))

    async def mark_delivered(self, session_id: str, turn_id: int, delivered: bool = True, *, at: float = 0.0) -> None:
        """The reply of a turn was sent, at this time since the epoch if known; False when it turned out to be lost."""
        values = (delivery_mark(delivered, at), session_id, turn_id)
        await self._write(
            lambda db: db.execute("UPDATE turns SET delivered = ? WHERE session_id = ? AND turn_id = ?", values)
        )

    async def add_event(self, session_id: str, kind: str, **detail: Any) -> None:
        """Record what is no turn: a refused call, a budget stop, an engine failure, an abandoned call."""
        values = (session_id, kind, json.dumps(detail), time.time())
        await self._write(
            lambda db: db.execute("INSERT INTO events (session_id, kind, detail, at) VALUES (?, ?, ?, ?)", values)
        )

    def close(self) -> None:
        """Commit what is queued and release the file; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self._connection.close()
        self._lock.close()

    async def _write(self, operation: Callable[[sqlite3.Connection], object]) -> None:
        if self._closed:
            raise JournalError(f"the journal {self.path} is closed.")
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._queue.put((lambda db: (operation(db), None)[1], done))
        # A commit that was asked for happens even when the caller is cancelled meanwhile.
        await asyncio.shield(asyncio.wrap_future(done))

    def _run(self) -> None:
        stop = False
        while not stop:
            batch: list[_Item] = []
            item = self._queue.get()
            while True:
                if item is None:
                    stop = True
                    break
                batch.append(item)
                if len(batch) == _BATCH or self._queue.empty():
                    break
                item = self._queue.get()
            self._commit(batch)

    def _commit(self, batch: list[_Item]) -> None:
        failed: list[tuple[concurrent.futures.Future[None], BaseException]] = []
        done: list[concurrent.futures.Future[None]] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for operation, future in batch:
                self._connection.execute("SAVEPOINT one")
                try:
                    operation(self._connection)
                    done.append(future)
                except sqlite3.Error as error:
                    self._connection.execute("ROLLBACK TO one")
                    failed.append((future, error))
                self._connection.execute("RELEASE one")
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            failed = [(future, error) for _, future in batch]
            done = []
        for future in done:
            future.set_result(None)
        for future, cause in failed:
            future.set_exception(JournalError(f"the journal {self.path} could not commit: {cause}."))
