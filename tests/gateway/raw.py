"""One HTTP/1.1 connection in the test's own hands: what is sent, what is read, how it ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec


class Answer(msgspec.Struct):
    """A response; chunked bodies are joined."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Wire:
    """A connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Wire:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, path: str, body: bytes, headers: Mapping[str, str], *, cut: int = 0) -> None:
        """Send a request; without its last ``cut`` bytes."""
        lines = [f"POST {path} HTTP/1.1", "Host: gateway", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        data = ("\r\n".join(lines) + "\r\n\r\n").encode() + body
        self._writer.write(data[: len(data) - cut])
        await self._writer.drain()

    async def answer(self) -> Answer:
        """Read one response to its end."""
        status, headers = await self.head()
        if headers.get("transfer-encoding") != "chunked":
            return Answer(status, headers, await self._reader.readexactly(int(headers["content-length"])))
        body = b""
        while size := int(await self._reader.readline(), 16):
            body += await self._reader.readexactly(size)
            await self._reader.readline()
        await self._reader.readline()
        return Answer(status, headers, body)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read status and headers."""
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        return int(lines[0].split()[1]), headers

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send and read."""
        await self.send(path, body, headers)
        return await self.answer()

    async def until(self, mark: bytes) -> bytes:
        """Read up to a mark."""
        return await self._reader.readuntil(mark)

    async def close(self) -> None:
        """Hang up with a FIN, as a client that read all does, and as a relay does for one that died."""
        self._writer.close()
        await self._writer.wait_closed()

    def reset(self) -> None:
        """Hang up with a RST, as the kernel does for a client that died with bytes unread."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


async def eventually(holds: Callable[[], Any]) -> None:
    """Wait until a condition holds, at most 10 s."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 (any condition, bounded)
            await asyncio.sleep(0.005)
