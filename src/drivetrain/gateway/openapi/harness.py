"""The surface for harnesses described: every route of every dialect, and the tools of a session (MCP)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from drivetrain.gateway import mcp
from drivetrain.gateway.dialects.anthropic_messages.shapes import SHAPES as ANTHROPIC
from drivetrain.gateway.dialects.base import Dialect, Route
from drivetrain.gateway.dialects.choose import DIALECTS
from drivetrain.gateway.dialects.google_genai.shapes import SHAPES as GOOGLE
from drivetrain.gateway.dialects.openai_chat_shapes import SHAPES as CHAT
from drivetrain.gateway.dialects.openai_responses.shapes import SHAPES as RESPONSES
from drivetrain.gateway.dialects.shapes import DialectShapes
from drivetrain.gateway.openapi.document import Chapter, canonical
from drivetrain.gateway.openapi.operation import JSON, Answer, Operation, Parameter, operation

SHAPES: dict[str, DialectShapes] = {
    "openai_chat": CHAT,
    "openai_responses": RESPONSES,
    "anthropic": ANTHROPIC,
    "google": GOOGLE,
}
"""By the name of the dialect."""
_TITLES = {
    "openai_chat": "OpenAI chat completions",
    "openai_responses": "OpenAI Responses",
    "anthropic": "Anthropic Messages",
    "google": "Google generateContent",
}
EVENTS = "text/event-stream"
_BODY = (400, 408, 409, 413, 429, 503)
_ANTHROPIC_VERSION = Parameter(
    name="anthropic-version",
    place="header",
    schema={"type": "string", "enum": ["2023-06-01"]},
    description="Asks for the Anthropic form.",
)
_RETRIES = Parameter(
    name="Idempotency-Key",
    place="header",
    schema={"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[A-Za-z0-9_-]+$"},
    description="A retry has the key of the call that it repeats.",
)
_ALT = Parameter(
    name="alt", place="query", schema={"type": "string", "enum": ["sse"]}, description="Events instead of an array."
)
_NAME = {"model": {"type": "string", "pattern": "^[A-Za-z0-9._-]+$", "minLength": 1}}


def harness_chapters() -> list[Chapter]:
    """One for each dialect, and one for MCP."""
    return [*(_chapter(dialect) for dialect in DIALECTS), _MCP]


def _chapter(dialect: Dialect) -> Chapter:
    shapes = SHAPES[dialect.name]
    routes = {(route.method, canonical(route.path)): route for route in dialect.routes}
    return Chapter(
        name=_TITLES[dialect.name],
        description=f"Dialect `{dialect.name}`.",
        prefix=shapes.prefix,
        operations=tuple(_described(dialect.name, route, shapes) for route in routes.values()),
        error=shapes.error,
        raw=shapes.raw,
    )


def _described(name: str, route: Route, shapes: DialectShapes) -> Operation:
    where = f"{route.method} {route.path}"
    names = _NAME if "{model" in route.path else {}
    match route.action:
        case "generate":
            return _generate(name, where, shapes, names)
        case "count":
            return operation(
                where,
                "Tokens that the prompt has, exactly.",
                shapes.count,
                body=shapes.count_request,
                path_schema=names,
                errors=_BODY,
            )
        case "models":
            what, answer = "The session's model, as a list.", shapes.models
        case "model":
            what, answer = "The session's model, whatever name is asked for.", shapes.model
    versions = (_ANTHROPIC_VERSION,) if name == "anthropic" else ()
    unknown = (404,) if names else ()  # no path holds every name
    return operation(
        where, what, answer, path_schema=names, parameters=versions, errors=(409, 413, 429, 503, *unknown), shared=True
    )


def _generate(name: str, where: str, shapes: DialectShapes, names: Any) -> Operation:
    streams = {EVENTS: shapes.events}
    content: dict[str, Any] = {JSON: shapes.reply, **streams}
    parameters: tuple[Parameter, ...] = (_RETRIES,)
    said = "JSON, or events where the body asks for a stream."
    if name == "google":
        streamed = where.endswith("streamGenerateContent")
        content = {JSON: [shapes.reply], **streams} if streamed else {JSON: shapes.reply}
        parameters = (_RETRIES, _ALT) if streamed else parameters
        said = "An array of chunks, or events with `alt=sse`." if streamed else "A reply."
    made = operation(
        where,
        "One call of the policy.",
        body=shapes.request,
        path_schema=names,
        parameters=parameters,
        errors=(*_BODY, 422, 504),
    )
    return msgspec.structs.replace(made, answers={200: Answer(description=said, content=content)})


class JsonRpcError(msgspec.Struct, forbid_unknown_fields=True):
    """Why a call could not be made."""

    code: int
    message: str


class JsonRpcReply(msgspec.Struct, forbid_unknown_fields=True):
    """Of one message: a result, or an error; ``id`` null where the message could not be read."""

    jsonrpc: Literal["2.0"]
    id: int | str | None
    result: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    error: JsonRpcError | msgspec.UnsetType = msgspec.UNSET


_MCP = Chapter(
    name="MCP",
    description="Tools of a session that has some (streamable HTTP, stateless).",
    prefix="Mcp",
    operations=(
        operation(
            f"POST {mcp.PATH}",
            "One JSON-RPC message to the tools of the session.",
            JsonRpcReply,
            body=mcp._Message,
            answers={202: Answer(description="Taken: a notification.")},
            errors=(404, *_BODY),
        ),
        operation(
            f"GET {mcp.PATH}",
            "No stream of server messages.",
            status=405,
            errors=(409, 413, 429, 503),
        ),
    ),
    error={"anyOf": [{"$ref": f"#/components/schemas/{prefix}Error"} for prefix in ("Chat", "Anthropic", "Google")]},
)
