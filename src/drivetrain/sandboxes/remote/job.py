"""A command in a cloud sandbox: followed by questions that may all be asked again."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain.sandboxes.control.job import exit_code
from drivetrain.sandboxes.protocol import ExecResult, SandboxError, SandboxGone, SandboxTimeout
from drivetrain.sandboxes.remote.times import KILL_SLACK_S, LONG_POLL_S

if TYPE_CHECKING:
    from drivetrain.sandboxes.remote.supervisor import Supervisor

RECENT_BYTES = 1 << 16
PACE_FIRST_S = 0.02
PACE_MOST_S = 1.0
STREAMS = ("stdout", "stderr")


class Seen:
    """What the owner knows of one output stream."""

    def __init__(self) -> None:
        self.total = 0
        self.recent = bytearray()
        self.whole = True  # nothing came that is not in ``recent``
        self.lost = False

    def take(self, total: int, begin: int, data: bytes, lost: bool) -> None:
        if total <= self.total:
            return
        if begin > self.total:
            self.recent.clear()
            self.whole = False
        self.recent += data[max(self.total - begin, 0) :]
        if len(self.recent) > RECENT_BYTES:
            self.whole = False
            del self.recent[:-RECENT_BYTES]
        self.total = total
        self.lost = lost


class RemoteJob:
    """Implements ``BgJob``; ``exec`` is a job that is waited for. Made by :meth:`RemoteSandbox.start`."""

    def __init__(self, supervisor: Supervisor, name: str, *, max_output_bytes: int, spill: Path | None) -> None:
        self._supervisor = supervisor
        self._name = name
        self._max = max_output_bytes
        self._spill = spill
        self._pid = 0
        self._code: int | None = None
        self._seen = [Seen(), Seen()]
        self._gone: SandboxError | None = None
        self._ended = asyncio.Event()
        self._end: asyncio.Task[ExecResult] | None = None

    async def begin(self, wait_s: float) -> None:
        """Start it (again is harmless) and wait until its process exists, or within ``wait_s`` for its end.

        Raises:
            SandboxGone: the sandbox is closed or died.
            SandboxError: it could not be started.
        """
        answer = await self._supervisor.ask({"do": "run", "job": self._name, "wait": min(wait_s, LONG_POLL_S)})
        if answer["error"] is not None:
            raise SandboxError(
                f"The sandbox cannot start a process: {answer['error']}.", fix="Raise limits.pids or start fewer."
            )
        self._note(answer)
        self._end = self._supervisor.spawn(self._follow(answer))

    async def _follow(self, answer: dict[str, Any]) -> ExecResult:
        try:
            pace = PACE_FIRST_S
            while not self._note(answer):
                await asyncio.sleep(pace)  # a chatty command must not become a call per line
                asked = time.monotonic()
                seen = [stream.total for stream in self._seen]
                answer = await self._supervisor.ask(
                    {"do": "look", "job": self._name, "seen": seen, "wait": LONG_POLL_S}
                )
                quiet = time.monotonic() - asked > PACE_MOST_S
                pace = PACE_FIRST_S if quiet else min(pace * 1.5, PACE_MOST_S)
            if answer["error"] is not None:
                raise SandboxError(f"The sandbox lost a command: {answer['error']}.")
            heads = [await self._head(number) for number in range(2)]
            self._supervisor.forget(self._name)
            self._code = exit_code(answer["status"])
            return ExecResult(
                exit_code=self._code,
                stdout=heads[0],
                stderr=heads[1],
                timed_out=answer["timed_out"],
                truncated=any(stream.total > self._max or stream.lost for stream in self._seen),
                duration_s=answer["duration"],
            )
        except SandboxError as error:
            self._gone = error
            raise
        finally:
            self._ended.set()

    def _note(self, answer: dict[str, Any]) -> bool:
        self._pid = answer["pid"] or self._pid
        for stream, (total, begin, data, lost) in zip(self._seen, answer["streams"], strict=True):
            stream.take(total, begin, base64.b64decode(data), lost)
        return answer["status"] is not None or answer["error"] is not None

    async def _head(self, number: int) -> bytes:
        """The kept head of a stream; all of it into the spill folder where it is longer and the caller wants it."""
        stream, name = self._seen[number], STREAMS[number]
        if stream.whole:
            head = bytes(stream.recent[: self._max])
        else:
            head = await self._supervisor.fetch(self._name, name, min(stream.total, self._max))
        if self._spill is not None and stream.total > self._max:
            await self._supervisor.fetch_all(self._name, name, head, self._spill)
        return head

    @property
    def pid(self) -> int:
        """Process id inside the sandbox; 0 if it ended before it was seen."""
        return self._pid

    def poll(self) -> int | None:
        """Exit code, or None while it runs (as of the last answer; a change is known within a second).

        Raises:
            SandboxGone: the sandbox ended before the command did; there is no exit code.
        """
        gone = self._gone or self._supervisor.gone
        if gone is not None and self._code is None:
            raise gone
        return self._code

    async def wait(self, timeout_s: float | None = None) -> ExecResult:
        """Wait for the end; on timeout (seconds) raise TimeoutError and leave the job running.

        Raises:
            SandboxGone: the sandbox ended before the command did.
        """
        assert self._end is not None
        done, _ = await asyncio.wait([self._end], timeout=timeout_s)
        if not done:
            raise TimeoutError
        if self._end.cancelled():
            raise self._supervisor.gone or SandboxGone("The sandbox is gone.")
        return self._end.result()

    async def kill(self, grace_s: float = 2.0) -> None:
        """TERM, then KILL after ``grace_s`` seconds, the whole process tree; idempotent.

        A tree whose main process has ended is killed too, so that no detached grandchild stays.
        """
        assert self._end is not None
        with contextlib.suppress(SandboxGone):
            if not self._end.done() and grace_s > 0:
                await self._signal(signal.SIGTERM)
                await asyncio.wait([self._end], timeout=grace_s)
            await self._signal(signal.SIGKILL)
        done, _ = await asyncio.wait([self._end], timeout=KILL_SLACK_S)
        if not done:
            raise SandboxTimeout(
                f"A killed command did not end within {KILL_SLACK_S:g} s.", fix="Close the sandbox; it may hang."
            )

    async def finish(self, timeout_s: float) -> ExecResult:
        """The result of a command whose deadline the supervisor keeps; killed from here if that does not happen."""
        try:
            return await self.wait(timeout_s + KILL_SLACK_S)
        except TimeoutError:
            await self.kill(0)
            return await self.wait(0)

    def abandon(self) -> None:
        """KILL the whole tree and do not wait."""
        self._supervisor.spawn(self._signal(signal.SIGKILL))

    async def _signal(self, signum: int) -> None:
        await self._supervisor.ask({"do": "kill", "job": self._name, "signal": int(signum)})

    def tail(self, max_bytes: int = RECENT_BYTES) -> bytes:
        """The last ``max_bytes`` (65,536 at most are kept) of stdout, then of stderr, as of the last answer."""
        return b"".join(bytes(stream.recent[-max_bytes:]) if max_bytes else b"" for stream in self._seen)
