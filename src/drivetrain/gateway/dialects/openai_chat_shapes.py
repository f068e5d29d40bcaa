"""Bodies of the chat completions dialect as types. What is decoded are the decoder's structs themselves."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from drivetrain.gateway.dialects import openai_chat as decoder
from drivetrain.gateway.dialects.shapes import DialectShapes
from drivetrain.gateway.openapi.operation import Events
from drivetrain.gateway.refusal import RefusalCode


class CalledFunction(Struct, forbid_unknown_fields=True):
    """``arguments`` are JSON as it was sampled, which need not be valid."""

    name: str
    arguments: str


class ReplyToolCall(Struct, forbid_unknown_fields=True):
    """One call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ReplyMessage(Struct, forbid_unknown_fields=True):
    """What the policy said."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ReplyToolCall] | UnsetType = UNSET


class Choice(Struct, forbid_unknown_fields=True):
    """The one choice; log-probs stay with the trainer."""

    index: Literal[0]
    message: ReplyMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: None


class Usage(Struct, forbid_unknown_fields=True):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(Struct, forbid_unknown_fields=True):
    """A reply."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class Delta(Struct, forbid_unknown_fields=True):
    """What a chunk adds."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class ChunkChoice(Struct, forbid_unknown_fields=True):
    """The one choice; its last chunk has the finish reason."""

    index: Literal[0]
    delta: Delta
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    logprobs: None


class ChatCompletionChunk(Struct, forbid_unknown_fields=True):
    """A piece of a reply; ``usage`` where ``stream_options.include_usage`` asks for it, in a last chunk without
    choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class Model(Struct, forbid_unknown_fields=True):
    """The model of the session."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["drivetrain"]
    max_model_len: int


class ModelList(Struct, forbid_unknown_fields=True):
    """A list of one."""

    object: Literal["list"]
    data: list[Model]


class ErrorDetail(Struct, forbid_unknown_fields=True):
    """Why: in words, as a class of errors, the field at fault, a code."""

    message: str
    type: Literal["server_error", "invalid_request_error"]
    param: str | None
    code: RefusalCode


class Error(Struct, forbid_unknown_fields=True):
    """What is answered instead of a reply."""

    error: ErrorDetail


SHAPES = DialectShapes(
    prefix="Chat",
    request=decoder._Request,
    reply=ChatCompletion,
    error=Error,
    events=Events(
        (ChatCompletionChunk, Error), "Chunks, then `[DONE]`; an error and no `[DONE]` where the call failed.", "[DONE]"
    ),
    models=ModelList,
    model=Model,
    raw={(decoder._Request, "messages"): [decoder._Message]},
)
