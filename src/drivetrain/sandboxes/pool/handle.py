"""A sandbox from a pool, as its user sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from drivetrain.sandboxes.protocol import (
    BgJob,
    ExecResult,
    Reach,
    SandboxGone,
    SandboxHandle,
    SandboxSpec,
    SandboxStats,
    Snapshot,
)


class PooledSandbox:
    """Implements ``SandboxHandle``: one of the backend's, with the environment of the spec it was handed out for.

    Args:
        sandbox: the backend's; used by nobody before.
        spec: what its user asked for.
        retire: starts to close ``sandbox``; called once.
        in_background: :meth:`close` does not wait for the end of it.
    """

    def __init__(
        self,
        sandbox: SandboxHandle,
        spec: SandboxSpec,
        *,
        retire: Callable[[PooledSandbox], asyncio.Task[None]],
        in_background: bool,
    ) -> None:
        self._sandbox = sandbox
        self._spec = spec
        self._retire = retire
        self._in_background = in_background
        self._closing: asyncio.Task[None] | None = None
        self._why = "it was closed"
        self.expiry: asyncio.TimerHandle | None = None

    @property
    def sandbox(self) -> SandboxHandle:
        """The backend's own handle."""
        return self._sandbox

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
        """HOME of every command, inside path."""
        return self._sandbox.home

    def gateway_url(self) -> str:
        """Base URL of the gateway as seen from inside."""
        return self._sandbox.gateway_url()

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
        """Run to the end or the deadline."""
        return await self._open().exec(
            argv,
            cwd=cwd,
            env=self._environment(env),
            stdin=stdin,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
            spill=spill,
        )

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int = 16 << 20,
        spill: Path | None = None,
    ) -> BgJob:
        """Start in the background."""
        return await self._open().start(
            argv, cwd=cwd, env=self._environment(env), max_output_bytes=max_output_bytes, spill=spill
        )

    async def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Content of a file inside."""
        return await self._open().read(path, max_bytes=max_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file inside."""
        await self._open().write(path, data, mode=mode)

    async def upload(self, tar: bytes, target: str) -> None:
        """Unpack a tar archive into a directory."""
        await self._open().upload(tar, target)

    async def download(self, path: str, *, max_bytes: int = 512 << 20) -> bytes:
        """A directory's content as a tar."""
        return await self._open().download(path, max_bytes=max_bytes)

    async def reach(self, port: int) -> Reach:
        """How the host reaches a TCP port inside."""
        return await self._open().reach(port)

    async def stats(self) -> SandboxStats:
        """Use of resources so far."""
        return await self._open().stats()

    async def snapshot(self) -> Snapshot:
        """Keep its files as they are now."""
        return await self._open().snapshot()

    async def close(self) -> None:
        """Kill everything inside and remove every trace; idempotent.

        In a pool with ``close_in_background`` this returns once the sandbox takes no more commands; its removal goes
        on, counts against the pool's limit until it is done, and ``SandboxPool.aclose`` waits for it.
        """
        closing = self.begin_close("it was closed")
        if not self._in_background:
            await asyncio.shield(closing)

    def begin_close(self, why: str) -> asyncio.Task[None]:
        """Take no more commands, start the removal; the same task every time."""
        if self._closing is None:
            self._why = why
            if self.expiry is not None:
                self.expiry.cancel()
            self._closing = self._retire(self)
        return self._closing

    def _open(self) -> SandboxHandle:
        if self._closing is not None:
            raise SandboxGone(f"The sandbox is gone: {self._why}.")
        return self._sandbox

    def _environment(self, env: Mapping[str, str] | None) -> Mapping[str, str]:
        return {**self._spec.env, **(env or {})}
