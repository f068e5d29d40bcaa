"""The processes of a chaos run: start, kill, hold, end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the kernel gives to clients: they stay free while a server is
    down."""
    found: list[int] = []
    chance = random.SystemRandom()
    while len(found) < count:
        port = chance.randint(15000, 31000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


class Process:
    """A Python module in a process of its own that can be killed and started again.

    Args:
        module: its name, and ``arguments`` behind it.
        log: file that takes what it says.
        ready: it is up when a line of its standard output begins so; empty: at once.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], log: Path, *, ready: str = "", env: Mapping[str, str] = {}
    ) -> None:
        self.name = module.rpartition(".")[2]
        self.starts = 0
        self._command = [sys.executable, "-m", module, *arguments]
        self._log = log
        self._ready = ready
        self._env = env
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            RuntimeError: it ended before it was.
        """
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=REPOSITORY,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **self._env},
            )
        assert self._process.stdout is not None
        while self._ready:
            line = await self._process.stdout.readline()
            if not line:
                await self._process.wait()
                raise RuntimeError(f"{self.name} did not start:\n{self._log.read_text()[-4000:]}")
            if line.decode().startswith(self._ready):
                break
        self._reading = asyncio.create_task(self._drain(self._process.stdout))

    async def _drain(self, stream: asyncio.StreamReader) -> None:
        while await stream.readline():
            pass

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        await self.wait()

    async def wait(self, patience_s: float | None = None) -> int:
        """Its exit code.

        Raises:
            TimeoutError: it is still running.
        """
        assert self._process is not None
        async with asyncio.timeout(patience_s):
            code = await self._process.wait()
            if self._reading is not None:
                await self._reading
        return code
