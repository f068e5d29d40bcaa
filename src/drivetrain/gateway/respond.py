"""Send one reply: JSON, or synthetic SSE with keep-alives while the engine works."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from aiohttp import web

from drivetrain.gateway.core import Ticket
from drivetrain.gateway.delivery import Served
from drivetrain.gateway.dialects.base import Dialect
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call


def error_response(refusal: Refusal, dialect: Dialect) -> web.Response:
    """A refusal in the caller's dialect."""
    wait = 1.0 if refusal.retry_after_s is None and refusal.status == 503 else refusal.retry_after_s
    headers = {} if wait is None else {"Retry-After": str(max(1, math.ceil(wait)))}
    if not refusal.retryable:
        headers["x-should-retry"] = "false"  # the OpenAI and Anthropic SDKs repeat a 409 otherwise
    return web.Response(
        body=dialect.error(refusal), status=refusal.status, content_type="application/json", headers=headers
    )


async def respond_json(request: web.Request, dialect: Dialect, call: Call, served: Served) -> web.StreamResponse:
    """One JSON body; returns after its last byte was handed to the connection."""
    response = web.Response(body=dialect.encode(served.reply, call), content_type="application/json")
    await response.prepare(request)
    await response.write_eof()
    return response


async def respond_stream(
    request: web.Request, dialect: Dialect, call: Call, ticket: Ticket, patience: Patience
) -> tuple[web.StreamResponse, Served | None]:
    """Events of a reply; the terminal event is last. The second value is None when an error event was sent.

    The stream is left open for the caller to end: a harness that hangs up after the terminal event has everything.

    Raises:
        Refusal: the call failed inside the grace, so that the status can still say so.
    """
    task = asyncio.ensure_future(ticket.served())
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    try:
        done, _ = await asyncio.wait({task}, timeout=patience.grace_s)
        opened = not done
        if opened:
            await response.prepare(request)
            await _write(response, dialect.opening(ticket.reply_id, call))
            while not done:
                await response.write(dialect.keep_alive(patience.form, ticket.reply_id, call))
                done, _ = await asyncio.wait({task}, timeout=patience.every_s)
            try:
                served = task.result()
            except Refusal as refusal:
                return await _write(response, dialect.error_events(refusal, call)), None
        else:
            served = task.result()
            await response.prepare(request)
        return await _write(response, dialect.events(served.reply, call, opened=opened)), served
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _write(response: web.StreamResponse, events: Sequence[bytes]) -> web.StreamResponse:
    for event in events:
        await response.write(event)
    return response
