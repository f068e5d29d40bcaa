"""One CRC-32 per record: what is read is what was written, or the reader says which record is not."""

from __future__ import annotations

import sqlite3
import struct
import zlib

Value = str | bytes | int | float | None


def record_check(*values: Value) -> int:
    """CRC-32 of a record's values with their kinds and lengths, so that nothing can move from one to the next.

    It detects what storage does to a file; it is no protection against somebody who edits it.
    """
    crc = 0
    for value in values:
        kind, data = _bytes_of(value)
        crc = zlib.crc32(data, zlib.crc32(struct.pack("<cq", kind, len(data)), crc))
    return crc


def add_function(connection: sqlite3.Connection) -> None:
    """Make ``record_check(...)`` known to the SQL of a connection."""
    connection.create_function("record_check", -1, record_check, deterministic=True)


def _bytes_of(value: Value) -> tuple[bytes, bytes]:
    if value is None:
        return b"n", b""
    if isinstance(value, str):
        return b"s", value.encode("utf-8", "surrogatepass")
    if isinstance(value, float):
        return b"f", struct.pack("<d", value)
    if isinstance(value, int):
        return b"i", b"%d" % value
    return b"b", value
