"""Admin routes of the weight-sync gate."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
from aiohttp import web

from drivetrain.engines.fingerprint import Fingerprint
from drivetrain.engines.protocol import EngineError
from drivetrain.errors import ConfigError, DrivetrainError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.fence_types import FenceBusy, FenceTimeout, OnDeadline, PauseMode
from drivetrain.gateway.refusal import Refusal


class PauseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /admin/pause``; see :meth:`drivetrain.gateway.fence.Fence.pause`."""

    mode: PauseMode = "drain"
    deadline_s: float = 60.0
    on_deadline: OnDeadline = "error"
    owner: str = "admin"


class ResumeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /admin/resume``; see :meth:`drivetrain.gateway.fence.Fence.resume`."""

    policy_version: int
    fingerprint: Fingerprint | None = None
    owner: str = "admin"


def fence_routes(gateway: Gateway) -> list[web.RouteDef]:
    """``POST /admin/pause``, ``POST /admin/resume``, ``GET /admin/fence``: each answers the gate's status.

    Errors have the body ``{"error": {"type", "message", ...}, "fence": status}``: 400 ``config_error``, 409
    ``fence_busy`` (another owner, or not in a state that allows it), 503 ``engine_failed`` (the gate stays closed), 504
    ``fence_timeout`` with ``in_flight`` (the gate is open again).
    """
    fence = gateway.fence

    async def pause(request: web.Request) -> web.Response:
        body = await _read(request, PauseRequest)
        try:
            status = await fence.pause(
                body.mode, deadline_s=body.deadline_s, on_deadline=body.on_deadline, owner=body.owner
            )
        except (ConfigError, FenceTimeout, EngineError) as error:
            return _failure(gateway, error)
        return _json(status)

    async def resume(request: web.Request) -> web.Response:
        try:
            body = await _read(request, ResumeRequest)
            status = await fence.resume(body.policy_version, fingerprint=body.fingerprint, owner=body.owner)
        except (ConfigError, EngineError) as error:
            return _failure(gateway, error)
        return _json(status)

    async def show(_: web.Request) -> web.Response:
        return _json(fence.status())

    return [web.post("/admin/pause", pause), web.post("/admin/resume", resume), web.get("/admin/fence", show)]


_Body = TypeVar("_Body", PauseRequest, ResumeRequest)
_Kind = Literal["config_error", "fence_busy", "engine_failed", "fence_timeout"]


async def _read(request: web.Request, kind: type[_Body]) -> _Body:
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise Refusal("invalid_request", str(error)) from error


def _failure(gateway: Gateway, error: DrivetrainError) -> web.Response:
    status, kind = _classify(error)
    detail: dict[str, Any] = {"type": kind, "message": str(error)}
    if isinstance(error, FenceTimeout):
        detail["in_flight"] = error.in_flight
    return _json({"error": detail, "fence": gateway.fence.status()}, status)


def _classify(error: DrivetrainError) -> tuple[int, _Kind]:
    if isinstance(error, FenceTimeout):
        return 504, "fence_timeout"
    if isinstance(error, FenceBusy):
        return 409, "fence_busy"
    if isinstance(error, EngineError):
        return 503, "engine_failed"
    return 400, "config_error"


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
