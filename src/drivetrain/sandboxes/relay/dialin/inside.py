"""The inside of the dial-in relay: the program that runs in the sandbox (``package.inside_argv`` is its command line).

Listens for the harness on loopback and for the host on the dial port. Standard library only, Python 3.9 or later.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys

from . import wire
from .carrier import Carrier, LinkDead, Timing
from .endpoint import READ_AHEAD
from .session import Session
from .websocket import HEAD_BYTES, ServerLink, answer
from .wire import WireError

HEAD_PATIENCE_S = 10.0
MAX_DIALS = 64
"""Unauthenticated connections at a time; more are closed unread."""


def read_secret(path: str) -> bytes:
    """The secret from a private file, which is removed, or from stdin (``-``).

    Raises:
        SystemExit: no secret, or others could have read it.
    """
    if path == "-":
        secret = sys.stdin.buffer.read().strip()
    else:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            if os.fstat(opened).st_mode & 0o077:
                sys.exit(f"{path} can be read by others. Write it with mode 0600.")
            secret = file.read().strip()
        os.unlink(path)  # noqa: PTH108 (pathlib costs start-up time)
    if len(secret) < 16:
        sys.exit("The secret is shorter than 16 bytes.")
    return secret


class Inside:
    """Both listeners and the one link."""

    def __init__(self, secret: bytes, timing: Timing) -> None:
        self._secret = secret
        self._carrier = Carrier(Session(opens=True), timing)
        self._link: ServerLink | None = None
        self._turn = asyncio.Lock()  # who carries
        self._dials = 0

    async def harness(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A harness connected."""
        if self._carrier.streams >= wire.MAX_STREAMS:
            writer.transport.abort()
            return
        no_delay(writer)
        self._carrier.adopt(reader, writer)

    async def dial(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody connected to the dial port."""
        if self._dials >= MAX_DIALS:
            writer.transport.abort()
            return
        self._dials += 1
        no_delay(writer)
        try:
            welcome = await asyncio.wait_for(self._greet(reader, writer), HEAD_PATIENCE_S)
        except Exception:  # too slow, too long, gone: nobody we know
            welcome = False
        finally:
            self._dials -= 1
        if welcome:
            await self._use(ServerLink(reader, writer))
        else:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        accepted, reply = answer(head[:-4], self._secret)
        writer.write(reply)
        await writer.drain()
        return accepted

    async def _use(self, link: ServerLink) -> None:
        """Carry over this link, the newest; the one before is closed first."""
        before, self._link = self._link, link
        if before is not None:
            await before.close(wire.CLOSE_REPLACED)
        async with self._turn:
            if self._link is not link:  # a newer one came meanwhile
                await link.close(wire.CLOSE_REPLACED)
                return
            try:
                await self._carrier.carry(link)
                why = f"closed with {link.close_code}"
            except (WireError, LinkDead, OSError) as error:
                why = str(error)
            if self._link is link:
                self._link = None
            await link.close(1000)
            if link.close_code == wire.CLOSE_BYE:
                self._carrier.abandon()
            print(f"the link ended: {why}", file=sys.stderr, flush=True)


def listening(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Raises:
        SystemExit: the port is taken or not allowed.
    """
    try:
        return socket.create_server((host, port), backlog=512)
    except OSError as error:
        sys.exit(f"Cannot listen on {host}:{port}: {error}.")


def no_delay(writer: asyncio.StreamWriter) -> None:
    """Send small frames at once; asyncio does this only where the listener's protocol number is set."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def serve(secret: bytes, timing: Timing, relay: socket.socket, dial: socket.socket) -> None:
    """Serve until cancelled."""
    inside = Inside(secret, timing)
    servers = [
        await asyncio.start_server(inside.harness, sock=relay, limit=READ_AHEAD),
        await asyncio.start_server(inside.dial, sock=dial, limit=HEAD_BYTES + wire.MAX_MESSAGE),
    ]
    ports = {"relay_port": relay.getsockname()[1], "dial_port": dial.getsockname()[1]}
    print(json.dumps(ports), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    """The command line; see ``package.inside_argv``."""
    parser = argparse.ArgumentParser("dialin", allow_abbrev=False)
    parser.add_argument("--relay-port", type=int, required=True)
    parser.add_argument("--dial-port", type=int, required=True)
    parser.add_argument("--dial-host", default="0.0.0.0")
    parser.add_argument("--secret-file", required=True)
    parser.add_argument("--resume-s", type=float, default=Timing().resume_s)
    parser.add_argument("--ping-s", type=float, default=Timing().ping_s)
    parser.add_argument("--dead-s", type=float, default=Timing().dead_s)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    timing = Timing(options.ping_s, options.dead_s, options.resume_s)
    relay, dial = listening("127.0.0.1", options.relay_port), listening(options.dial_host, options.dial_port)
    asyncio.run(serve(read_secret(options.secret_file), timing, relay, dial))
