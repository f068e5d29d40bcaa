"""The admin surface: its own key, its own address; never reachable from a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, get_args

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from drivetrain.errors import ConfigError
from drivetrain.gateway.admin_fence import fence_routes
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.dialects.openai_chat import OpenAIChat
from drivetrain.gateway.keys import AdminKeys, AdminScope, read_key
from drivetrain.gateway.openapi.operation import Operation
from drivetrain.gateway.policy import read_policy
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.respond import error_response
from drivetrain.gateway.sessions import summary_of
from drivetrain.gateway.unexpected import report
from drivetrain.gateway.upstream import journal_refusal
from drivetrain.journal.errors import JournalError
from drivetrain.trace.sample import TRAINED_LABELS, rows_of
from drivetrain.trace.turn import Label


class OpenRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /admin/sessions``; every field may be left out."""

    policy: dict[str, Any] = {}
    labels: dict[str, str] = {}
    session_id: str | None = None


class AdminPart(msgspec.Struct, frozen=True, kw_only=True):
    """Routes that share the admin surface with the gateway's own.

    ``routes`` need a key of the surface (trainer scope). ``public`` are paths among them that are served to whoever
    reaches the port: nothing that is secret or recorded may be in what they answer. ``context`` runs while the surface
    is served (aiohttp's ``cleanup_ctx``); ``on_shutdown`` is called before its connections are closed.
    ``operations`` describe its routes in the OpenAPI document, one each.
    """

    routes: tuple[web.RouteDef, ...]
    public: frozenset[str] = frozenset()
    context: Callable[[web.Application], AsyncIterator[None]] | None = None
    on_shutdown: Callable[[web.Application], Awaitable[None]] | None = None
    operations: tuple[Operation, ...] = ()


def guarded_app(keys: AdminKeys, parts: Iterable[AdminPart]) -> web.Application:
    """An application of parts behind the keys of the admin surface; errors have the shape of OpenAI's."""
    parts = tuple(parts)
    errors = OpenAIChat()
    public = frozenset().union(*(part.public for part in parts))

    def is_public(request: web.Request) -> bool:
        resource = request.match_info.route.resource
        return resource is not None and resource.canonical in public

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not is_public(request):
                _require(keys, request, "trainer")
            return await handler(request)
        except Refusal as refusal:
            return error_response(refusal, errors)
        except web.HTTPRequestEntityTooLarge:
            too_large = Refusal("request_too_large", f"the request body exceeds {request.client_max_size} bytes.")
            return error_response(too_large, errors)
        except RecursionError:  # msgspec's, of a body
            return error_response(Refusal("invalid_request", "the request body is nested too deeply."), errors)
        except web.HTTPException as error:
            return error_response(Refusal("not_found", f"{request.method} {request.path}: {error.reason}."), errors)
        except JournalError as error:
            return error_response(journal_refusal(error), errors)
        except ConnectionError:
            raise  # the client is gone
        except Exception as error:
            return error_response(report(error, f"{request.method} {request.path}"), errors)

    app = web.Application(middlewares=[guard])
    for part in parts:
        app.add_routes(part.routes)
        if part.context is not None:
            app.cleanup_ctx.append(part.context)
        if part.on_shutdown is not None:
            app.on_shutdown.append(part.on_shutdown)
    return app


def admin_app(gateway: Gateway, keys: AdminKeys, parts: Iterable[AdminPart] = ()) -> web.Application:
    """Open, list, read and seal sessions, work the fence: trainer scope. Revoke or replace a session's key: admin.

    Args:
        gateway: whose surface it is.
        keys: what opens it.
        parts: what else is served there.
    """

    def require(request: web.Request, scope: AdminScope) -> None:
        _require(keys, request, scope)

    async def open_session(request: web.Request) -> web.Response:
        try:
            body = msgspec.json.decode(await request.read() or b"{}", type=OpenRequest)
            policy = read_policy(body.policy, model=gateway.model)
            session, key = await gateway.open_session(policy, labels=body.labels, session_id=body.session_id)
        except (msgspec.MsgspecError, ConfigError) as error:
            raise Refusal("invalid_request", str(error)) from error
        return _json({**summary_of(session), "api_key": key}, status=201)

    async def list_sessions(_: web.Request) -> web.Response:
        return _json({"sessions": await asyncio.to_thread(gateway.sessions.summaries)})

    async def show_session(request: web.Request) -> web.Response:
        return _json(gateway.sessions.summary(request.match_info["id"]))

    async def show_rows(request: web.Request) -> web.Response:
        session = gateway.sessions.get(request.match_info["id"])
        labels = _labels(request.query.getall("label", []))
        return _json({"rows": rows_of(session.graph, labels=labels, session_id=session.id)})

    async def note_config_hashes(request: web.Request) -> web.Response:
        session = gateway.sessions.get(request.match_info["id"])
        try:
            hashes = msgspec.json.decode(await request.read(), type=dict[str, str])
            await gateway.note_config_hashes(session.id, hashes)
        except (msgspec.MsgspecError, ConfigError) as error:
            raise Refusal("invalid_request", str(error)) from error
        return _json(session.provenance)

    async def show_provenance(request: web.Request) -> web.Response:
        return _json(gateway.sessions.get(request.match_info["id"]).provenance)

    async def seal_session(request: web.Request) -> web.Response:
        return _json(summary_of(await gateway.seal_session(request.match_info["id"])))

    async def revoke_key(request: web.Request) -> web.Response:
        require(request, "admin")
        return _json(summary_of(await gateway.sessions.revoke(request.match_info["id"])))

    async def rotate_key(request: web.Request) -> web.Response:
        require(request, "admin")
        session, key = await gateway.sessions.rotate(request.match_info["id"])
        return _json({**summary_of(session), "api_key": key})

    async def health(_: web.Request) -> web.Response:
        return _json(
            {
                "status": "stopping" if gateway.admission.closing else "ok",
                "model": gateway.model,
                "engine": gateway.engine.name,
                "policy_version": gateway.engine.policy_version,
                "fence": gateway.fence.status().state,
                "journal": gateway.journal.blocked or "ok",
                "context_length": gateway.engine.context_length,
                "recovered_sessions": gateway.recovered,
            }
        )

    app = guarded_app(keys, parts)
    app.router.add_post("/admin/sessions", open_session)
    app.router.add_get("/admin/sessions", list_sessions)
    app.router.add_get("/admin/sessions/{id}", show_session)
    app.router.add_get("/admin/sessions/{id}/rows", show_rows)
    app.router.add_get("/admin/sessions/{id}/provenance", show_provenance)
    app.router.add_post("/admin/sessions/{id}/provenance/config", note_config_hashes)
    app.router.add_delete("/admin/sessions/{id}", seal_session)
    app.router.add_delete("/admin/sessions/{id}/key", revoke_key)
    app.router.add_post("/admin/sessions/{id}/key", rotate_key)
    app.router.add_get("/admin/health", health)
    app.router.add_routes(fence_routes(gateway))
    return app


def _require(keys: AdminKeys, request: web.Request, scope: AdminScope) -> None:
    keys.require(read_key(request.headers, request.query), scope)


def _labels(names: Sequence[str]) -> frozenset[Label]:
    """Which turns are trained: ``?label=agent&label=title``; without any, those that are trained by default."""
    try:
        return frozenset(msgspec.convert(names, list[Label])) or TRAINED_LABELS
    except msgspec.ValidationError as error:
        known = ", ".join(get_args(Label))
        raise Refusal("invalid_request", f"unknown label: {error}.", fix=f"Use {known}.", param="label") from error


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
