"""Turn <-> table row. Arrays are columns of packed bytes, the rest is one JSON record (a tool's schema may hold
integers of any size, which other formats cannot)."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from drivetrain.journal.checksums import record_check
from drivetrain.journal.errors import JournalDamaged
from drivetrain.trace.turn import Turn, pack_ids, pack_logprobs

_COLUMNS = ("delta_ids", "sampled_ids", "logprobs", "delivered", "delivered_at")
_encoder = msgspec.json.Encoder()


def _field(info: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    if info.default is not msgspec.NODEFAULT:
        return info.name, info.type, info.default
    if info.default_factory is not msgspec.NODEFAULT:
        return info.name, info.type, msgspec.field(default_factory=info.default_factory)
    return info.name, info.type


# Turn without what has a column of its own; msgspec does not know numpy.
_Record = msgspec.defstruct(
    "_Record",
    [_field(info) for info in msgspec.structs.fields(Turn) if info.name not in _COLUMNS],
    kw_only=True,
)
_decoder = msgspec.json.Decoder(_Record)
_decoder_v1 = msgspec.msgpack.Decoder(_Record)

INSERT_TURN = (
    "INSERT INTO turns (session_id, turn_id, seq, delta_ids, sampled_ids, logprobs, record, delivered, checksum) "
    "SELECT ?1, ?2, n, ?3, ?4, ?5, ?6, ?7, ?8 + n + ?7 "
    "FROM (SELECT COALESCE(MAX(seq), -1) + 1 AS n FROM turns WHERE session_id = ?1)"
)
MARK_DELIVERED = (
    "UPDATE turns SET checksum = checksum - delivered + ?1, delivered = ?1 WHERE session_id = ?2 AND turn_id = ?3"
)
TURN_CHECK = "record_check(session_id, turn_id, delta_ids, sampled_ids, logprobs, record) + seq + delivered"
"""What a turn's ``checksum`` is: the CRC-32 of what never changes, plus what is known when it is written or later."""
_SELECT_TURNS = (
    "SELECT turn_id, seq, delta_ids, sampled_ids, logprobs, record, delivered, {} FROM turns NOT INDEXED "
    "WHERE session_id = ? ORDER BY seq"
)


def delivery_mark(delivered: bool, at: float) -> int:
    """The ``delivered`` column: 0 = no, 1 = at an unknown time, else milliseconds since the epoch."""
    return (round(at * 1000) or 1) if delivered else 0


def turn_row(session_id: str, turn: Turn) -> tuple[Any, ...]:
    """Parameters of :data:`INSERT_TURN`."""
    record = {name: getattr(turn, name) for name in turn.__struct_fields__ if name not in _COLUMNS}
    arrays = (
        turn.delta_ids.astype("<i4").tobytes(),
        turn.sampled_ids.astype("<i4").tobytes(),
        turn.logprobs.astype("<f4").tobytes(),
    )
    mark = delivery_mark(turn.delivered, turn.delivered_at)
    fixed = (session_id, turn.id, *arrays, _encoder.encode(record))
    return (*fixed, mark, record_check(*fixed))


def read_turns(connection: sqlite3.Connection, session_id: str, path: Path, *, checked: bool = True) -> list[Turn]:
    """Turns of a session in commit order.

    Args:
        path: of the journal, for messages.
        checked: whether its records have checksums (schema version 3).

    Raises:
        JournalDamaged: a record is not what was written, or one is missing.
    """
    turns: list[Turn] = []
    rows = connection.execute(_SELECT_TURNS.format("checksum" if checked else "NULL"), (session_id,))
    for turn_id, seq, delta, sampled, logprobs, record, delivered, checksum in rows:
        where = f"turn {turn_id} of session {session_id}"
        if seq != len(turns):
            raise JournalDamaged(path, f"turn number {len(turns)} of session {session_id} is missing before {where}")
        fixed = (session_id, turn_id, delta, sampled, logprobs, record)
        if checked and checksum - seq - delivered != record_check(*fixed):
            raise JournalDamaged(path, f"{where} (number {seq}) is not what was written")
        turns.append(
            Turn(
                **msgspec.structs.asdict(_read_record(record)),
                delta_ids=pack_ids(np.frombuffer(delta, dtype="<i4")),
                sampled_ids=pack_ids(np.frombuffer(sampled, dtype="<i4")),
                logprobs=pack_logprobs(np.frombuffer(logprobs, dtype="<f4")),
                delivered=bool(delivered),
                delivered_at=delivered / 1000 if delivered > 1 else 0.0,
            )
        )
    if checked:
        query = "SELECT COUNT(*) FROM turns INDEXED BY turns_by_seq WHERE session_id = ?"
        (expected,) = connection.execute(query, (session_id,)).fetchone()
        if expected != len(turns):
            raise JournalDamaged(path, f"session {session_id} has {len(turns)} turns, and {expected} in its index")
    return turns


def _read_record(record: bytes) -> Any:
    """A JSON object begins with a brace; no msgpack map of journal version 1 does."""
    return (_decoder if record[:1] == b"{" else _decoder_v1).decode(record)
