"""Server-sent events (WHATWG HTML, section 9.2) of a board.

``snapshot``: everything, at the beginning and wherever what a reader has missed cannot be told any more. ``delta``:
what is newer than the event whose id the reader had. ``end``: nothing more will come. In between a comment every ten
seconds, so that both sides know the other is there.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from drivetrain.dashboard.board import Board
from drivetrain.gateway.refusal import Refusal

HEARTBEAT_S = 10.0
STALLED_S = 60.0
"""A reader that takes nothing for so long is cut off; it may come back with the id it has."""
MOST_READERS = 64
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """Serves a board to its readers.

    A reader holds one event at a time: the next is made when the connection took the last, of what is then newest.

    Args:
        board: what they follow.
        heartbeat_s: seconds between comments while nothing happens.
        stalled_s: see :data:`STALLED_S`.
    """

    def __init__(self, board: Board, *, heartbeat_s: float = HEARTBEAT_S, stalled_s: float = STALLED_S) -> None:
        self._board = board
        self._heartbeat_s = heartbeat_s
        self._stalled_s = stalled_s
        self.readers = 0
        """How many there are now."""
        self.arrived = asyncio.Event()
        """Set when one comes."""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """``GET /admin/events``.

        Raises:
            Refusal: there are too many readers.
        """
        if self.readers >= MOST_READERS:
            raise Refusal("overloaded", f"{self.readers} readers follow the dashboard.", retry_after_s=10)
        self.readers += 1
        self.arrived.set()
        try:
            response = web.StreamResponse(headers=_HEADERS)
            await response.prepare(request)
            if request.transport is not None:
                request.transport.set_write_buffer_limits(high=0)  # a write returns when the kernel has it
            try:
                await self._follow(response, self._board.resume(request.headers.get("Last-Event-ID", "")))
            except ConnectionError:
                pass
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()  # what it has not taken is dropped with the connection
            return response
        finally:
            self.readers -= 1

    async def _follow(self, response: web.StreamResponse, seen: int | None) -> None:
        board = self._board
        await self._write(response, b"retry: 2000\n\n")
        while True:
            if seen is None or board.version > seen:
                name = "snapshot" if board.is_snapshot(seen) else "delta"
                event_id, data = board.event(seen)
                seen = board.version
                await self._write(response, f"event: {name}\nid: {event_id}\ndata: ".encode() + data + b"\n\n")
            elif board.closed:
                await self._write(response, b"event: end\ndata: {}\n\n")
                return
            elif not await board.newer(seen, self._heartbeat_s):
                await self._write(response, b": still here\n\n")

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        """Raises TimeoutError: the reader takes nothing."""
        async with asyncio.timeout(self._stalled_s):
            await response.write(data)
