"""The proxy in front of the boxes, and the thread that everything of a double runs in."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Rewritten = tuple[asyncio.StreamReader, asyncio.StreamWriter, str]
Route = Callable[[str, dict[str, str]], Awaitable[Streams | Rewritten | None]]
HEAD_BYTES = 1 << 16


class Thread:
    """An event loop of its own: tests have one loop each, the server outlives them."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, Result], timeout_s: float = 60) -> Result:
        """Run it there and wait for it here."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def stop(self) -> None:
        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.do(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Front:
    """Takes connections, looks at the head of the first request, and joins them with where that leads.

    Args:
        route: request line and headers (lower case names) to the other end, and the request line to send there where it
            is another; None or an OSError answers 502.
        port: 0 for a free one.
    """

    def __init__(self, route: Route, port: int = 0) -> None:
        self._route = route
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = port

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=HEAD_BYTES, reuse_port=bool(self.port)
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> int:
        """Sever every connection, without a goodbye; how many."""
        cut = list(self._open)
        for writer in cut:
            writer.transport.abort()
        return len(cut)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        other: asyncio.StreamWriter | None = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            try:
                found = await self._route(first, headers)
            except OSError:
                found = None
            if found is None:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                return
            inward, other = found[:2]
            if len(found) == 3:
                head = b"\r\n".join([found[2].encode("latin-1"), *head.split(b"\r\n")[1:]])
            other.write(head)
            await asyncio.gather(self._pump(reader, other), self._pump(inward, writer))
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open.discard(writer)
            for each in (writer, other):
                if each is not None:
                    each.close()

    @staticmethod
    async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
            with contextlib.suppress(OSError, RuntimeError):
                sink.write_eof()
        except OSError:
            sink.transport.abort()
            raise
