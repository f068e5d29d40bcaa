"""The dashboard as a part of an admin surface."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web

from drivetrain.dashboard.board import Board
from drivetrain.dashboard.events import EventStream
from drivetrain.dashboard.model import Summary
from drivetrain.dashboard.page import FILES, asset, security_headers
from drivetrain.dashboard.source import Source
from drivetrain.dashboard.summing import add_rollouts
from drivetrain.dashboard.traces import Traces
from drivetrain.errors import ConfigError
from drivetrain.gateway.admin import AdminPart
from drivetrain.gateway.openapi.operation import Events, operation
from drivetrain.gateway.refusal import Refusal

TICK_S = 1.0
_UNWATCHED = 5
"""How many times rarer updates are while nobody looks; whoever comes gets one at once."""
_PUBLIC = frozenset({"/dashboard", "/dashboard/{file}", "/dashboard/trace/{rollout}"})
OPERATIONS = (
    operation("GET /dashboard", "The page.", str, media="text/html", public=True),
    operation("GET /dashboard/trace/{rollout}", "The page that loads a trace.", str, media="text/html", public=True),
    operation("GET /dashboard/{file}", "What the page loads.", str, media="*/*", public=True, errors=(404,)),
    operation(
        "GET /admin/events",
        "The dashboard's board, as long as the reader stays.",
        Events(dict[str, Any], "`snapshot`, `delta` or `end`."),
        media="text/event-stream",
        errors=(503,),
    ),
    operation("GET /admin/traces/{rollout}", "A rollout's trace as a page.", str, media="text/html", errors=(404, 503)),
)
_log = logging.getLogger(__name__)


class Dashboard:
    """A board, what keeps it up to date, and the routes that show it.

    ``GET /dashboard`` and its files hold nothing that was recorded and need no key; the page sends the key it was given
    as a header. With a key: ``GET /admin/events`` (:mod:`drivetrain.dashboard.events`) and
    ``GET /admin/traces/ROLLOUT`` (the viewer's page).

    Args:
        board: what is shown.
        source: where its rollouts come from.
        traces: makes the trace pages.
        tick_s: seconds between updates.
    """

    def __init__(self, board: Board, source: Source, traces: Traces, *, tick_s: float = TICK_S) -> None:
        self.board = board
        self._source = source
        self._traces = traces
        self._tick_s = tick_s
        self._rendering = asyncio.Semaphore(1)
        self._updating = asyncio.Lock()
        self.stream = EventStream(board)

    def part(self) -> AdminPart:
        """Its routes; the board is kept up to date while they are served."""
        routes = (
            web.get("/dashboard", self._page),
            web.get("/dashboard/trace/{rollout}", self._trace_shell),
            web.get("/dashboard/{file}", self._file),
            web.get("/admin/events", self.stream.serve),
            web.get("/admin/traces/{rollout}", self._trace),
        )
        return AdminPart(
            routes=routes, public=_PUBLIC, context=self._context, on_shutdown=self._end, operations=OPERATIONS
        )

    async def update(self) -> None:
        """Bring the board up to date and tell its readers."""
        async with self._updating:
            summary = Summary()
            await self._source.update(self.board, summary)
            add_rollouts(summary, list(self.board.rollouts()))
            self.board.summarize(summary)
            self.board.commit()

    async def _context(self, _: web.Application) -> AsyncIterator[None]:
        ticking = asyncio.get_running_loop().create_task(self._tick())
        yield
        ticking.cancel()
        await asyncio.wait({ticking})

    async def _end(self, _: web.Application) -> None:
        """Before connections are closed: the last state, and that it is the last."""
        await self._update_or_log()
        self._source.close()
        self.board.close()

    async def _tick(self) -> None:
        while True:
            await self._update_or_log()
            await self._pause()

    async def _update_or_log(self) -> None:
        try:
            await self.update()
        except Exception:  # what observes a run must not be what breaks it
            _log.exception("the dashboard could not be brought up to date")

    async def _pause(self) -> None:
        self.stream.arrived.clear()
        if self.stream.readers:
            await asyncio.sleep(self._tick_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._tick_s * _UNWATCHED):
                await self.stream.arrived.wait()

    async def _page(self, request: web.Request) -> web.Response:
        return _answer(request, "index.html")

    async def _trace_shell(self, request: web.Request) -> web.Response:
        return _answer(request, "index.html", trace=True)

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["file"]
        if name not in FILES:
            raise web.HTTPNotFound
        return _answer(request, name)

    async def _trace(self, request: web.Request) -> web.Response:
        rollout = request.match_info["rollout"]
        async with self._rendering:
            try:
                page = await asyncio.to_thread(self._traces.page, rollout)
            except (ConfigError, OSError, msgspec.MsgspecError) as error:
                raise Refusal("not_found", f"the trace of {rollout!r} cannot be shown: {error}") from error
        headers = {**security_headers(trace=True), "Content-Type": "text/html; charset=utf-8"}
        return web.Response(body=page, headers={**headers, "Cache-Control": "no-store"})


def _answer(request: web.Request, name: str, *, trace: bool = False) -> web.Response:
    data, media, tag = asset(name)
    headers = {**security_headers(trace=trace), "ETag": tag}
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=data, headers={**headers, "Content-Type": f"{media}; charset=utf-8"})
