"""Both ends of the relay on loopback, with a proxy between them that cuts, stalls, slows and shortens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from drivetrain.sandboxes import Reach
from drivetrain.sandboxes.relay.dialin import DialIn, DialInOptions, inside_argv, inside_script, new_secret

QUICK = DialInOptions(ping_s=0.3, dead_s=1.0, resume_s=20.0, connect_s=5.0, backoff_s=0.01, backoff_max_s=0.2)
"""For tests that lose links."""


class Proxy:
    """A TCP proxy as a provider puts in front of a sandbox.

    ``cut_after``: bytes (both ways together) after which a connection is cut, asked anew for each; None for never.
    ``chunk``: most bytes moved at once, so that writes end anywhere. ``pause_s``: sleep between moves (a slow link).
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.cut_after: Callable[[random.Random], int] | None = None
        self.chunk = 65536
        self.pause_s = 0.0
        self.moves = asyncio.Event()  # cleared: nothing moves, nobody is told
        self.moves.set()
        self.refuse = False
        self.connections = 0
        self.port = 0
        self._dice = random.Random(7)
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._serve, host, port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection now."""
        for writer in list(self._open):
            writer.transport.abort()

    def forget(self) -> None:
        """Stall what is open for good (half-open: nobody is told); new connections work."""
        for task in list(self._tasks):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuse:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(*self.target)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()
            return
        left = [self.cut_after(self._dice) if self.cut_after is not None else 1 << 60]
        self._open |= {writer, back}
        for one, other in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._copy(one, other, left))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int]) -> None:
        try:
            while data := await reader.read(self.chunk):
                await self.moves.wait()
                data, left[0] = data[: left[0]], left[0] - len(data)
                writer.write(data)
                await writer.drain()
                if left[0] <= 0:
                    self.cut()
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)
            writer.close()
        except OSError:
            writer.transport.abort()


@dataclass
class Inside:
    """The script as a process of its own."""

    folder: Path
    secret: str = field(default_factory=new_secret)
    python: str = sys.executable
    relay_port: int = 0
    dial_port: int = 0
    timing: tuple[str, ...] = ("--ping-s", "0.3", "--dead-s", "1.0")
    resume_s: float = 20.0
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, at the same ports the second time."""
        script, secret = self.folder / "dialin.pyz", self.folder / "dialin.secret"
        script.write_bytes(inside_script())
        secret.touch(mode=0o600)
        secret.write_text(self.secret)
        argv = inside_argv(
            str(script),
            secret_file=str(secret),
            relay_port=self.relay_port,
            dial_port=self.dial_port,
            dial_host="127.0.0.1",
            python=self.python,
            resume_s=self.resume_s,
        )
        self.process = await asyncio.create_subprocess_exec(
            *argv, *self.timing, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        assert self.process.stdout is not None
        ports = json.loads(await self.process.stdout.readline())
        self.relay_port, self.dial_port = ports["relay_port"], ports["dial_port"]
        assert not secret.exists()

    async def kill(self) -> None:
        """As the kernel would."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@dataclass
class Rig:
    """Everything up: harness side at ``port``, gateway side at ``socket``."""

    inside: Inside
    proxy: Proxy
    socket: Path
    dial: DialIn

    @property
    def port(self) -> int:
        return self.inside.relay_port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As a harness does."""
        return await asyncio.open_connection("127.0.0.1", self.port, limit=65536)


@asynccontextmanager
async def rigged(
    folder: Path, *, start: bool = True, options: DialInOptions = QUICK, **inside: object
) -> AsyncIterator[Rig]:
    """Inside, proxy and host; the gateway's socket is the test's affair."""
    box = Inside(folder, **inside)  # type: ignore[arg-type]
    await box.start()
    try:
        async with Proxy(("127.0.0.1", box.dial_port)).serving() as proxy:
            dial = DialIn(Reach(f"http://127.0.0.1:{proxy.port}"), box.secret, folder / "gw.sock", options=options)
            if start:
                await dial.start()
            try:
                yield Rig(box, proxy, folder / "gw.sock", dial)
            finally:
                await dial.close()
    finally:
        await box.kill()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A gateway that sends back what it gets and then ends."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def exchange(rig: Rig, body: bytes, *, chunk: int = 50_000) -> bytes:
    """Send a body, half-close, read everything; both at once."""
    reader, writer = await rig.connect()

    async def write() -> None:
        for at in range(0, len(body), chunk):
            writer.write(body[at : at + chunk])
            await writer.drain()
        writer.write_eof()

    writing = asyncio.create_task(write())
    try:
        return await reader.read(-1)
    finally:
        await writing
        writer.close()


async def until(true: Callable[[], object], *, patience_s: float = 20.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(patience_s):
        while not true():  # noqa: ASYNC110 (many kinds of conditions)
            await asyncio.sleep(0.01)
