"""Is the write-ahead log whole?

SQLite reads its log up to the first frame whose checksum is wrong and forgets what follows. After a crash that is right
for a *torn tail*: the last transaction had not been synced, so nobody was told of it. A wrong frame further in front
would make SQLite forget transactions that *were* committed, without a word. The log itself tells the two apart: each
commit is synced before the next begins (``synchronous=FULL``), so a frame behind the end of the broken transaction
proves that the broken one was whole once.

File format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import fcntl
import struct
from functools import lru_cache
from pathlib import Path

from drivetrain.journal.errors import JournalDamaged

_HEADER = 32
_FRAME = 24
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}
_MASK = 0xFFFFFFFF


def is_being_written(path: Path) -> bool:
    """Whether a process has the journal open for writing now."""
    try:
        with path.with_name(path.name + ".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def check_wal(path: Path) -> None:
    """Refuse a journal whose log has lost committed transactions. Nobody may be writing it.

    Raises:
        JournalDamaged: names the frame, and how to go on without what was lost.
    """
    log = path.with_name(path.name + "-wal")
    try:
        found = log.stat()
    except FileNotFoundError:
        return
    _check(log, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=64)
def _check(log: Path, size: int, _mtime_ns: int) -> None:
    """Remembered per state of the file: those that read many sessions open it many times."""
    if size < _HEADER:
        return
    data = log.read_bytes()
    magic, _, page, _, *rest = struct.unpack(">8I", data[:_HEADER])
    order = _MAGIC.get(magic)
    if order is None or tuple(rest[2:]) != (sums := _checksum(data[:24], order, (0, 0))):
        if any(data[_HEADER:]):  # SQLite would ignore all of it
            raise JournalDamaged(
                log,
                "its header is not what was written",
                fix="Restore it from a copy. To go on with what the journal holds without it, delete it.",
            )
        return
    salts = rest[:2]
    whole, end = 0, _HEADER
    starts = range(_HEADER, len(data) - _FRAME - page + 1, _FRAME + page)
    for start in starts:
        sums = _checksum(data[start : start + 8], order, sums)
        sums = _checksum(data[start + _FRAME : start + _FRAME + page], order, sums)
        _, commit, *rest = struct.unpack(">6I", data[start : start + _FRAME])
        if rest[:2] != salts or tuple(rest[2:]) != sums:
            break
        whole += 1
        if commit:
            end = start + _FRAME + page
    if _committed_behind(data, starts[whole:], salts):
        raise JournalDamaged(
            log,
            f"frame {whole + 1} of {len(starts)} (at byte {starts[whole]}) is not what was written, and transactions "
            "that were committed stand behind it",
            fix=f"Restore it from a copy. To go on without those transactions: truncate --size {end} {log}",
        )


def _committed_behind(data: bytes, starts: range, salts: list[int]) -> bool:
    """Whether frames of this log stand behind the end of the transaction that begins in ``starts``."""
    ended = False
    for start in starts:
        _, commit, *rest = struct.unpack(">6I", data[start : start + _FRAME])
        ours = rest[:2] == salts
        if ended and ours:
            return True
        ended = ended or (ours and commit != 0)
    return False


def _checksum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for index in range(0, len(words), 2):
        first = (first + words[index] + second) & _MASK
        second = (second + words[index + 1] + first) & _MASK
    return first, second
