"""The thread that commits: what is queued meanwhile goes into one transaction (group commit).

An entry waits for at most one commit that is under way and its own: nobody waits for a batch to fill.

**Blocked.** Where the storage takes nothing (no space left, a failing or read-only disk, a lock held by somebody else),
nothing is thrown away: entries stay queued, in order, and the transaction is tried again four times a second until it
succeeds. A try writes more than what is queued needs, so that a few freed bytes do not count as space. What becomes of
an entry is for its caller to say (:data:`WhenBlocked`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import msgspec

from drivetrain.journal.errors import JournalBlocked, JournalError

Operation = Callable[[sqlite3.Connection], object]
WhenBlocked = Literal[
    "drop",  # wait; after patience_s raise JournalBlocked and forget it: a turn whose call was answered with an error
    "keep",  # wait; after patience_s raise JournalBlocked and commit it later nevertheless: a session's end
    "follow",  # do not wait: it is committed, in its place, when there is space. Nobody's reply depends on it
]
_BATCH = 256
_PROBE_S = 0.25
_PROBE = "space_probe"
_PROBE_CHARS = 1 << 16
_MOST_FOLLOWING = 10_000
"""Entries nobody waits for that are kept in memory while the storage takes nothing."""
_STORAGE = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_NOMEM,
    }
)
_log = logging.getLogger("drivetrain.journal")


class CommitCounts(msgspec.Struct):
    """Since the start: transactions, entries in them, and how often the storage took nothing."""

    commits: int = 0
    entries: int = 0
    blocks: int = 0


class Blockage(msgspec.Struct, frozen=True):
    """Why the storage takes nothing, and what helps. ``hopeless``: waiting does not, so that nobody is kept waiting."""

    what: str
    fix: str
    hopeless: bool = False


class _Entry(msgspec.Struct):
    """One operation and who waits for it; ``deadline`` is monotonic."""

    operation: Operation
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    deadline: float
    when_blocked: WhenBlocked
    told: bool = False


class Committer:
    """Commits operations in the order in which they are submitted.

    Args:
        connection: used by this object's thread only, until :meth:`close` returns.
        path: of the file, for messages.
        patience_s: how long a caller is kept waiting while the storage takes nothing.
        explain: what to say of an error of the storage.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        *,
        patience_s: float,
        explain: Callable[[sqlite3.Error], Blockage],
    ) -> None:
        self._connection = connection
        self._path = path
        self._patience_s = patience_s
        self._explain = explain
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._blocked_since: float | None = None
        self._blocked_s = 0.0
        self._why: Blockage | None = None
        self.counts = CommitCounts()
        self._thread = threading.Thread(target=self._run, name="drivetrain-journal", daemon=True)
        self._thread.start()

    @property
    def blocked(self) -> str:
        """Why the storage takes nothing; empty while it does."""
        why = self._why
        return "" if why is None else why.what

    @property
    def blocked_s(self) -> float:
        """Seconds, since the start, during which the storage took nothing."""
        since = self._blocked_since
        return self._blocked_s + (time.monotonic() - since if since is not None else 0.0)

    async def submit(self, operation: Operation, when_blocked: WhenBlocked = "drop") -> None:
        """Return when the operation is committed. It happens even when the caller is cancelled meanwhile.

        Raises:
            JournalError: the operation cannot be; others of its transaction are unharmed.
            JournalBlocked: see :data:`WhenBlocked`; of ``follow`` when too many follow already.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queue.put(_Entry(operation, loop, done, time.monotonic() + self._patience_s, when_blocked))
        await done

    def close(self) -> None:
        """Commit what is queued, or say that it could not be; then end."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        backlog: list[_Entry] = []
        going = True
        while going or backlog:
            going = self._gather(backlog) and going
            batch = backlog[:_BATCH]
            cause = self._commit(batch)
            if cause is None:
                del backlog[: len(batch)]
            else:
                self._block(cause)
                if not going:
                    self._give_up(backlog)
                    return

    def _gather(self, backlog: list[_Entry]) -> bool:
        """Take what has come, waiting for it if there is nothing to do; False when the end was asked for."""
        going = True
        if self._blocked_since is not None:
            going = not self._stopping.wait(_PROBE_S)
        elif not backlog:
            first = self._queue.get()
            if first is None:
                return False
            backlog.append(first)
        while not self._queue.empty():
            entry = self._queue.get()
            if entry is None:
                going = False
            else:
                backlog.append(entry)
        if self._blocked_since is not None:
            self._release(backlog)
        return going

    def _commit(self, batch: list[_Entry]) -> sqlite3.Error | None:
        """Commit a batch; what the storage said if it took none of it."""
        failed: list[tuple[_Entry, JournalError]] = []
        db = self._connection
        try:
            db.execute("BEGIN IMMEDIATE")
            if self._blocked_since is not None:
                db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_PROBE, "x" * _PROBE_CHARS))
            for entry in batch:
                db.execute("SAVEPOINT one")
                try:
                    entry.operation(db)
                except Exception as error:  # also a text that is no UTF-8, an integer that is too large
                    if _of_storage(error):
                        raise
                    db.execute("ROLLBACK TO one")
                    failed.append((entry, self._error(error)))
                db.execute("RELEASE one")
            db.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
                if db.in_transaction:
                    db.execute("ROLLBACK")
            if _of_storage(error):
                return error
            failed = [(entry, self._error(error)) for entry in batch]
        self.counts.commits += 1
        self.counts.entries += len(batch) - len(failed)
        self._unblock()
        _settle(batch, failed)
        return None

    def _block(self, cause: sqlite3.Error) -> None:
        self._why = self._explain(cause)
        if self._blocked_since is None:
            self._blocked_since = time.monotonic()
            self.counts.blocks += 1
            _log.error("%s %s", self._why.what, self._why.fix)

    def _unblock(self) -> None:
        if self._blocked_since is None:
            return
        waited = time.monotonic() - self._blocked_since
        self._blocked_s += waited
        self._blocked_since = None
        self._why = None
        _log.warning("the journal %s is written again, after %.1f s.", self._path, waited)
        with contextlib.suppress(sqlite3.Error):  # it takes no more room than it has; the next probe overwrites it
            self._connection.execute("DELETE FROM meta WHERE key = ?", (_PROBE,))

    def _release(self, backlog: list[_Entry]) -> None:
        """While nothing can be committed: let go of those who need not wait and of those who have waited too long."""
        now = time.monotonic()
        following = [entry for entry in backlog if entry.when_blocked == "follow"]
        for entry in following[_MOST_FOLLOWING:]:
            entry.when_blocked, entry.deadline = "drop", now
        untold = [entry for entry in backlog if not entry.told]
        accepted = [entry for entry in untold if entry.when_blocked == "follow"]
        hopeless = self._why is not None and self._why.hopeless
        late = [e for e in untold if e.when_blocked != "follow" and (hopeless or now >= e.deadline)]
        for entry in (*accepted, *late):
            entry.told = True
        _settle(accepted, [(entry, self._blocked_error()) for entry in late])
        backlog[:] = [entry for entry in backlog if entry.when_blocked != "drop" or not entry.told]

    def _give_up(self, backlog: list[_Entry]) -> None:
        """The end was asked for, and the storage takes nothing: what was not committed was not delivered either."""
        _log.error("%s %d entries were not committed.", self.blocked, len(backlog))
        _settle((), [(entry, self._blocked_error()) for entry in backlog])
        backlog.clear()

    def _error(self, cause: Exception) -> JournalError:
        return JournalError(f"the journal {self._path} could not commit: {cause}.")

    def _blocked_error(self) -> JournalBlocked:
        why = self._why
        return JournalBlocked(why.what, fix=why.fix) if why is not None else JournalBlocked("the journal is closed.")


def _of_storage(error: Exception) -> bool:
    """Whether an error may be gone later, with the same operations."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _STORAGE


def _settle(batch: Iterable[_Entry], failed: Iterable[tuple[_Entry, JournalError]]) -> None:
    """Tell who waits, in one step per event loop."""
    outcomes: dict[int, tuple[_Entry, JournalError | None]] = {id(entry): (entry, None) for entry in batch}
    outcomes |= {id(entry): (entry, error) for entry, error in failed}
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Entry, JournalError | None]]] = {}
    for entry, outcome in outcomes.values():
        by_loop.setdefault(entry.loop, []).append((entry, outcome))
    for loop, told in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_tell, told)


def _tell(outcomes: list[tuple[_Entry, JournalError | None]]) -> None:
    for entry, error in outcomes:
        if entry.done.done():
            continue  # cancelled, or told before
        if error is None:
            entry.done.set_result(None)
        else:
            entry.done.set_exception(error)
