"""The journal's tables and their version."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from drivetrain.errors import ConfigError
from drivetrain.journal.checksums import add_function
from drivetrain.journal.errors import JournalBlocked, JournalDamaged
from drivetrain.journal.records import TURN_CHECK

SCHEMA_VERSION = 3
"""1: each prompt is its parent's ids and a delta. 2: turns may name a base (``Turn.base``), which a reader of 1 would
overlook, and their record is JSON instead of msgpack. 3: every record has a checksum, turns an index by
commit order."""
_CHECKED = 3

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    key_digest BLOB NOT NULL UNIQUE,
    policy BLOB NOT NULL,          -- msgpack of SessionPolicy
    labels TEXT NOT NULL,          -- JSON object: run, task, agent, group ...
    state TEXT NOT NULL,           -- open | sealed
    created_at REAL NOT NULL,
    sealed_at REAL,
    checksum INTEGER NOT NULL      -- record_check of the columns before it
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
    checksum INTEGER NOT NULL,     -- record_check of ids, arrays and record, + seq + delivered
    PRIMARY KEY (session_id, turn_id)
) WITHOUT ROWID;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL,          -- JSON object
    at REAL NOT NULL,
    checksum INTEGER NOT NULL      -- record_check of session_id, kind, detail, at
);
CREATE INDEX events_by_session ON events (session_id, id);
CREATE UNIQUE INDEX turns_by_seq ON turns (session_id, seq);
"""

SESSION_CHECK = "record_check(id, key_digest, policy, labels, state, created_at, sealed_at)"
EVENT_CHECK = "record_check(session_id, kind, detail, at)"

_TO_CHECKED = f"""
ALTER TABLE sessions ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
UPDATE sessions SET checksum = {SESSION_CHECK};
UPDATE turns SET checksum = {TURN_CHECK};
UPDATE events SET checksum = {EVENT_CHECK};
CREATE UNIQUE INDEX turns_by_seq ON turns (session_id, seq);
UPDATE meta SET value = '{SCHEMA_VERSION}' WHERE key = 'schema_version';
"""


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of an empty file, or check the version of an existing one and bring it up to date, in one
    transaction.

    Raises:
        ConfigError: the file is no journal, is damaged, or is of another version.
        JournalBlocked: there is no space to create or to convert it.
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
    add_function(connection)
    try:
        if not tables:
            version = f"INSERT INTO meta VALUES ('schema_version', '{SCHEMA_VERSION}');"
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} {version} COMMIT;")
        elif not is_checked(check_version(connection, path)):
            connection.executescript(f"BEGIN IMMEDIATE; {_TO_CHECKED} COMMIT;")
    except sqlite3.DatabaseError as error:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            raise JournalBlocked(f"no space is left for the journal {path}.", fix="Make room.") from error
        raise JournalDamaged(path, f"{error} while it was prepared") from error


def is_checked(version: int) -> bool:
    """Whether records of this version have checksums."""
    return version >= _CHECKED


def check_version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of a journal.

    Raises:
        ConfigError: it is no journal, or of a version that cannot be read.
    """
    try:
        row = connection.execute("SELECT value FROM meta WHERE key='schema_version'").fetchone()
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path} is no drivetrain journal: {error}.", fix="Name another file.") from error
    if row is None or row[0] not in {str(version) for version in range(1, SCHEMA_VERSION + 1)}:
        found = row[0] if row else "none"
        raise ConfigError(
            f"{path} has journal version {found}; this drivetrain reads up to version {SCHEMA_VERSION}.",
            fix="Use the drivetrain that wrote it.",
        )
    return int(row[0])
