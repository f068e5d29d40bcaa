"""Records in a file, one per line, appended by whoever may be killed at any moment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def append_line(path: Path, record: object) -> None:
    """Append a record as JSON. A line that a crash cut off is closed first, so that it spoils no other."""
    data = msgspec.json.encode(record) + b"\n"
    with path.open("ab+") as file:
        if file.tell() and not _ends_a_line(file.fileno(), file.tell()):
            data = b"\n" + data
        file.write(data)


def _ends_a_line(fd: int, size: int) -> bool:
    return os.pread(fd, 1, size - 1) == b"\n"


def read_lines(path: Path, kind: type[T]) -> list[T]:
    """The records of a file, oldest first; lines that a crash cut off are left out. Empty when there is no file."""
    found: list[T] = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else []:
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except msgspec.DecodeError:
            continue
    return found
