"""What a client sent and what it saw delivered: an append-only file of JSON lines that survives the client's SIGKILL.

Lines, by ``kind``; ``t`` is CLOCK_MONOTONIC in seconds, the same in all processes::

    open    session, key, max_turns, stream, conversations, turns, episode, relayed
    send    session, conversation, mark, items   before the first try of a logical call; items are new in the history
    fail    mark, why                            a try failed; the call is tried again
    seen    mark, reply, text, calls, finish, items
    control mark, text                           the budget is used up
    refused mark, why                            the call failed for good
    gave_up mark                                 the client hung up and goes another way
    sealed  session
    left    session                              given up after a crash
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Diary:
    """One client's file, open for appending."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            os.write(self._file, b"\n")  # ends the line that a killed client had begun

    def note(self, kind: str, **what: Any) -> None:
        line = json.dumps({"kind": kind, "t": time.monotonic(), **what})
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a diary; half a line says nothing."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


class Tally:
    """Lines of growing diaries by kind, each line counted once."""

    def __init__(self, folder: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.seen_by: set[Path] = set()
        """Diaries with a reply in them."""
        self._folder = folder
        self._read: dict[Path, int] = {}

    def count(self) -> Counter[str]:
        """As of now."""
        for path in [*self._folder.glob("*.jsonl"), *self._folder.glob("*/diary.jsonl")]:
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            whole = new.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + whole
            for line in new[:whole].splitlines():
                try:
                    kind = json.loads(line)["kind"]
                except ValueError:
                    continue
                self.counts[kind] += 1
                if kind == "seen":
                    self.seen_by.add(path)
        return self.counts
