"""A command in a local sandbox: its output, its end, and how to end it early."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import NoReturn

from drivetrain.sandboxes.control.channel import Channel
from drivetrain.sandboxes.control.output import OutputReader, make_pipe
from drivetrain.sandboxes.protocol import ExecResult, SandboxTimeout

# A killed tree is gone within milliseconds; what takes this long hangs in the kernel.
KILL_PATIENCE_S = 15.0


def exit_code(status: int) -> int:
    """The shell's view of a wait status: 128 + signal when killed."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class ControlledJob:
    """Implements ``BgJob``; ``exec`` is a job that is waited for. Make one with :meth:`launch`."""

    def __init__(self, channel: Channel, max_output_bytes: int, spill: Path | None) -> None:
        loop = asyncio.get_running_loop()
        self._channel = channel
        self._number = 0
        self._pid: asyncio.Future[int] = loop.create_future()
        self._status: asyncio.Future[int] = loop.create_future()
        self._begun = time.monotonic()
        self._code: int | None = None
        self._killed_by_deadline = False
        self._readers: list[OutputReader] = []
        self._writers: list[int] = []
        for name in ("stdout", "stderr"):
            reader, writer = make_pipe()
            self._writers.append(writer)
            self._readers.append(OutputReader(reader, max_output_bytes, spill / name if spill is not None else None))
        self._end: asyncio.Task[ExecResult] | None = None

    @classmethod
    async def launch(
        cls,
        channel: Channel,
        request: dict[str, object],
        *,
        stdin_fd: int | None,
        max_output_bytes: int,
        spill: Path | None = None,
        stdout_fd: int | None = None,
    ) -> ControlledJob:
        """Start a command and wait until its process exists.

        With ``stdout_fd`` its output goes there and is not kept.

        Raises:
            SandboxGone: the sandbox is closed or died.
            SandboxError: it has no process slot left.
        """
        job = cls(channel, max_output_bytes, spill)
        try:
            stdio = [] if stdin_fd is None else [stdin_fd]
            out, err = job._writers
            job._number = channel.run(job, request, [*stdio, out if stdout_fd is None else stdout_fd, err])
        except BaseException:
            job._close_readers()
            raise
        finally:
            for fd in job._writers:
                os.close(fd)
        try:
            await job._pid
        except asyncio.CancelledError:
            job._signal(signal.SIGKILL)
            job._close_readers()
            raise
        except BaseException:
            job._close_readers()
            raise
        job._end = asyncio.create_task(job._collect())
        job._end.add_done_callback(_retrieve)
        return job

    def started(self, pid: int) -> None:
        if not self._pid.done():
            self._pid.set_result(pid)

    def failed(self, error: Exception) -> None:
        for future in (self._pid, self._status):
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody has to be waiting

    def exited(self, status: int) -> None:
        if not self._pid.done():  # killed before it could say so
            self._pid.set_result(0)
        if not self._status.done():
            self._status.set_result(status)

    async def _collect(self) -> ExecResult:
        try:
            status = await self._status
            duration = time.monotonic() - self._begun
            await asyncio.gather(*(reader.finish() for reader in self._readers))
        finally:
            self._close_readers()
        self._code = exit_code(status)
        out, err = self._readers
        return ExecResult(
            exit_code=self._code,
            stdout=out.data,
            stderr=err.data,
            timed_out=self._killed_by_deadline,
            truncated=bool(out.dropped or err.dropped),
            duration_s=duration,
        )

    def _close_readers(self) -> None:
        for reader in self._readers:
            reader.close()

    def _signal(self, signum: int) -> None:
        self._channel.kill(self._number, signum)

    @property
    def pid(self) -> int:
        """Process id as seen from the host; 0 if it ended before it was seen."""
        return self._pid.result()

    def poll(self) -> int | None:
        """Exit code, or None while it runs.

        Raises:
            SandboxGone: the sandbox ended before the command did; there is no exit code.
        """
        if self._status.done() and (error := self._status.exception()) is not None:
            raise error
        return self._code

    async def wait(self, timeout_s: float | None = None) -> ExecResult:
        """Wait for the end; on timeout (seconds) raise TimeoutError and leave the job running.

        Raises:
            SandboxGone: the sandbox ended before the command did.
        """
        assert self._end is not None
        return await asyncio.wait_for(asyncio.shield(self._end), timeout_s)

    async def kill(self, grace_s: float = 2.0) -> None:
        """TERM, then KILL after ``grace_s`` seconds, the whole process tree; idempotent.

        A tree whose main process has ended is killed too, so that no detached grandchild stays.
        """
        assert self._end is not None
        if not self._end.done() and grace_s > 0:
            self._signal(signal.SIGTERM)
            await asyncio.wait([self._end], timeout=grace_s)
        self._signal(signal.SIGKILL)
        done, _ = await asyncio.wait([self._end], timeout=KILL_PATIENCE_S)
        if not done:
            self._stuck()

    async def kill_at_deadline(self) -> ExecResult:
        """KILL the whole tree at once; the result says ``timed_out``."""
        assert self._end is not None
        self._killed_by_deadline = not self._status.done()
        self._signal(signal.SIGKILL)
        try:
            return await self.wait(KILL_PATIENCE_S)
        except TimeoutError:
            self._stuck()

    def abandon(self) -> None:
        """KILL the whole tree and do not wait."""
        self._signal(signal.SIGKILL)

    def tail(self, max_bytes: int = 65536) -> bytes:
        """The last ``max_bytes`` (65,536 at most are kept once output was dropped) of stdout, then of stderr."""
        return b"".join(reader.tail(max_bytes) for reader in self._readers)

    def _stuck(self) -> NoReturn:
        raise SandboxTimeout(
            f"A killed command did not end within {KILL_PATIENCE_S:g} s.", fix="Close the sandbox; its disk may hang."
        )


def _retrieve(task: asyncio.Task[ExecResult]) -> None:
    """A job nobody waits for is no 'exception was never retrieved'."""
    if not task.cancelled():
        task.exception()
