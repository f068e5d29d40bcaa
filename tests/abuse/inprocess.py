"""The harness surface without a socket: request bytes into aiohttp's own protocol, response bytes out of it."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from drivetrain.gateway.unexpected import leave_out_client_faults
from tests.gateway.raw import Answer

HANG_S = 60.0
"""A request that is not answered by then hangs; far beyond what the slowest machine needs for one."""


class _Memory(asyncio.Transport):
    """A transport that keeps what is written, with nobody on the other side."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer to limit."""

    def pause_reading(self) -> None:
        """All of the request is there already."""

    def resume_reading(self) -> None:
        """See above."""


class Surface:
    """Requests to an application that is set up and bound to nothing."""

    def __init__(self, app: web.Application) -> None:
        log = logging.getLogger("drivetrain.gateway.http")
        leave_out_client_faults(log)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, logger=log)

    async def open(self) -> Surface:
        await self._runner.setup()
        return self

    async def close(self) -> None:
        await self._runner.cleanup()

    async def send(self, data: bytes) -> bytes:
        """All that is answered to these bytes until the server hangs up.

        Raises:
            TimeoutError: it never does.
        """
        assert self._runner.server is not None
        transport, protocol = _Memory(), self._runner.server()
        protocol.connection_made(transport)
        protocol.data_received(data)
        try:
            await asyncio.wait_for(transport.closed.wait(), HANG_S)
        finally:
            protocol.connection_lost(None)
        return bytes(transport.written)

    async def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """One request on a connection of its own."""
        lines = [f"{method} {path} HTTP/1.1", "Host: gateway", "Connection: close", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return read_answer(await self.send("\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body))


def read_answer(data: bytes) -> Answer:
    """The one complete response in ``data``."""
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        rest = _unchunked(rest)
    else:
        assert len(rest) == int(headers.get("content-length", len(rest))), data[:500]
    if headers.get("content-encoding") == "gzip":
        rest = gzip.decompress(rest)
    return Answer(int(first.split()[1]), headers, rest)


def _unchunked(data: bytes) -> bytes:
    joined = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        if not count:
            assert data == b"\r\n", data
            return joined
        joined, data = joined + data[:count], data[count + 2 :]


def payloads(answer: Answer) -> list[Any]:
    """The JSON values of an answer: one, or one for each event of a stream; every byte of it is accounted for."""
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        return [msgspec.json.decode(answer.body)]
    found = []
    for event in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        for line in event.split("\n"):
            field, _, value = line.partition(": ")
            assert field in ("data", "event", "", ":"), event
            if field == "data" and value != "[DONE]":
                found.append(msgspec.json.decode(value))
    return found
