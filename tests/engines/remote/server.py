"""A raw HTTP server that counts what reaches it: connections, requests, bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Answer = Callable[["Server", asyncio.StreamWriter, bytes], Awaitable[None]]


def http(status: int, body: bytes = b"{}", *, kind: str = "application/json", **headers: str) -> bytes:
    """One HTTP answer."""
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


class Server:
    """Answers every request with ``reply`` (bytes, or a coroutine that writes)."""

    def __init__(self, reply: bytes | Answer = http(200)) -> None:  # noqa: B008 - immutable
        self.reply = reply
        self.bodies: list[bytes] = []
        self.heads: list[str] = []
        self.connections = 0
        self.closed_early = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def posts(self) -> int:
        """Requests with a body that arrived whole."""
        return sum(head.startswith("POST") for head in self.heads)

    async def start(self) -> None:
        """Listen, on the port of the first time."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (
                        int(line.split(":")[1])
                        for line in head.split("\r\n")
                        if line.lower().startswith("content-length")
                    ),
                    0,
                )
                body = await reader.readexactly(length)
                self.heads.append(head)
                self.bodies.append(body)
                if isinstance(self.reply, bytes):
                    writer.write(self.reply)
                    await writer.drain()
                else:
                    answer = asyncio.ensure_future(self.reply(self, writer, body))
                    gone = asyncio.ensure_future(reader.read(1))
                    await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
                    if not answer.done():
                        self.closed_early += 1
                        answer.cancel()
                        return
                    if not gone.done():
                        gone.cancel()
                    await answer
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()


@asynccontextmanager
async def running(*servers: Server) -> AsyncIterator[tuple[Server, ...]]:
    """Servers that listen."""
    try:
        for server in servers:
            await server.start()
        yield servers
    finally:
        for server in servers:
            await server.stop()


async def hang(_server: Server, _writer: asyncio.StreamWriter, _body: bytes) -> None:
    """Never answer."""
    await asyncio.sleep(3600)


async def cut(_server: Server, writer: asyncio.StreamWriter, _body: bytes) -> None:
    """Half an answer, then nothing."""
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"a":')
    await writer.drain()
    writer.transport.abort()


async def drop(_server: Server, writer: asyncio.StreamWriter, _body: bytes) -> None:
    """Take the request and close without a word."""
    writer.transport.abort()
