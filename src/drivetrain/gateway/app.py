"""Routes of the harness surface: an allow-list. Everything else is 404 in the dialect, after the key was checked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from multidict import CIMultiDict

from drivetrain.gateway.connections import Connections
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.delivery import Served, read_attempt
from drivetrain.gateway.dialects.base import Action, Dialect, ServedModel, WireRequest
from drivetrain.gateway.dialects.choose import DIALECTS, choose
from drivetrain.gateway.keys import read_key
from drivetrain.gateway.mcp import PATH as MCP
from drivetrain.gateway.mcp import answer
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.provenance import read_user_agent
from drivetrain.gateway.redact import redact_body
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.respond import REFUSED, SESSION, defect_of, error_response, respond_json, respond_stream
from drivetrain.gateway.sessions import Session
from drivetrain.messages import Call
from drivetrain.trace.origin import read_origin

CONNECTIONS = web.AppKey("connections", Connections)
"""The open connections; whoever runs the application lets them watch its server."""
BODY_S = 120.0
"""Seconds in which a body has arrived to its last byte, else 408: one that drips holds a connection and memory."""
_BODY_S = web.AppKey("body_s", float)


def harness_app(
    gateway: Gateway,
    *,
    patience: Patience | None = None,
    connections: Connections | None = None,
    body_s: float = BODY_S,
) -> web.Application:
    """The application a harness reaches: model calls, token counts, model list and the tools of a session that has
    some, every route behind a key."""
    app = web.Application(middlewares=[_refusals, _authenticator(gateway)])
    app[CONNECTIONS] = Connections() if connections is None else connections
    app[_BODY_S] = body_s
    app[REFUSED] = gateway.refused
    shared: dict[tuple[str, str, Action], list[Dialect]] = {}
    for dialect in DIALECTS:
        for route in dialect.routes:
            shared.setdefault((route.method, route.path, route.action), []).append(dialect)
    for (method, path, action), dialects in shared.items():
        handler = _handler(gateway, dialects, action, patience or Patience())
        app.router.add_route(method, path, handler, expect_handler=_expectation(gateway))
    app.router.add_post(MCP, _tools, expect_handler=_expectation(gateway))
    app.router.add_route("GET", MCP, _no_stream)
    return app


async def _tools(request: web.Request) -> web.StreamResponse:
    """One MCP message of the harness to the tools of its session."""
    session = request[SESSION]
    if session.tool_host is None:
        raise Refusal("not_found", "this session has no tools of its own.", fix="Do not configure an MCP server.")
    reply = await answer(session.tool_host, await _body(request))
    return web.Response(status=202) if reply is None else _json(reply)


async def _no_stream(_request: web.Request) -> web.StreamResponse:
    """A client that asks for a stream of server messages takes 405 for "there is none"."""
    return web.Response(status=405, headers={"Allow": "POST"})


def _handler(gateway: Gateway, dialects: list[Dialect], action: Action, patience: Patience) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        dialect = choose(request.path, request.headers, dialects)
        session = request[SESSION]
        if action in ("models", "model"):
            return _json(dialect.encode_models(_served_model(gateway, session), action))
        call = await _decode(request, dialect, session)
        if action == "count":
            return _json(dialect.encode_count(await gateway.count(session, call)))
        return await _generate(gateway, request, dialect, session, call, session.policy.patience or patience)

    return handle


async def _generate(
    gateway: Gateway, request: web.Request, dialect: Dialect, session: Session, call: Call, patience: Patience
) -> web.StreamResponse:
    attempt = read_attempt(_readable(request.headers), request.app[CONNECTIONS].of(request))
    ticket = gateway.begin(session, call, await request.read(), attempt)
    served: Served | None
    try:
        if call.stream:
            response, served = await respond_stream(request, dialect, call, ticket, patience)
        else:
            served = await ticket.served()
            response = await respond_json(request, dialect, call, served)
    finally:
        ticket.leave()
    # Writing to a connection that is gone raises, so that coming here means the last byte was handed over.
    if served is not None:
        await gateway.delivered(session, served, attempt)
    return response


async def _decode(request: web.Request, dialect: Dialect, session: Session) -> Call:
    key, headers = read_key(request.headers, request.query), _readable(request.headers)
    wire = WireRequest(
        body=redact_body(await _body(request), key),
        path=request.path,
        parts=dict(request.match_info),
        query=request.query,
        headers=headers,
    )
    call = dialect.decode(wire, session)
    origin = read_origin(headers, secret=key)
    return msgspec.structs.replace(call, origin=origin, user_agent=read_user_agent(headers, secret=key))


async def _body(request: web.Request) -> bytes:
    """All of the body, in UTF-8 as JSON is (RFC 8259 section 8.1); the decoders look at the fields they know only.

    Raises:
        Refusal: it is not, it comes too slowly, or its encoding is broken.
    """
    limit = request.app[_BODY_S]
    try:
        async with asyncio.timeout(limit):
            body = await request.read()
        body.decode()
    except TimeoutError:
        what = f"the request body did not arrive within {limit:g} s."
        raise Refusal("request_timeout", what, fix="Send it again.") from None
    except web.RequestPayloadError as error:
        raise Refusal("invalid_request", f"the request body cannot be read: {error}.") from error
    except UnicodeDecodeError as error:
        raise Refusal("invalid_request", f"the request body is not valid JSON: {error}.") from None
    return body


def _readable(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Headers whose values can be recorded: bytes that are not UTF-8 arrive as half surrogates."""
    if all(value.isascii() for value in headers.values()):
        return headers
    return CIMultiDict((name, value.encode(errors="replace").decode()) for name, value in headers.items())


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure leaves in the dialect; an unexpected one is logged and says nothing about the inside."""
    try:
        with request.app[CONNECTIONS].serving(request):
            return await handler(request)
    except Refusal as error:
        refusal = error
    except web.HTTPRequestEntityTooLarge:
        refusal = _too_large(request[SESSION].policy.max_body_bytes)
    except web.HTTPException as error:
        refusal = Refusal("not_found", f"{request.method} {request.path}: {error.reason}.")
    except ConnectionError:
        return _nobody(request)
    except Exception as error:
        refusal = defect_of(request, error)
    request.app[REFUSED][refusal.code] += 1
    return error_response(refusal, choose(request.path, request.headers))


def _nobody(request: web.Request) -> web.Response:
    """The client is gone: nothing is written, and raising would put a traceback into the log."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=499)


def _authenticator(gateway: Gateway) -> Middleware:
    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        request.app[CONNECTIONS].of(request).used()
        session = gateway.sessions.authenticate(read_key(request.headers, request.query))
        session.rate.take()
        limit = session.policy.max_body_bytes
        if (request.content_length or 0) > limit:
            raise _too_large(limit)
        request[SESSION] = session
        return await handler(request.clone(client_max_size=limit))

    return authenticate


def _expectation(gateway: Gateway) -> Callable[[web.Request], Awaitable[web.StreamResponse | None]]:
    """``Expect: 100-continue`` is answered before middlewares run: a body is asked for only when the key is good."""

    async def answer(request: web.Request) -> web.StreamResponse | None:
        try:
            session = gateway.sessions.authenticate(read_key(request.headers, request.query))
            if (request.content_length or 0) > session.policy.max_body_bytes:
                raise _too_large(session.policy.max_body_bytes)
        except Refusal as refusal:
            gateway.refused[refusal.code] += 1
            return error_response(refusal, choose(request.path, request.headers))
        if request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return None

    return answer


def _too_large(limit: int) -> Refusal:
    return Refusal("request_too_large", f"the request body exceeds {limit} bytes.", fix="Send less.")


def _served_model(gateway: Gateway, session: Session) -> ServedModel:
    return ServedModel(
        session.policy.model,
        gateway.engine.context_length,
        session.policy.max_tokens_per_turn,
        int(session.created_at),
    )


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
