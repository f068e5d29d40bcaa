"""The journal's tables and their version."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from drivetrain.errors import ConfigError

SCHEMA_VERSION = 2
"""1: each prompt is its parent's ids and a delta. 2: turns may name a base (``Turn.base``), which a reader of 1 would
overlook, and their record is JSON instead of msgpack."""
_READABLE = frozenset({"1", "2"})

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    key_digest BLOB NOT NULL UNIQUE,
    policy BLOB NOT NULL,          -- msgpack of SessionPolicy
    labels TEXT NOT NULL,          -- JSON object: run, task, agent, group ...
    state TEXT NOT NULL,           -- open | sealed
    created_at REAL NOT NULL,
    sealed_at REAL
) WITHOUT ROWID;
CREATE TABLE turns (
    session_id TEXT NOT NULL REFERENCES sessions(id),
    turn_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,          -- commit order in the session
    delta_ids BLOB NOT NULL,       -- little-endian int32
    sampled_ids BLOB NOT NULL,     -- little-endian int32
    logprobs BLOB NOT NULL,        -- little-endian float32
    record BLOB NOT NULL,          -- JSON of everything else
    delivered INTEGER NOT NULL DEFAULT 0,  -- 0 = no, 1 = at an unknown time, else milliseconds since the epoch
    PRIMARY KEY (session_id, turn_id)
) WITHOUT ROWID;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL,          -- JSON object
    at REAL NOT NULL
);
CREATE INDEX events_by_session ON events (session_id, id);
"""


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of an empty file, or check the version of an existing one and bring it up to date.

    Raises:
        ConfigError: the file is no journal, is damaged, or is of another version.
    """
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    except sqlite3.DatabaseError as error:
        raise ConfigError(
            f"{path} is no readable journal: {error}.", fix="Move it away or name another journal."
        ) from error
    if not tables:
        connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
        connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))
        connection.commit()
        return
    check_version(connection, path)
    connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(SCHEMA_VERSION),))


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a journal that this version cannot read.

    Raises:
        ConfigError: see above.
    """
    try:
        row = connection.execute("SELECT value FROM meta WHERE key='schema_version'").fetchone()
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path} is no drivetrain journal: {error}.", fix="Name another file.") from error
    if row is None or row[0] not in _READABLE:
        found = row[0] if row else "none"
        raise ConfigError(
            f"{path} has journal version {found}; this drivetrain reads up to version {SCHEMA_VERSION}.",
            fix="Use the drivetrain that wrote it.",
        )
