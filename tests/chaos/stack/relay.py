"""A TCP relay between clients and the gateway that can be cut and can swallow replies, and a witness: it knows which
replies the gateway has sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from pathlib import Path

from tests.chaos.stack.words import marks

_CHUNK = 65536
_LONGEST = 40
"""Bytes of the longest mark: one may be cut in two by a read."""
_RESET = struct.pack("ii", 1, 0)


class Relay:
    """Listens on ``port`` and connects to ``target``, both on loopback. ``testimony`` gets a line of JSON, ``t`` and
    ``mark``, for every mark in what the gateway sent."""

    def __init__(self, port: int, target: int, testimony: Path) -> None:
        self.port = port
        self.target = target
        self._testimony = testimony
        self.down = False
        self.swallowing = False
        self.cuts = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
            self.cut()
            await self._server.wait_closed()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def cut(self) -> None:
        """Reset every connection, on both sides."""
        self.cuts += len(self._open) // 2
        for writer in list(self._open):
            connection = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    def close_all(self) -> None:
        """Close every connection in the ordinary way."""
        for writer in list(self._open):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError):
            if self.down:
                writer.transport.abort()
                return
            try:
                inner, outer = await asyncio.open_connection("127.0.0.1", self.target)
            except OSError:
                writer.transport.abort()
                return
            pair = {writer, outer}
            self._open |= pair
            try:
                pumps = [
                    asyncio.ensure_future(self._pump(reader, outer, replies=False)),
                    asyncio.ensure_future(self._pump(inner, writer, replies=True)),
                ]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for end in pair:
                    end.close()
                await asyncio.wait(pumps)
            finally:
                self._open -= pair

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool) -> None:
        before = b""
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if replies:
                    self._testify(before, data)
                    before = data[-_LONGEST:]
                    if self.swallowing:
                        continue
                writer.write(data)
                await writer.drain()

    def _testify(self, before: bytes, data: bytes) -> None:
        found = marks((before + data).decode("utf-8", "replace"))
        if found:
            with self._testimony.open("a") as file:
                file.writelines(json.dumps({"t": time.monotonic(), "mark": mark}) + "\n" for mark in found)
