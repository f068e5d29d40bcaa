"""The owner's end of the control socket to PID 1 of a local sandbox (the other end: ``inside/init.py``)."""

from __future__ import annotations

import array
import asyncio
import contextlib
import marshal
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, Protocol

from drivetrain.sandboxes.control.files import write_all
from drivetrain.sandboxes.protocol import SandboxError, SandboxGone

# Understood by every Python that can run inside.
MARSHAL_VERSION = 2
_MAX_MESSAGE = 4096
_CREDENTIALS = struct.Struct("3i")


class Listener(Protocol):
    """What a job wants to hear."""

    def started(self, pid: int) -> None:
        """The command's process exists; ``pid`` is its pid on the host."""

    def failed(self, error: Exception) -> None:
        """It could not be forked, or the sandbox is gone."""

    def exited(self, status: int) -> None:
        """The main process ended with this wait status."""


class Channel:
    """Sends requests, dispatches events. Bound to the running loop.

    Args:
        connected: the connection of a PID 1 that has called in (owned by the channel from now on); else ``remote`` is
            the other end, to be inherited by PID 1.
    """

    def __init__(self, connected: socket.socket | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._remote: socket.socket | None = None
        if connected is not None:
            self._socket = connected
        else:
            self._socket, self._remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.setblocking(False)
        self._jobs: dict[int, Listener] = {}
        self._next = 0
        self._waiting: dict[str, asyncio.Future[int]] = {
            word: self._loop.create_future() for word in ("hello", "ready")
        }
        self.gone: str | None = None
        self._loop.add_reader(self._socket.fileno(), self._readable)

    @property
    def remote(self) -> socket.socket:
        """PID 1's end of a channel that was made without a connection."""
        assert self._remote is not None
        return self._remote

    async def expect(self, word: str, timeout_s: float) -> int:
        """Wait for a start-up word; the sender's pid on the host.

        Raises:
            SandboxGone: the sandbox ended first.
            TimeoutError: nothing came.
        """
        return await asyncio.wait_for(self._waiting[word], timeout_s)

    def send(self, message: tuple[Any, ...], fds: Sequence[int] = ()) -> None:
        """Send one message.

        Raises:
            SandboxGone: nobody is there to take it.
            SandboxError: PID 1 is too far behind.
        """
        if self.gone is not None:
            raise SandboxGone(f"The sandbox is gone: {self.gone}.")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._socket.sendmsg([marshal.dumps(message, MARSHAL_VERSION)], rights)
        except BlockingIOError as error:
            raise SandboxError("The sandbox does not take requests fast enough.", fix="Start fewer at once.") from error
        except OSError as error:
            self.fail("its first process has ended")
            raise SandboxGone(f"The sandbox is gone: {self.gone}.") from error

    def run(self, listener: Listener, request: dict[str, Any], stdio: Sequence[int]) -> int:
        """Ask for a command; returns the job number. ``stdio``: (stdin,) stdout, stderr; without stdin it is null.

        The request travels in an anonymous file: any size, and no other process can read it.
        """
        job = self._next = self._next + 1
        fd = os.memfd_create("request", os.MFD_CLOEXEC)
        try:
            write_all(fd, marshal.dumps(request, MARSHAL_VERSION))
            self._jobs[job] = listener
            self.send(("run", job), [fd, *stdio])
        except BaseException:
            self._jobs.pop(job, None)
            raise
        finally:
            os.close(fd)
        return job

    def kill(self, job: int, signum: int) -> None:
        """Signal every process of a job's tree; a finished job and a gone sandbox are fine."""
        if self.gone is None:
            with contextlib.suppress(SandboxGone):
                self.send(("kill", job, int(signum)))  # marshal takes no enum

    def fail(self, why: str) -> None:
        """Mark the sandbox as gone and tell everybody who waits; idempotent, the first reason stays."""
        if self.gone is not None:
            return
        self.gone = why
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._remote is not None:
            self._remote.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SandboxGone(f"The sandbox is gone: {why}."))
                future.exception()  # nobody has to be waiting
        jobs, self._jobs = self._jobs, {}
        for listener in jobs.values():
            listener.failed(SandboxGone(f"The sandbox is gone: {why}."))

    def _readable(self) -> None:
        for _ in range(64):
            try:
                data, ancillary, _, _ = self._socket.recvmsg(_MAX_MESSAGE, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.fail("its first process has ended")
                return
            pid = next((_CREDENTIALS.unpack(raw)[0] for _, kind, raw in ancillary if kind == socket.SCM_CREDENTIALS), 0)
            self._dispatch(data.decode().split(" "), pid)
            if self.gone is not None:
                return

    def _dispatch(self, words: list[str], pid: int) -> None:
        word = words[0]
        if word in self._waiting:
            if not self._waiting[word].done():
                self._waiting[word].set_result(pid)
        elif word == "bye":
            self.fail("its time to live is over" if words[1] == "ttl" else words[1])
        elif (listener := self._jobs.get(int(words[1]))) is not None:
            if word == "up":
                listener.started(pid)
                return
            del self._jobs[int(words[1])]
            if word == "exit":
                listener.exited(int(words[2]))
            else:
                reason = os.strerror(int(words[2]))
                listener.failed(
                    SandboxError(f"The sandbox cannot start a process: {reason}.", fix="Raise limits.pids.")
                )
