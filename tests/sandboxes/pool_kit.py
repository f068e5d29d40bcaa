"""A backend made of nothing, and an event loop whose clock jumps to the next timer: hours pass in a millisecond."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.sandboxes import (
    BgJob,
    ExecResult,
    Feature,
    Reach,
    SandboxGone,
    SandboxSpec,
    SandboxStats,
    Snapshot,
)


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of sleeping, moves the clock."""

    clock = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise AssertionError("everybody waits and no timer is set: a wake-up was lost")
            self.clock += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = _JumpingSelector()
        super().__init__(self.selector)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.selector.clock


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an async test in virtual time; nothing may be left running."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(test())
        assert asyncio.all_tasks(loop) == set()
    finally:
        loop.close()


class FakeSandbox:
    """Alive until it is closed or killed; ends itself at its time to live."""

    workdir = "/work"
    home = "/home"

    def __init__(self, backend: FakeBackend, number: int, spec: SandboxSpec) -> None:
        self.id = f"fake-{number}"
        self.spec = spec
        self.alive = True
        self.closed = False
        self.used = False
        self.commands: list[Mapping[str, str]] = []
        self._backend = backend
        self._ttl = asyncio.get_running_loop().call_later(spec.limits.ttl_s, self.die)

    def die(self) -> None:
        self.alive = False

    def _check(self) -> None:
        if not self.alive:
            raise SandboxGone("The sandbox is gone: it died.")

    def gateway_url(self) -> str:
        return "http://gateway"

    async def exec(
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
        self._check()
        self.commands.append({**self.spec.env, **(env or {})})
        return ExecResult(exit_code=0, stdout=b"", stderr=b"", timed_out=False, truncated=False, duration_s=0.0)

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int = 16 << 20,
        spill: Path | None = None,
    ) -> BgJob:
        raise NotImplementedError

    async def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        self._check()
        return path.encode()

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._check()

    async def upload(self, tar: bytes, target: str) -> None:
        self._check()

    async def download(self, path: str, *, max_bytes: int = 512 << 20) -> bytes:
        self._check()
        return b""

    async def reach(self, port: int) -> Reach:
        self._check()
        return Reach(f"http://fake:{port}")

    async def stats(self) -> SandboxStats:
        if self._backend.probe_s:
            await asyncio.sleep(self._backend.probe_s)
        self._check()
        return SandboxStats()

    async def snapshot(self) -> Snapshot:
        self._check()
        return Snapshot("fake", self.id)

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.alive = False
        self._ttl.cancel()
        try:
            if self._backend.close_s:
                await asyncio.sleep(self._backend.close_s)
            if self._backend.close_error is not None:
                raise self._backend.close_error
        finally:
            self._backend.present.discard(self)


class FakeBackend:
    """``present`` is the truth: what takes memory, from the begin of its start to the end of its removal."""

    name = "fake"
    features: frozenset[Feature] = frozenset({"mount"})

    def __init__(self) -> None:
        self.create_s = 1.0
        self.close_s = 0.5
        self.probe_s = 0.0
        self.errors: list[Exception] = []
        """Raised by the next starts, one each."""
        self.broken: Exception | None = None
        """Raised by every start."""
        self.close_error: Exception | None = None
        self.present: set[object] = set()
        self.peak = 0
        self.starts: list[float] = []
        self.made: list[FakeSandbox] = []
        self.closings = 0

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        loop = asyncio.get_running_loop()
        self.starts.append(loop.time())
        token = object()
        self.present.add(token)
        self.peak = max(self.peak, len(self.present))
        try:
            await asyncio.sleep(self.create_s)
            if self.errors:
                raise self.errors.pop(0)
            if self.broken is not None:
                raise self.broken
        except BaseException:
            # The clean-up takes its time too, and nothing cuts it short: that is the contract.
            clean_up = asyncio.create_task(asyncio.sleep(self.close_s))
            while not clean_up.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(clean_up)
            self.present.discard(token)
            raise
        sandbox = FakeSandbox(self, len(self.made), spec)
        self.present.discard(token)
        self.present.add(sandbox)
        self.made.append(sandbox)
        return sandbox

    async def drop(self, snapshot: Snapshot) -> None:
        pass

    async def reap(self) -> list[str]:
        return ["dt-dead"]

    async def aclose(self) -> None:
        self.closings += 1
