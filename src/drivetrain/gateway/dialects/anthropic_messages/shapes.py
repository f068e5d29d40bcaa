"""Bodies of the Messages dialect as types. What is decoded are the decoder's structs themselves."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import NODEFAULT, Struct

from drivetrain.gateway.dialects.anthropic_messages import blocks, request
from drivetrain.gateway.dialects.shapes import DialectShapes, shown
from drivetrain.gateway.openapi.operation import Events


class Thinking(Struct, tag_field="type", tag="thinking", forbid_unknown_fields=True):
    """Reasoning; the signature means nothing."""

    thinking: str
    signature: str


class Text(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Text."""

    text: str


class ToolUse(Struct, tag_field="type", tag="tool_use", forbid_unknown_fields=True):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


class Usage(Struct, forbid_unknown_fields=True):
    """Tokens; every prompt token is an input token."""

    input_tokens: int
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: Literal[0]
    output_tokens: int


class ReplyMessage(Struct, forbid_unknown_fields=True):
    """A reply; an empty one has no blocks."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    stop_reason: Literal["end_turn", "max_tokens", "tool_use"]
    stop_sequence: None
    content: list[Thinking | Text | ToolUse]
    usage: Usage


class Event(Struct):
    """One event; its other fields are those of the API's reference for its type."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    ]


class TokenCount(Struct, forbid_unknown_fields=True):
    """Prompt tokens, exactly."""

    input_tokens: int


class Model(Struct, forbid_unknown_fields=True):
    """The model of the session."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int


class ModelPage(Struct, forbid_unknown_fields=True):
    """A page with one."""

    data: list[Model]
    has_more: Literal[False]
    first_id: str
    last_id: str


class ErrorDetail(Struct, forbid_unknown_fields=True):
    """Why, as a class of errors and in words."""

    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "timeout_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "overloaded_error",
    ]
    message: str


class Error(Struct, forbid_unknown_fields=True):
    """What is answered instead of a reply."""

    type: Literal["error"]
    error: ErrorDetail
    request_id: None


class Source(Struct):
    """Of a document, a picture (``base64``, ``url``: refused or replaced) or a search result (text)."""

    type: str = ""
    data: str = ""
    content: Any = None


Block = shown(blocks._Block, input=(dict[str, Any], {}), content=(Any, None), source=(Any, None))
Message = shown(blocks._Message, content=(Any, NODEFAULT))
Request = shown(request._Request, system=(Any, None))
_CONTENT = (str, [Block], {"type": "null"})

SHAPES = DialectShapes(
    prefix="Anthropic",
    request=Request,
    reply=ReplyMessage,
    error=Error,
    events=Events(
        Event,
        "`message_start` ... `message_stop`, with pings before; an `error` event and no `message_stop` where the call "
        "failed.",
    ),
    count_request=Request,
    count=TokenCount,
    models=ModelPage,
    model=Model,
    raw={
        (Request, "messages"): [Message],
        (Request, "system"): _CONTENT,
        (Message, "content"): _CONTENT,
        (Block, "content"): _CONTENT,
        (Block, "source"): (Source, str, {"type": "null"}),
        (Source, "content"): _CONTENT,
    },
)
