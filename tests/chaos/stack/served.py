"""``drivetrain serve`` with a disk and a clock that the test controls, and with mistakes that the checker must find.

Run as ``python -m tests.chaos.stack.served CONTROLS [serve's options]``. Files in the folder CONTROLS say what is wrong
now: ``clock`` (seconds that the wall clock is off), ``slow`` (seconds that a commit takes), ``full`` (the journal
cannot grow). ``DRIVETRAIN_CHAOS_MISTAKE`` names a :data:`MISTAKES` entry.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.chaos.stack.parent import die_with_parent

_POLL_S = 0.05
_UNLIMITED = (1 << 31) - 1


class Controls:
    """What the files said at the last look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = self.slow = 0.0
        self.full = False
        self.look()
        threading.Thread(target=self._watch, name="chaos-controls", daemon=True).start()

    def look(self) -> None:
        self.clock = self._number("clock")
        self.slow = self._number("slow")
        self.full = (self.folder / "full").exists()

    def _number(self, name: str) -> float:
        try:
            return float((self.folder / name).read_text() or 0)
        except FileNotFoundError:
            return 0.0

    def _watch(self) -> None:
        while True:
            time.sleep(_POLL_S)
            self.look()


def bend_clock(controls: Controls) -> None:
    """``time.time`` jumps; ``time.monotonic`` does not, as on a machine whose clock is set."""
    real = time.time
    time.time = lambda: real() + controls.clock


def bend_disk(controls: Controls) -> None:
    """Connections that write are slow, or meet SQLite's own SQLITE_FULL, when the controls say so."""
    connect = sqlite3.connect

    class Disk(sqlite3.Connection):
        limited = False

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:  # type: ignore[override]
            if sql.startswith("BEGIN") and controls.full != self.limited:
                self.limited = controls.full
                pages = super().execute("PRAGMA page_count").fetchone()[0] if self.limited else _UNLIMITED
                super().execute(f"PRAGMA max_page_count = {pages}")
            if sql.startswith("COMMIT") and controls.slow:
                time.sleep(controls.slow)
            return super().execute(sql, *parameters)

    def bent(*arguments: Any, **options: Any) -> sqlite3.Connection:
        if not options.get("uri"):
            options["factory"] = Disk
        opened: sqlite3.Connection = connect(*arguments, **options)
        return opened

    sqlite3.connect = bent  # type: ignore[assignment]


_AddTurn = Callable[[Any, str, Any], Awaitable[None]]
_later: set[asyncio.Task[None]] = set()


def _drop_commit(add_turn: _AddTurn) -> _AddTurn:
    """Every seventh turn is answered and never written."""
    count = 0

    async def mistaken(journal: Any, session_id: str, turn: Any) -> None:
        nonlocal count
        count += 1
        if count % 7 or turn.parent is None:
            await add_turn(journal, session_id, turn)

    return mistaken


def _reply_first(add_turn: _AddTurn) -> _AddTurn:
    """The reply leaves at once, the commit follows two seconds later."""

    async def mistaken(journal: Any, session_id: str, turn: Any) -> None:
        async def late() -> None:
            await asyncio.sleep(2)
            await add_turn(journal, session_id, turn)

        task = asyncio.get_running_loop().create_task(late())
        _later.add(task)
        task.add_done_callback(_later.discard)

    return mistaken


def _early_delivery(add_turn: _AddTurn) -> _AddTurn:
    """A turn counts as delivered when it is committed, before a byte of its reply has left."""

    async def mistaken(journal: Any, session_id: str, turn: Any) -> None:
        turn.delivered, turn.delivered_at = True, time.time()
        await add_turn(journal, session_id, turn)

    return mistaken


MISTAKES: dict[str, Callable[[_AddTurn], _AddTurn]] = {
    "drop_commit": _drop_commit,
    "reply_first": _reply_first,
    "early_delivery": _early_delivery,
}


def main() -> None:
    die_with_parent()
    controls = Controls(Path(sys.argv[1]))
    bend_clock(controls)
    bend_disk(controls)
    from drivetrain.cli.main import main as drivetrain
    from drivetrain.journal.writer import Journal

    mistake = os.environ.get("DRIVETRAIN_CHAOS_MISTAKE")
    if mistake:
        Journal.add_turn = MISTAKES[mistake](Journal.add_turn)  # type: ignore[assignment,arg-type,method-assign]
    sys.argv[1:2] = ["serve"]
    drivetrain()


if __name__ == "__main__":
    main()
