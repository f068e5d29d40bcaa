"""Bodies of the Google dialect as types.

Requests are read by hand (:mod:`drivetrain.gateway.dialects.google_genai.request`): field names also in snake case,
null for absent, one message where a list of them belongs, integers as text. What stands here is the documented form of
each; the structs are those that the values are converted to in the end.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from drivetrain.gateway.dialects.google_genai import request as decoder
from drivetrain.gateway.dialects.shapes import DialectShapes
from drivetrain.gateway.openapi.operation import Events


class InlineData(Struct, rename="camel"):
    """A picture or a document: refused, or replaced by a short text, as the session wants."""

    mime_type: str = ""
    data: str = ""


class RequestPart(Struct, rename="camel"):
    """Text, a thought, a call, a result, or a picture."""

    text: str | UnsetType = UNSET
    thought: bool | UnsetType = UNSET
    function_call: decoder._FunctionCall | UnsetType = UNSET
    function_response: decoder._FunctionResponse | UnsetType = UNSET
    inline_data: InlineData | UnsetType = UNSET
    thought_signature: str | UnsetType = UNSET


class RequestTool(Struct, rename="camel"):
    """Functions; every other kind of tool runs on the API's own servers and is not offered."""

    function_declarations: list[decoder._Declaration] | decoder._Declaration | UnsetType = UNSET


class GenerateContentRequest(Struct, rename="camel"):
    """A call."""

    contents: list[decoder._Content] | decoder._Content
    system_instruction: decoder._Content | str | None = None
    tools: list[RequestTool] | RequestTool | None = None
    tool_config: decoder._ToolConfig | None = None
    generation_config: decoder._GenerationConfig | None = None


class CountTokensRequest(Struct, rename="camel"):
    """A prompt, or the call that it would be."""

    contents: list[decoder._Content] | decoder._Content | UnsetType = UNSET
    generate_content_request: GenerateContentRequest | UnsetType = UNSET


class ReplyFunctionCall(Struct, forbid_unknown_fields=True):
    """A call of a tool."""

    id: str
    name: str
    args: dict[str, Any]


class ReplyPart(Struct, rename="camel", forbid_unknown_fields=True):
    """Text (a thought where it says so) or a call."""

    text: str | UnsetType = UNSET
    thought: Literal[True] | UnsetType = UNSET
    function_call: ReplyFunctionCall | UnsetType = UNSET


class ReplyContent(Struct, forbid_unknown_fields=True):
    """Never without parts."""

    parts: list[ReplyPart]
    role: Literal["model"]


class Candidate(Struct, rename="camel", forbid_unknown_fields=True):
    """The one candidate; the last chunk of a stream has the finish reason."""

    content: ReplyContent
    index: Literal[0]
    finish_reason: Literal["STOP", "MAX_TOKENS"] | UnsetType = UNSET


class UsageMetadata(Struct, rename="camel", forbid_unknown_fields=True):
    """Tokens."""

    prompt_token_count: int
    candidates_token_count: int
    total_token_count: int


class GenerateContentResponse(Struct, rename="camel", forbid_unknown_fields=True):
    """A reply, or a chunk of one."""

    candidates: list[Candidate]
    model_version: str
    response_id: str
    usage_metadata: UsageMetadata | UnsetType = UNSET


class CountTokensResponse(Struct, rename="camel", forbid_unknown_fields=True):
    """Prompt tokens, exactly."""

    total_tokens: int


class Model(Struct, rename="camel", forbid_unknown_fields=True):
    """The model of the session."""

    name: str
    version: Literal["1"]
    display_name: str
    input_token_limit: int
    output_token_limit: int
    supported_generation_methods: list[Literal["generateContent", "countTokens"]]


class ModelList(Struct, forbid_unknown_fields=True):
    """A list of one."""

    models: list[Model]


class ErrorInfo(Struct, rename={"kind": "@type"}, forbid_unknown_fields=True):
    """The code of the refusal, in upper case."""

    kind: Literal["type.googleapis.com/google.rpc.ErrorInfo"]
    reason: str
    domain: Literal["drivetrain"]


class FieldViolation(Struct, forbid_unknown_fields=True):
    """The field at fault."""

    field: str
    description: str


class BadRequest(Struct, rename={"kind": "@type", "field_violations": "fieldViolations"}, forbid_unknown_fields=True):
    """Where the fault is."""

    kind: Literal["type.googleapis.com/google.rpc.BadRequest"]
    field_violations: list[FieldViolation]


class RetryInfo(Struct, rename={"kind": "@type", "retry_delay": "retryDelay"}, forbid_unknown_fields=True):
    """When to come back, e.g. ``5s``."""

    kind: Literal["type.googleapis.com/google.rpc.RetryInfo"]
    retry_delay: str


class ErrorDetail(Struct, forbid_unknown_fields=True):
    """Why: the HTTP status, in words, as a class of errors, and details."""

    code: int
    message: str
    status: Literal[
        "INVALID_ARGUMENT",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "NOT_FOUND",
        "DEADLINE_EXCEEDED",
        "FAILED_PRECONDITION",
        "RESOURCE_EXHAUSTED",
        "UNAVAILABLE",
        "INTERNAL",
    ]
    details: list[dict[str, Any]]


class Error(Struct, forbid_unknown_fields=True):
    """What is answered instead of a reply."""

    error: ErrorDetail


SHAPES = DialectShapes(
    prefix="Google",
    request=GenerateContentRequest,
    reply=GenerateContentResponse,
    error=Error,
    events=Events(
        (GenerateContentResponse, Error),
        "Chunks; the last one has the finish reason and the token counts. An error where the call failed.",
    ),
    count_request=CountTokensRequest,
    count=CountTokensResponse,
    models=ModelList,
    model=Model,
    raw={
        (GenerateContentRequest, "contents"): ([decoder._Content], decoder._Content),
        (GenerateContentRequest, "systemInstruction"): (decoder._Content, str, {"type": "null"}),
        (decoder._Content, "parts"): ([RequestPart], RequestPart),
        (ErrorDetail, "details"): [(ErrorInfo, BadRequest, RetryInfo)],
    },
)
