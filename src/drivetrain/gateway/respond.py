"""Send one reply: JSON, or synthetic SSE with keep-alives while the engine works."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import msgspec
from aiohttp import web

from drivetrain.gateway.delivery import Served
from drivetrain.gateway.dialects.base import Dialect
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """When a stream is opened before its reply is there; seconds.

    Inside ``grace_s`` a failure keeps its HTTP status; afterwards the stream is open, a keep-alive goes out every
    ``every_s``, and a failure becomes an error event. Clients wait 60 s (Gemini CLI) to 600 s (harnesses.md 1.5).
    """

    grace_s: float = 15.0
    every_s: float = 10.0


def error_response(refusal: Refusal, dialect: Dialect) -> web.Response:
    """A refusal in the caller's dialect."""
    headers = {"Retry-After": "1"} if refusal.status == 503 else {}
    return web.Response(
        body=dialect.error(refusal), status=refusal.status, content_type="application/json", headers=headers
    )


async def respond_json(request: web.Request, dialect: Dialect, served: Served) -> web.StreamResponse:
    """One JSON body; returns after its last byte was handed to the connection."""
    response = web.Response(body=dialect.encode(served.reply), content_type="application/json")
    await response.prepare(request)
    await response.write_eof()
    return response


async def respond_stream(
    request: web.Request, dialect: Dialect, call: Call, serving: Awaitable[Served], patience: Patience
) -> tuple[web.StreamResponse, Served | None]:
    """Events of a reply; the terminal event is last. The second value is None when an error event was sent.

    The stream is left open for the caller to end: a harness that hangs up after the terminal event has everything.

    Raises:
        Refusal: the call failed inside the grace, so that the status can still say so.
    """
    task = asyncio.ensure_future(serving)
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    try:
        done, _ = await asyncio.wait({task}, timeout=patience.grace_s)
        if not done:
            await response.prepare(request)
            while not done:
                await response.write(dialect.keep_alive())
                done, _ = await asyncio.wait({task}, timeout=patience.every_s)
            try:
                served = task.result()
            except Refusal as refusal:
                return await _write(response, dialect.error_events(refusal)), None
        else:
            served = task.result()
            await response.prepare(request)
        return await _write(response, dialect.events(served.reply, call)), served
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _write(response: web.StreamResponse, events: Sequence[bytes]) -> web.StreamResponse:
    for event in events:
        await response.write(event)
    return response
