"""Journals of earlier versions are read as they are, and continued after one transaction has converted them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal import records
from drivetrain.journal.errors import JournalDamaged
from drivetrain.journal.reader import JournalReader
from drivetrain.journal.schema import SCHEMA_VERSION
from drivetrain.journal.writer import Journal
from drivetrain.messages import Call, Message, ToolSpec
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.graph import TraceGraph

FIXTURE = Path(__file__).parent / "fixtures" / "journal-v2.sql"
"""Written by the last release with version 2: two sessions of three turns, the third a fork that names a base."""
OPEN_KEY, SEALED_KEY = "dt-fixture-key-of-the-open-session", "dt-fixture-key-of-the-sealed-session"


@pytest.fixture(params=["1", "2"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A journal of that version; 1 had the records in msgpack and no bases."""
    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(FIXTURE.read_text())
        db.execute("PRAGMA journal_mode=WAL")
        if request.param == "1":
            db.execute("UPDATE meta SET value = '1'")
            for session, turn, record in db.execute("SELECT session_id, turn_id, record FROM turns").fetchall():
                packed = msgspec.msgpack.encode(records._read_record(record))
                db.execute("UPDATE turns SET record = ? WHERE (session_id, turn_id) = (?, ?)", (packed, session, turn))
    return path


def version(path: Path) -> str:
    with closing(sqlite3.connect(path)) as db:
        return str(db.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()[0])


def shape(graph: TraceGraph) -> list[tuple[int, int | None, str, bool, list[int]]]:
    return [(t.id, t.parent, t.link, t.delivered, graph.ids_through(t).tolist()) for t in graph]


async def test_an_old_journal_is_read_converted_and_continued(
    old: Path, codec: TokenCodec, tiny_model: ModelDir
) -> None:
    before = version(old)
    tag = session_tag("s-open")
    found = shape(JournalReader(old).graph("s-open", tag))
    assert [turn[:4] for turn in found] == [
        (0, None, "root", True),
        (1, 0, "linear", True),
        (2, None, "fork", False),
    ]
    assert version(old) == before, "reading changes nothing"

    gateway = Gateway(ScriptedEngine.from_lines([], tiny_model, then="more"), codec, old, model="m")
    assert version(old) == str(SCHEMA_VERSION)
    session = gateway.sessions.authenticate(OPEN_KEY)
    assert shape(session.graph) == found
    with pytest.raises(Exception, match="sealed"):
        gateway.sessions.authenticate(SEALED_KEY)
    graph = session.graph
    history = [*graph.request(graph[1]), graph[1].reply.as_message(), Message("user", "and now?")]
    call = Call("test", "m", tuple(history), (ToolSpec("bash", "run", {"type": "object"}),))
    served = await gateway.serve(session, call, b"new")
    assert served.turn is not None and (served.turn.parent, served.turn.link) == (1, "linear")
    await gateway.aclose()

    reader = JournalReader(old)
    again = reader.graph("s-open", tag)
    assert shape(again)[:3] == found and len(again) == 4
    assert again.prompt_ids(again[3])[: len(found[1][4])].tolist() == found[1][4]
    assert [session.state for session in reader.sessions()] == ["open", "sealed"]
    assert [event.kind for event in reader.events("s-sealed")] == ["provenance"]


def test_converted_records_are_checked(old: Path) -> None:
    Journal(old).close()
    with closing(sqlite3.connect(old)) as db, db:
        db.execute("UPDATE turns SET delivered = 0 WHERE session_id = 's-sealed' AND turn_id = 1")
    with pytest.raises(JournalDamaged, match=r"turn 1 of session s-sealed \(number 1\) is not what was written"):
        JournalReader(old).graph("s-sealed", "0" * 8)
    assert len(JournalReader(old).graph("s-open", "0" * 8)) == 3
