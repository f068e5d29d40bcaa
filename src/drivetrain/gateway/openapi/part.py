"""``GET /admin/openapi.json``, and the document without a gateway."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web

from drivetrain.gateway.admin import AdminPart
from drivetrain.gateway.openapi.admin import ADMIN, part_chapter
from drivetrain.gateway.openapi.document import document
from drivetrain.gateway.openapi.harness import harness_chapters
from drivetrain.gateway.openapi.operation import Operation


def gateway_document(operations: Iterable[Operation] = ()) -> dict[str, Any]:
    """Both surfaces, with what the parts of the admin surface say of their routes (:attr:`AdminPart.operations`)."""
    more = tuple(operations)
    return document([*harness_chapters(), ADMIN, *([part_chapter("dashboard and metrics", more)] if more else [])])


def openapi_part(parts: Iterable[AdminPart]) -> AdminPart:
    """Serves the document of a gateway with these parts; it is made when it is asked for, once."""
    operations = tuple(operation for part in parts for operation in part.operations)
    made: list[bytes] = []

    async def show(_: web.Request) -> web.Response:
        if not made:
            made.append(msgspec.json.encode(gateway_document(operations)))
        return web.Response(body=made[0], content_type="application/json")

    return AdminPart(routes=(web.get("/admin/openapi.json", show),))
