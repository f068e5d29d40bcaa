"""A sealed session moves to another journal with every record as it was written, or not at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.dialects.base import WireRequest
from drivetrain.gateway.dialects.openai_chat import OpenAIChat
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.errors import JournalDamaged, JournalError
from drivetrain.journal.reader import JournalReader
from drivetrain.journal.transfer import SessionRecords, read_session
from drivetrain.journal.writer import Journal
from drivetrain.tokens.codec import TokenCodec


async def _recorded(path: Path, model: ModelDir, codec: TokenCodec, *, seal: bool = True) -> str:
    """Three turns of one session, one of them a fork, and an event."""
    gateway = Gateway(ScriptedEngine.from_lines([], model, then="é done"), codec, path, model="m")
    session, _ = await gateway.open_session(labels={"rollout": "t.a.0"})
    dialect = OpenAIChat()
    for asked in ("one", "two", "two, again"):
        body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": asked}]})
        call = dialect.decode(WireRequest(body=body, path="/v1/chat/completions"), session)
        await gateway.delivered(session, await gateway.serve(session, call, body))
    await gateway.journal.add_event(session.id, "noted", what="é")
    if seal:
        await gateway.seal_session(session.id)
    await gateway.aclose()
    return session.id


def _rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as db:
        turns = db.execute("SELECT * FROM turns ORDER BY session_id, seq").fetchall()
        events = db.execute("SELECT session_id, kind, detail, at, checksum FROM events ORDER BY id").fetchall()
        return {"sessions": db.execute("SELECT * FROM sessions").fetchall(), "turns": turns, "events": events}


async def test_every_record_arrives_as_it_was_written(tmp_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> None:
    source, target = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    session_id = await _recorded(source, tiny_model, codec)
    sent = msgspec.msgpack.encode(read_session(source, session_id))
    journal = Journal(target)
    await journal.adopt(msgspec.msgpack.decode(sent, type=SessionRecords))
    with pytest.raises(JournalError, match="UNIQUE"):
        await journal.adopt(msgspec.msgpack.decode(sent, type=SessionRecords))
    await journal.add_event("another", "goes on")
    journal.close()
    moved, written = _rows(target), _rows(source)
    assert moved["sessions"] == written["sessions"] and moved["turns"] == written["turns"]
    assert moved["events"][:-1] == written["events"]
    assert len(JournalReader(target).graph(session_id, session_tag(session_id))) == 3


async def test_an_open_session_stays(tmp_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> None:
    session_id = await _recorded(tmp_path / "a.sqlite", tiny_model, codec, seal=False)
    records = read_session(tmp_path / "a.sqlite", session_id)
    journal = Journal(tmp_path / "b.sqlite")
    with pytest.raises(ConfigError, match="not sealed"):
        await journal.adopt(records)
    journal.close()
    assert _rows(tmp_path / "b.sqlite") == {"sessions": [], "turns": [], "events": []}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE sessions SET labels = '{}'", "the record of session"),
        ("UPDATE turns SET sampled_ids = x'00000000' WHERE seq = 1", "turn 1 of session"),
        ("UPDATE turns SET delivered = delivered + 1 WHERE seq = 2", "turn 2 of session"),
        ("DELETE FROM turns WHERE seq = 1", "turn 2 of session"),
        ("UPDATE events SET detail = '{}' WHERE kind = 'noted'", "event"),
    ],
)
async def test_a_damaged_session_is_not_moved(
    tmp_path: Path, tiny_model: ModelDir, codec: TokenCodec, change: str, said: str
) -> None:
    path = tmp_path / "a.sqlite"
    session_id = await _recorded(path, tiny_model, codec)
    sound = read_session(path, session_id)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(change)
    with pytest.raises(JournalDamaged, match=said):
        read_session(path, session_id)
    lost = msgspec.structs.replace(sound, turns=sound.turns[1:])
    journal = Journal(tmp_path / "b.sqlite")
    with pytest.raises(ConfigError, match="not what was written"):
        await journal.adopt(lost)
    journal.close()


async def test_a_session_that_is_not_there(tmp_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> None:
    await _recorded(tmp_path / "a.sqlite", tiny_model, codec)
    with pytest.raises(ConfigError, match="no session 'other'"):
        read_session(tmp_path / "a.sqlite", "other")
