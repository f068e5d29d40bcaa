"""The server's half of RFC 6455, as much as a dialled link needs: the upgrade, binary messages, ping, close.

Runs inside the sandbox: standard library only.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import struct
from typing import NamedTuple

from . import wire
from .wire import WireError

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
HEAD_BYTES = 16 << 10
"""Most bytes of a request's head."""
CLOSE_PATIENCE_S = 1.0
UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
UPGRADE_REQUIRED = (
    b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Part(NamedTuple):
    """One frame of the wire, unmasked."""

    final: bool
    opcode: int
    payload: bytes


def answer(head: bytes, secret: bytes) -> tuple[bool, bytes]:
    """Whether a request head is an upgrade with the right secret, and the answer to it.

    Whoever does not know the secret always gets the same bytes.
    """
    headers: dict[bytes, bytes] = {}
    request, *lines = head.split(b"\r\n")
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    given = headers.get(wire.SECRET_HEADER.lower().encode(), b"")
    if not hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(secret).digest()):
        return False, UNAUTHORIZED
    key = headers.get(b"sec-websocket-key", b"")
    upgrade = headers.get(b"upgrade", b"").lower() == b"websocket" and headers.get(b"sec-websocket-version") == b"13"
    if not (request.startswith(b"GET ") and upgrade and key):
        return False, UPGRADE_REQUIRED
    accept = base64.b64encode(hashlib.sha1(key + _GUID).digest())
    return True, (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


def frame(opcode: int, payload: bytes) -> bytes:
    """A whole, unmasked (server to client) frame."""
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", 0x80 | opcode, size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", 0x80 | opcode, 126, size)
    else:
        head = struct.pack(">BBQ", 0x80 | opcode, 127, size)
    return head + payload


def unmask(payload: bytes, key: bytes) -> bytes:
    """Exclusive-or with the repeated four-byte key, as one big integer."""
    size = len(payload)
    pad = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(pad, "little")).to_bytes(size, "little")


async def read_part(reader: asyncio.StreamReader) -> Part:
    """The next frame a client sent.

    Raises:
        WireError: it breaks RFC 6455 or is larger than a message may be.
        asyncio.IncompleteReadError: the connection ended.
    """
    first, second = await reader.readexactly(2)
    final, opcode, size = bool(first & 0x80), first & 0x0F, second & 0x7F
    if first & 0x70 or not second & 0x80:
        raise WireError("a WebSocket frame that is not masked, or with reserved bits")
    if opcode >= CLOSE and (size > 125 or not final):
        raise WireError("a WebSocket control frame that is long or in parts")
    if size == 126:
        (size,) = struct.unpack(">H", await reader.readexactly(2))
    elif size == 127:
        (size,) = struct.unpack(">Q", await reader.readexactly(8))
    if size > wire.MAX_MESSAGE:
        raise WireError(f"a WebSocket frame of {size} bytes", wire.CLOSE_TOO_BIG)
    key = await reader.readexactly(4)
    return Part(final, opcode, unmask(await reader.readexactly(size), key))


class ServerLink:
    """A ``carrier.Link`` over an upgraded connection. ``close_code`` is the client's, 0 until it came."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._closing = False
        self.close_code = 0

    async def send(self, message: bytes) -> None:
        """Write one binary message."""
        self._writer.write(frame(BINARY, message))
        await self._writer.drain()

    async def receive(self) -> bytes | None:
        """The next message, put together from its parts; None at the end."""
        message, begun = b"", False
        while True:
            try:
                part = await read_part(self._reader)
            except (asyncio.IncompleteReadError, OSError):
                return None
            if part.opcode == CLOSE:
                self.close_code = struct.unpack(">H", part.payload[:2])[0] if len(part.payload) >= 2 else 1005
                await self.close(1000)
                return None
            if part.opcode == PING:
                self._writer.write(frame(PONG, part.payload))
                await self._writer.drain()
            elif part.opcode in (BINARY, CONTINUATION):
                if begun != (part.opcode == CONTINUATION):
                    raise WireError("WebSocket message parts out of order")
                begun = True
                message += part.payload
                if len(message) > wire.MAX_MESSAGE:
                    raise WireError(f"a message of more than {len(message)} bytes", wire.CLOSE_TOO_BIG)
                if part.final:
                    return message
            elif part.opcode != PONG:
                raise WireError(f"WebSocket opcode {part.opcode}")

    async def close(self, code: int) -> None:
        """Say goodbye and close."""
        if self._closing:
            return
        self._closing = True
        with contextlib.suppress(Exception):
            self._writer.write(frame(CLOSE, struct.pack(">H", code)))
            await asyncio.wait_for(self._writer.drain(), CLOSE_PATIENCE_S)
        with contextlib.suppress(Exception):
            self._writer.close()
            await asyncio.wait_for(self._writer.wait_closed(), CLOSE_PATIENCE_S)
        self._writer.transport.abort()
