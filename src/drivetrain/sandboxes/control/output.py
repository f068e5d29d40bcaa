"""Reads one output stream of a command without ever blocking it: the head is kept, the rest is read and dropped."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from pathlib import Path

from drivetrain.sandboxes.control.files import write_all

logger = logging.getLogger(__name__)

PIPE_BYTES = 1 << 20
TAIL_BYTES = 1 << 16
SPILL_BYTES = 1 << 30


class OutputReader:
    """The owner's end of a pipe.

    Args:
        fd: read end; owned and closed by this object.
        max_bytes: how much of the head to keep. Of what comes after, the last 64 KiB stay available for :meth:`tail`.
        spill: host file that gets the whole stream (1 GiB at most) once it exceeds ``max_bytes``.
    """

    def __init__(self, fd: int, max_bytes: int, spill: Path | None = None) -> None:
        os.set_blocking(fd, False)
        self._spill = spill
        self._spill_fd: int | None = None
        self._spill_room = SPILL_BYTES
        self._fd = fd
        self._max_bytes = max_bytes
        self._head = bytearray()
        self._recent = bytearray()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.dropped = 0
        self._loop.add_reader(fd, self._readable)

    @property
    def data(self) -> bytes:
        """The head, ``max_bytes`` at most."""
        return bytes(self._head)

    def tail(self, max_bytes: int) -> bytes:
        """The last ``max_bytes`` seen so far, across a gap if there is one."""
        if max_bytes <= 0:
            return b""
        if self.dropped > TAIL_BYTES:
            return bytes(self._recent[-max_bytes:])
        return bytes((self._head + self._recent)[-max_bytes:])

    def _readable(self) -> None:
        self._read()

    def _read(self) -> int:
        """Read once; the number of bytes, 0 when there is nothing now or ever."""
        if self._ended.is_set():
            return 0
        try:
            chunk = os.read(self._fd, PIPE_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            return 0
        room = self._max_bytes - len(self._head)
        if room > 0:
            self._head += chunk[:room]
        rest = chunk[max(room, 0) :]
        if rest:
            self.dropped += len(rest)
            if self._spill is not None:
                self._keep_all(self._spill, rest)
            self._recent += rest
            if len(self._recent) > 2 * TAIL_BYTES:
                del self._recent[:-TAIL_BYTES]
        return len(chunk)

    def _keep_all(self, spill: Path, rest: bytes) -> None:
        try:
            if self._spill_fd is None:
                spill.parent.mkdir(parents=True, exist_ok=True)
                self._spill_fd = os.open(spill, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                write_all(self._spill_fd, self._head)
                self._spill_room -= len(self._head)
            write_all(self._spill_fd, rest[: max(self._spill_room, 0)])
            self._spill_room -= len(rest)
        except OSError as error:
            # The host's disk is full: the command goes on, and the head is what there is.
            logger.warning("cannot write the whole output to %s: %s", spill, error)
            self._spill = None

    async def finish(self, grace_s: float = 0.05) -> None:
        """Take what the ended command left in the pipe, then stop, whoever still holds the other end open."""
        left = fcntl.fcntl(self._fd, fcntl.F_GETPIPE_SZ) if not self._ended.is_set() else 0
        while left > 0 and (count := self._read()):
            left -= count
        if not self._ended.is_set():
            try:
                await asyncio.wait_for(self._ended.wait(), grace_s)
            except TimeoutError:
                self.close()

    def close(self) -> None:
        """Stop reading; idempotent. A writer that goes on gets SIGPIPE."""
        if not self._ended.is_set():
            self._ended.set()
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            if self._spill_fd is not None:
                os.close(self._spill_fd)
                self._spill_fd = None


def make_pipe() -> tuple[int, int]:
    """A large pipe (reading end, writing end)."""
    reader, writer = os.pipe()
    with contextlib.suppress(OSError):  # over the user's pipe quota: a small pipe is only slower
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reader, writer
