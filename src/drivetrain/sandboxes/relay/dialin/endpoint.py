"""One local connection (a harness's, or one to the gateway) joined to one stream of the session.

Runs inside the sandbox: standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Tuple  # noqa: UP035

from . import wire

if TYPE_CHECKING:
    from .carrier import Carrier

READ_AHEAD = 32 << 10
"""Bytes a local reader holds before it stops reading (asyncio holds at most twice that)."""

Pair = Tuple[asyncio.StreamReader, asyncio.StreamWriter]  # noqa: UP006 (Python 3.9 inside)
Connect = Callable[[], Awaitable[Pair]]


class Endpoint:
    """Copies bytes both ways until both ways have ended, or one side breaks."""

    def __init__(self, carrier: Carrier, stream: int, connect: Connect) -> None:
        self._carrier = carrier
        self._stream = stream
        self._connect = connect
        self._incoming: deque[bytes] = deque()
        self._ended = False
        self._arrived = asyncio.Event()
        self._credit = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(lambda _: carrier.forget(stream, self))

    def received(self, data: bytes) -> None:
        """Bytes of the stream; the session's window bounds how many may wait here."""
        self._incoming.append(data)
        self._arrived.set()

    def ended(self) -> None:
        """No more bytes come."""
        self._ended = True
        self._arrived.set()

    def more_credit(self) -> None:
        """The peer takes more."""
        self._credit.set()

    def abort(self) -> None:
        """The stream is over: break the local connection."""
        self._stream = 0  # a later session may use the number again, and the tasks may take one more step
        self._task.cancel()

    def when_over(self, then: Callable[[], None]) -> None:
        """Call ``then`` at the end, however it comes."""
        self._task.add_done_callback(lambda _: then())

    async def wait(self) -> None:
        """Until the local connection is closed."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            reader, writer = await self._connect()
        except OSError:
            self._carrier.reset(self._stream, wire.RESET_REFUSED)
            return
        both = [asyncio.ensure_future(self._out(reader)), asyncio.ensure_future(self._in(writer))]
        try:
            await asyncio.gather(*both)
            writer.close()
        except (OSError, RuntimeError):  # uvloop raises RuntimeError for a transport that is closed
            self._carrier.reset(self._stream, wire.RESET_ABORTED)
            _break(writer)
        except asyncio.CancelledError:
            _break(writer)
            raise
        finally:
            for task in both:
                task.cancel()

    async def _out(self, reader: asyncio.StreamReader) -> None:
        """Local connection to stream."""
        session = self._carrier.session
        while True:
            self._credit.clear()
            room = session.credit(self._stream)
            if room <= 0:
                await self._credit.wait()
                continue
            data = await reader.read(min(room, wire.CHUNK_BYTES))
            if not data:
                break
            await self._carrier.send(self._stream, data)
        self._carrier.finish(self._stream)

    async def _in(self, writer: asyncio.StreamWriter) -> None:
        """Stream to local connection."""
        while True:
            self._arrived.clear()
            while self._incoming:
                data = self._incoming.popleft()
                writer.write(data)
                await writer.drain()
                self._carrier.consumed(self._stream, len(data))
            if self._ended:
                break
            if not self._arrived.is_set():
                await self._arrived.wait()
        with contextlib.suppress(OSError, RuntimeError):  # both ways may be closed already
            writer.write_eof()


def _break(writer: asyncio.StreamWriter) -> None:
    """Close so that the other end sees an error (TCP: a reset), not the end of a complete answer."""
    opened = writer.get_extra_info("socket")
    if opened is not None and opened.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
