"""Reading a log of one JSON event per line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

T = TypeVar("T")


def events_of(log: bytes, kind: type[T], *marks: bytes) -> Iterator[T]:
    """Events of a log in order, those that hold one of ``marks``.

    Other events may give a field another type, and a bounded log begins in the middle of a line: both are passed over.
    """
    decoder = msgspec.json.Decoder(kind)
    for line in log.splitlines():
        if any(mark in line for mark in marks):
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError:
                continue
