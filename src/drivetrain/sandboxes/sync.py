"""Sandboxes for callers without an event loop: the contract of ``protocol.py``, method by method, blocking.

    with SyncBackend(LocalBackend()) as backend, backend.create(SandboxSpec()) as box:
        print(box.exec(["uname", "-a"]).stdout)

The backend runs on an event loop of its own in one daemon thread. Every object may be used from any number of threads
at once, also from a thread whose own event loop is running (which then waits). Errors are those of the contract. When
the program ends without :meth:`SyncBackend.close`, it is closed then.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # its exit hook must be set before ours, which then runs first
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from drivetrain.errors import ConfigError
from drivetrain.sandboxes.end import end
from drivetrain.sandboxes.protocol import (
    BgJob,
    ExecResult,
    Feature,
    Reach,
    SandboxBackend,
    SandboxGone,
    SandboxHandle,
    SandboxSpec,
    SandboxStats,
    Snapshot,
)

T = TypeVar("T")


class _Loop:
    """A backend on an event loop in a daemon thread, and calls into it that can be interrupted."""

    def __init__(self, backend: SandboxBackend) -> None:
        self.closed = False
        self._backend = backend
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        # Held while a call is handed over, so that none can slip in behind the last one.
        self._gate = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="drivetrain-sandboxes", daemon=True)
        self._thread.start()
        at_exit(self._close_at_exit)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def call(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        discard: Callable[[T], Coroutine[Any, Any, None]] | None = None,
    ) -> T:
        """Run ``work`` on the loop and wait for it.

        When the wait is interrupted (KeyboardInterrupt), the work is cancelled and its clean-up waited for; a result
        that came nevertheless is given to ``discard``.
        """
        self._check()
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        running: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = self._loop.create_task(work())
            running.append(task)
            self._tasks.add(task)
            task.add_done_callback(settle)

        def settle(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                outcome.set_exception(_closed())
            elif (error := task.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(task.result())

        def cancel() -> None:
            for task in running:
                task.cancel()

        with self._gate:
            if self.closed:
                raise _closed()
            self._loop.call_soon_threadsafe(begin)
        try:
            return outcome.result()
        except BaseException:
            if not outcome.done() or outcome.exception() is None:  # it is ours, not the work's
                self._interrupted(outcome, cancel, discard)
            raise

    def _interrupted(
        self,
        outcome: concurrent.futures.Future[T],
        cancel: Callable[[], None],
        discard: Callable[[T], Coroutine[Any, Any, None]] | None,
    ) -> None:
        self._loop.call_soon_threadsafe(cancel)
        if outcome.exception() is None and discard is not None:
            self.call(lambda: discard(outcome.result()))

    def _check(self) -> None:
        """Raise unless a call can be made from here."""
        if os.getpid() != self._pid:
            raise ConfigError(
                f"This SyncBackend belongs to process {self._pid}; threads do not survive a fork, so process "
                f"{os.getpid()} cannot use it.",
                fix="Make a SyncBackend after the fork (or use multiprocessing's spawn).",
            )
        if threading.current_thread() is self._thread:
            raise ConfigError(
                "A blocking call from the loop that has to do the work would wait for ever.",
                fix="Inside async code use the backend itself, not SyncBackend.",
            )

    def close(self) -> None:
        """End every call, close the backend, end the thread; idempotent, and everybody returns when it is done."""
        self._check()
        with self._gate:
            first, self.closed = not self.closed, True
        if not first:
            self._ended.wait()
            return
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        try:
            try:
                ending.result()
            except KeyboardInterrupt:  # a second one gets out
                ending.result()
                raise
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._ended.set()

    async def _end(self) -> None:
        while self._tasks:
            await end(*self._tasks)
        await self._backend.aclose()

    def _close_at_exit(self) -> None:
        if os.getpid() == self._pid:  # a forked child has none of it
            self.close()


def _closed() -> SandboxGone:
    return SandboxGone("The sandbox is gone: its SyncBackend was closed.", fix="Make another.")


def at_exit(work: Callable[[], None]) -> None:
    """Run at the end of the program while threads still work (backends remove files in threads), if not yet garbage."""
    reference = weakref.WeakMethod(work)

    def run() -> None:
        if (method := reference()) is not None:
            method()

    register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
    register(run)


class SyncJob:
    """``BgJob``, blocking."""

    def __init__(self, loop: _Loop, job: BgJob) -> None:
        self._loop = loop
        self._job = job
        self._pid = job.pid

    @property
    def pid(self) -> int:
        """Process id: the host's where the backend has ``host_pids``, else the sandbox's."""
        return self._pid

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""

        async def work() -> int | None:
            return self._job.poll()

        return self._loop.call(work)

    def wait(self, timeout_s: float | None = None) -> ExecResult:
        """Wait for the end; on timeout raise TimeoutError and leave the job running."""
        return self._loop.call(lambda: self._job.wait(timeout_s))

    def kill(self, grace_s: float = 2.0) -> None:
        """TERM, then KILL the whole process tree; idempotent."""
        self._loop.call(lambda: self._job.kill(grace_s))

    def tail(self, max_bytes: int = 65536) -> bytes:
        """The last bytes of stdout and stderr so far, in that order."""

        async def work() -> bytes:
            return self._job.tail(max_bytes)

        return self._loop.call(work)


class SyncSandbox:
    """``SandboxHandle``, blocking; as a context manager it is closed at the end."""

    def __init__(self, loop: _Loop, sandbox: SandboxHandle) -> None:
        self._loop = loop
        self._sandbox = sandbox

    @property
    def id(self) -> str:
        """Unique name, also the label the reaper looks for."""
        return self._sandbox.id

    @property
    def workdir(self) -> str:
        """Default cwd, inside path."""
        return self._sandbox.workdir

    @property
    def home(self) -> str:
        """HOME of every command, inside path; private and writable."""
        return self._sandbox.home

    def gateway_url(self) -> str:
        """Base URL at which the gateway is reached from inside."""

        async def work() -> str:
            return self._sandbox.gateway_url()

        return self._loop.call(work)

    def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_s: float = 60.0,
        max_output_bytes: int = 4 << 20,
        spill: Path | None = None,
    ) -> ExecResult:
        """Run to the end or the deadline; KeyboardInterrupt kills the command."""
        return self._loop.call(
            lambda: self._sandbox.exec(
                argv,
                cwd=cwd,
                env=env,
                stdin=stdin,
                timeout_s=timeout_s,
                max_output_bytes=max_output_bytes,
                spill=spill,
            )
        )

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int = 16 << 20,
        spill: Path | None = None,
    ) -> SyncJob:
        """Start in the background."""

        async def work() -> SyncJob:
            job = await self._sandbox.start(argv, cwd=cwd, env=env, max_output_bytes=max_output_bytes, spill=spill)
            return SyncJob(self._loop, job)

        async def discard(job: SyncJob) -> None:
            await job._job.kill(0.0)

        return self._loop.call(work, discard)

    def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Content of a file inside."""
        return self._loop.call(lambda: self._sandbox.read(path, max_bytes=max_bytes))

    def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file inside; parents are made."""
        self._loop.call(lambda: self._sandbox.write(path, data, mode=mode))

    def upload(self, tar: bytes, target: str) -> None:
        """Unpack an (uncompressed) tar archive into directory ``target``."""
        self._loop.call(lambda: self._sandbox.upload(tar, target))

    def download(self, path: str, *, max_bytes: int = 512 << 20) -> bytes:
        """A directory's content as an uncompressed tar."""
        return self._loop.call(lambda: self._sandbox.download(path, max_bytes=max_bytes))

    def reach(self, port: int) -> Reach:
        """How the host reaches TCP ``port`` inside."""
        return self._loop.call(lambda: self._sandbox.reach(port))

    def stats(self) -> SandboxStats:
        """Use of resources so far."""
        return self._loop.call(self._sandbox.stats)

    def snapshot(self) -> Snapshot:
        """Keep its files as they are now."""
        return self._loop.call(self._sandbox.snapshot)

    def close(self) -> None:
        """Kill everything inside and remove every trace on the host; idempotent, also after the backend's close."""
        try:
            self._loop.call(self._sandbox.close)
        except SandboxGone:
            if not self._loop.closed:
                raise

    def __enter__(self) -> SyncSandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncBackend:
    """``SandboxBackend``, blocking; as a context manager it is closed at the end.

    Args:
        backend: not used on any event loop before; it belongs to this object from then on.
    """

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._loop = _Loop(backend)

    @property
    def name(self) -> str:
        """Name as used on the command line."""
        return self._backend.name

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do beyond the core."""
        return self._backend.features

    def create(self, spec: SandboxSpec) -> SyncSandbox:
        """Start a sandbox; an interrupted start leaves nothing behind.

        Raises:
            SandboxStartError: it did not come up; nothing is left behind.
            SandboxUnsupported: the spec asks for what this backend cannot do.
            SandboxGone: this object was closed.
            ConfigError: this object belongs to the process before a fork.
        """

        async def work() -> SyncSandbox:
            return SyncSandbox(self._loop, await self._backend.create(spec))

        async def discard(sandbox: SyncSandbox) -> None:
            await sandbox._sandbox.close()

        return self._loop.call(work, discard)

    def drop(self, snapshot: Snapshot) -> None:
        """Remove a snapshot; one that is gone already is fine."""
        self._loop.call(lambda: self._backend.drop(snapshot))

    def reap(self) -> list[str]:
        """Remove sandboxes of dead owners and past deadlines; their ids."""
        return self._loop.call(self._backend.reap)

    def close(self) -> None:
        """Close every sandbox, end what other threads wait for (``SandboxGone``), stop the thread; idempotent."""
        self._loop.close()

    def __enter__(self) -> SyncBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
