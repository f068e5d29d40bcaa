"""Routes of the harness surface. Everything else is 404 in the dialect, after the key was checked."""

from __future__ import annotations

import logging
import time

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from drivetrain.gateway.core import Gateway
from drivetrain.gateway.dialects.base import Dialect
from drivetrain.gateway.dialects.openai_chat import OpenAIChat
from drivetrain.gateway.keys import read_key
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.respond import Patience, error_response, respond_json, respond_stream
from drivetrain.gateway.sessions import Session
from drivetrain.trace.origin import read_origin

MAX_BODY_BYTES = 64 << 20
_SESSION = web.RequestKey("session", Session)
_log = logging.getLogger("drivetrain.gateway")
_CHAT = OpenAIChat()


def harness_app(gateway: Gateway, *, patience: Patience | None = None) -> web.Application:
    """The application a harness reaches: model calls and model list, nothing else, every route behind a key."""
    app = web.Application(middlewares=[_refusals, _authenticator(gateway)], client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/v1/chat/completions", _model_call(gateway, _CHAT, patience or Patience()))
    app.router.add_get("/v1/models", _models(gateway))
    return app


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure leaves in the dialect; an unexpected one is logged and says nothing about the inside."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return error_response(refusal, _CHAT)
    except web.HTTPRequestEntityTooLarge:
        too_large = Refusal("request_too_large", f"the request body exceeds {MAX_BODY_BYTES} bytes.")
        return error_response(too_large, _CHAT)
    except web.HTTPException as error:
        return error_response(Refusal("not_found", f"{request.method} {request.path}: {error.reason}."), _CHAT)
    except Exception:
        _log.exception("unexpected failure in %s %s", request.method, request.path)
        return error_response(Refusal("engine_unavailable", "the gateway failed unexpectedly; see its log."), _CHAT)


def _authenticator(gateway: Gateway) -> Middleware:
    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[_SESSION] = gateway.sessions.authenticate(read_key(request.headers))
        return await handler(request)

    return authenticate


def _model_call(gateway: Gateway, dialect: Dialect, patience: Patience) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        session = request[_SESSION]
        body = await request.read()
        call = dialect.decode(body, session.memo)
        origin = read_origin(request.headers, secret=read_key(request.headers))
        if origin:
            call = msgspec.structs.replace(call, origin=origin)
        serving = gateway.serve(session, call, body)
        if call.stream:
            response, served = await respond_stream(request, dialect, call, serving, patience)
        else:
            served = await serving
            response = await respond_json(request, dialect, served)
        # Writing to a connection that is gone raises, so that coming here means the last byte was handed over.
        if served is not None:
            await gateway.delivered(session, served)
        return response

    return handle


def _models(gateway: Gateway) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        model = {
            "id": request[_SESSION].policy.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "drivetrain",
            "max_model_len": gateway.engine.context_length,
        }
        return web.Response(
            body=msgspec.json.encode({"object": "list", "data": [model]}), content_type="application/json"
        )

    return handle
