"""Send one reply: JSON, or synthetic SSE with keep-alives while the engine works."""

from __future__ import annotations

import asyncio
import math
import select
from collections import Counter
from collections.abc import Sequence

from aiohttp import web

from drivetrain.gateway.core import Ticket
from drivetrain.gateway.delivery import Served
from drivetrain.gateway.dialects.base import Dialect
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.sessions import Session
from drivetrain.gateway.unexpected import report
from drivetrain.messages import Call

SESSION = web.RequestKey("session", Session)
"""Whose request it is, once its key was checked."""
REFUSED = web.AppKey("refused", Counter[str])
"""Requests that an application refused, by code."""


def defect_of(request: web.Request, error: Exception) -> Refusal:
    """Report an unexpected exception and count it in its session."""
    if SESSION in request:
        request[SESSION].count("internal_error")
    return report(error, f"{request.method} {request.path}")


def error_response(refusal: Refusal, dialect: Dialect) -> web.Response:
    """A refusal in the caller's dialect."""
    wait = 1.0 if refusal.retry_after_s is None and refusal.status in (429, 503) else refusal.retry_after_s
    headers = {} if wait is None else {"Retry-After": str(max(1, math.ceil(wait)))}
    if not refusal.retryable:
        headers["x-should-retry"] = "false"  # the OpenAI and Anthropic SDKs repeat a 409 otherwise
    return web.Response(
        body=dialect.error(refusal), status=refusal.status, content_type="application/json", headers=headers
    )


async def respond_json(request: web.Request, dialect: Dialect, call: Call, served: Served) -> web.StreamResponse:
    """One JSON body; returns after its last byte was handed to the kernel.

    Raises:
        ConnectionError: the client is gone.
    """
    response = web.Response(body=dialect.encode(served.reply, call), content_type="application/json")
    _ready_to_write(request)
    await response.prepare(request)
    await response.write_eof()
    _written(request)
    return response


async def respond_stream(
    request: web.Request, dialect: Dialect, call: Call, ticket: Ticket, patience: Patience
) -> tuple[web.StreamResponse, Served | None]:
    """Events of a reply; the terminal event is last. The second value is None when an error event was sent.

    All events and the end of the body go out in one write: a client that read the terminal event and hangs up has
    nothing unread, so that its connection is closed and not reset.

    Raises:
        Refusal: the call failed inside the grace, so that the status can still say so.
        ConnectionError: the client is gone.
    """
    task = asyncio.ensure_future(ticket.served())
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    try:
        done, _ = await asyncio.wait({task}, timeout=patience.grace_s)
        if done:
            served = task.result()
            events = dialect.events(served.reply, call, opened=False)
            await response.prepare(request)
            return await _finish(request, response, events), served
        await response.prepare(request)
        await response.write(b"".join(dialect.opening(ticket.reply_id, call)))
        while not done:
            await response.write(dialect.keep_alive(patience.form, ticket.reply_id, call))
            done, _ = await asyncio.wait({task}, timeout=patience.every_s)
        try:
            served = task.result()
            events = dialect.events(served.reply, call, opened=True)
        except Refusal as refusal:
            request.app[REFUSED][refusal.code] += 1
            return await _finish(request, response, dialect.error_events(refusal, ticket.reply_id, call)), None
        except Exception as error:
            defect = defect_of(request, error)
            request.app[REFUSED][defect.code] += 1
            return await _finish(request, response, dialect.error_events(defect, ticket.reply_id, call)), None
        return await _finish(request, response, events), served
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _finish(request: web.Request, response: web.StreamResponse, events: Sequence[bytes]) -> web.StreamResponse:
    _ready_to_write(request)
    await response.write_eof(b"".join(events))
    _written(request)
    return response


def _ready_to_write(request: web.Request) -> None:
    """From here on a write returns when the kernel has all of it, not when it is queued in this process.

    Asked before the write and not after it: a client of one call reads the whole reply and closes at once.
    """
    transport = request.transport
    if transport is None or transport.is_closing() or _hung_up(transport):
        raise ConnectionResetError("the client is gone")
    transport.set_write_buffer_limits(high=0)


def _written(request: web.Request) -> None:
    """asyncio reports a failed write by closing the transport, not to the writer."""
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the client is gone")


def _hung_up(transport: asyncio.Transport) -> bool:
    """Whether the client has closed, though asyncio has not read that far yet; what it will read is an ordinary end, no
    reset."""
    connection = transport.get_extra_info("socket")
    if connection is None or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
