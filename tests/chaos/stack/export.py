"""The rows of every session of a journal, as lines of JSON: what a trainer would be given.

Run as ``python -m tests.chaos.stack.export JOURNAL ROWS``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader
from drivetrain.trace.sample import rows_of


def export(journal: Path, rows: Path) -> int:
    """Write them; how many."""
    reader = JournalReader(journal)
    count = 0
    with rows.open("wb") as file:
        for session in reader.sessions():
            for row in rows_of(reader.graph(session.id, session_tag(session.id)), session_id=session.id):
                file.write(msgspec.json.encode(row) + b"\n")
                count += 1
    return count


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
