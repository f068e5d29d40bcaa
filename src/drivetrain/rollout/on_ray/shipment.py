"""What a node sends back of a finished rollout, and how the driver puts it into its run folder."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec

from drivetrain.journal.transfer import SessionRecords, read_session
from drivetrain.journal.writer import Journal
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir

_FILE_BYTES = 32 << 20
"""Of one file; a log beyond it stays behind with a note in its place."""


class Shipment(msgspec.Struct, frozen=True):
    """A result with its rows, its session's journal records (None without a session) and its files by name."""

    result: RolloutResult
    records: SessionRecords | None
    files: dict[str, bytes]


def pack(run: RunDir, result: RolloutResult) -> bytes:
    """Take a finished rollout out of a node's run folder, as msgpack.

    Raises:
        ConfigError, JournalDamaged: its session cannot be read.
    """
    records = read_session(run.journal, result.session_id) if result.session_id else None
    folder = run.folder(result.rollout_id)
    files = {
        path.relative_to(folder).as_posix(): _content(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }
    shutil.rmtree(folder, ignore_errors=True)
    return msgspec.msgpack.encode(Shipment(result, records, files))


def unpack(data: bytes) -> Shipment:
    """A shipment from :func:`pack`."""
    return msgspec.msgpack.decode(data, type=Shipment)


async def store(shipment: Shipment, run: RunDir, journal: Journal | None) -> None:
    """Put a rollout into the driver's run folder: session, files, rows, and last the result, which makes it count.

    Args:
        journal: of the run; None where no rollout makes model calls.

    Raises:
        JournalError: the session could not be committed; nothing counts then.
    """
    if shipment.records is not None and journal is not None:
        await journal.adopt(shipment.records)
    await asyncio.to_thread(_write, shipment, run)


def _write(shipment: Shipment, run: RunDir) -> None:
    folder = run.folder(shipment.result.rollout_id)
    for name, data in shipment.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    run.append(shipment.result)


def _content(path: Path) -> bytes:
    size = path.stat().st_size
    if size > _FILE_BYTES:
        return f"[{size} bytes; left on its node, because it is larger than {_FILE_BYTES}]\n".encode()
    return path.read_bytes()
