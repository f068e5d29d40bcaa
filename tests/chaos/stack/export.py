"""The rows of every session of a journal, as lines of JSON: what a trainer would be given."""

from __future__ import annotations

from pathlib import Path

import msgspec

from drivetrain.errors import DrivetrainError
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader
from drivetrain.trace.sample import rows_of


def export(journal: Path, rows: Path) -> dict[str, str]:
    """Write them. Returns what is wrong with sessions that cannot be rebuilt, by their ids."""
    reader = JournalReader(journal)
    broken: dict[str, str] = {}
    with rows.open("wb") as file:
        for session in reader.sessions():
            try:
                graph = reader.graph(session.id, session_tag(session.id))
            except (ValueError, DrivetrainError) as error:
                broken[session.id] = str(error)
                continue
            file.writelines(msgspec.json.encode(row) + b"\n" for row in rows_of(graph, session_id=session.id))
    return broken
