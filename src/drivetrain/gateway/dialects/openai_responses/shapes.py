"""Bodies of the Responses dialect as types. What is decoded are the decoder's structs themselves."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from drivetrain.gateway.dialects.openai_responses import dialect, items, tools
from drivetrain.gateway.dialects.shapes import DialectShapes
from drivetrain.gateway.openapi.operation import Events, Tagged
from drivetrain.gateway.refusal import RefusalCode

ItemStatus = Literal["completed", "incomplete"]


class OutputText(Struct, forbid_unknown_fields=True):
    """Text without citations; log-probs stay with the trainer."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class SummaryText(Struct, forbid_unknown_fields=True):
    """Reasoning, whole."""

    type: Literal["summary_text"]
    text: str


class OutputReasoning(Struct, tag_field="type", tag="reasoning", forbid_unknown_fields=True):
    """Reasoning; ``encrypted_content`` when it was asked for, which names the reply and hides nothing."""

    id: str
    summary: list[SummaryText]
    status: ItemStatus
    encrypted_content: str | UnsetType = UNSET


class OutputMessage(Struct, tag_field="type", tag="message", forbid_unknown_fields=True):
    """Text."""

    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class OutputFunctionCall(Struct, tag_field="type", tag="function_call", forbid_unknown_fields=True):
    """``arguments`` are JSON as it was sampled, which need not be valid."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus
    namespace: str | UnsetType = UNSET


class OutputCustomCall(Struct, tag_field="type", tag="custom_tool_call", forbid_unknown_fields=True):
    """A call of a tool that takes free text."""

    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus
    namespace: str | UnsetType = UNSET


class InputDetails(Struct, forbid_unknown_fields=True):
    """Nothing is billed, so nothing is told apart."""

    cached_tokens: Literal[0]
    cache_write_tokens: Literal[0]


class OutputDetails(Struct, forbid_unknown_fields=True):
    """See above."""

    reasoning_tokens: Literal[0]


class Usage(Struct, forbid_unknown_fields=True):
    """Tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(Struct, forbid_unknown_fields=True):
    """Why a reply was cut."""

    reason: Literal["max_output_tokens"]


class Response(Struct, forbid_unknown_fields=True):
    """A reply, and what was asked, echoed."""

    id: str
    object: Literal["response"]
    created_at: int
    status: ItemStatus
    background: Literal[False]
    completed_at: int | None
    error: None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    model: str
    output: list[OutputReasoning | OutputMessage | OutputFunctionCall | OutputCustomCall]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: Literal[0]
    top_p: float | None
    truncation: Literal["disabled"]
    usage: Usage
    user: str | None
    metadata: dict[str, str]


class Event(Struct):
    """One event; its other fields are those of the API's reference for its type."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: int


class InputTokens(Struct, forbid_unknown_fields=True):
    """Prompt tokens, exactly."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ErrorDetail(Struct, forbid_unknown_fields=True):
    """Why: in words, as a class of errors, the field at fault, a code."""

    message: str
    type: Literal["server_error", "invalid_request_error"]
    param: str | None
    code: RefusalCode | Literal["previous_response_not_found"]


class Error(Struct, forbid_unknown_fields=True):
    """What is answered instead of a reply."""

    error: ErrorDetail


_ITEMS = (
    Tagged("message", items._Said, usual=True),
    Tagged("reasoning", items._Reasoning),
    Tagged("function_call", items._FunctionCall),
    Tagged("function_call_output", items._Output),
    Tagged("custom_tool_call", items._CustomCall),
    Tagged("custom_tool_call_output", items._Output),
    Tagged("item_reference", items._Reference),
)

SHAPES = DialectShapes(
    prefix="Responses",
    request=dialect._Request,
    reply=Response,
    error=Error,
    events=Events(
        Event,
        "`response.created`, `response.in_progress`, the items, then `response.completed`, `response.incomplete` or "
        "`response.failed`; numbered from 0.",
    ),
    count_request=dialect._Request,
    count=InputTokens,
    raw={
        (dialect._Request, "input"): (str, [_ITEMS], {"type": "null"}),
        (dialect._Request, "tools"): ([tools._Tool], {"type": "null"}),
        (tools._Tool, "tools"): ([tools._Tool], {"type": "null"}),
    },
)
