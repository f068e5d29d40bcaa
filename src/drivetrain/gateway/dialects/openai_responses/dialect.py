"""OpenAI Responses: ``POST /v1/responses``, JSON and SSE, and ``POST /v1/responses/input_tokens``.

Codex speaks nothing else; Pi and OpenCode can (harnesses.md section 3). Items are in
``items``, tools in ``tools``, the reply in ``reply`` and ``events``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from drivetrain.gateway.dialects.base import Action, Memory, Route, ServedModel, WireRequest
from drivetrain.gateway.dialects.openai_responses.events import (
    failed_event,
    keep_alive_event,
    opening_events,
    reply_events,
)
from drivetrain.gateway.dialects.openai_responses.ids import read_response_id
from drivetrain.gateway.dialects.openai_responses.items import read_items
from drivetrain.gateway.dialects.openai_responses.reply import failed_object, response_object
from drivetrain.gateway.dialects.openai_responses.tools import Tools, read_tools
from drivetrain.gateway.dialects.surrogates import replace_lone_surrogates_in
from drivetrain.gateway.memo import KnownMessage, MessageMemo
from drivetrain.gateway.patience import KeepAliveForm
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.sse import comment
from drivetrain.messages import Call, Message, Reply, RequestedSampling
from drivetrain.trace.keys import message_key

_encode = msgspec.json.encode
_SEALED = "reasoning.encrypted_content"


class _Text(msgspec.Struct):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class _Request(msgspec.Struct):
    model: str = ""
    input: str | list[msgspec.Raw] | None = None
    instructions: str | None = None
    tools: list[msgspec.Raw] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    background: bool | None = None
    store: bool | None = None
    include: list[str] | None = None
    reasoning: dict[str, Any] | None = None
    text: _Text | None = None
    metadata: dict[str, str] | None = None
    truncation: str | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


_decoder = msgspec.json.Decoder(_Request)
_ECHOED = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "store",
    "temperature",
    "tool_choice",
    "top_p",
    "user",
)
_RECORDED = ("include", "parallel_tool_calls", "reasoning", "truncation")
_PARAMS = {"messages": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}
"""Fields of this API where a refusal names another's."""


class PreviousResponseNotFound(Refusal):
    """A ``previous_response_id`` that this session did not serve; the API answers 400 with a code of its own."""

    def __init__(self, previous: str) -> None:
        super().__init__(
            "invalid_request",
            f"Previous response with id {previous!r} not found.",
            fix="Continue a response of this session, or send the items themselves.",
            param="previous_response_id",
        )


class OpenAIResponses:
    """The Responses dialect (public API reference of OpenAI, ``response`` objects)."""

    name = "openai_responses"
    routes: tuple[Route, ...] = (
        Route("POST", "/v1/responses", "generate"),
        Route("POST", "/v1/responses/input_tokens", "count"),
    )

    def claims(self, path: str, headers: Mapping[str, str]) -> bool:
        """Everything below its own path."""
        del headers
        return path == "/v1/responses" or path.startswith("/v1/responses/")

    def decode(self, request: WireRequest, memory: Memory) -> Call:
        """Read a request; see :class:`~drivetrain.gateway.dialects.base.Dialect`."""
        body = _parse(request.body)
        _refuse_unserved(body)
        tools = read_tools(body.tools)
        known = _messages(body, memory)
        if not known:
            raise Refusal("invalid_request", "input is empty.", param="input")
        return Call(
            dialect=self.name,
            model=body.model,
            messages=tuple(one.message for one in known),
            keys=tuple(one.key for one in known),
            tools=tuple(tools.offered),
            stream=bool(body.stream),
            requested=_requested(body, tools),
            wire={"echo": _echo(body, tools), "tools": tools.wire, "sealed": _SEALED in (body.include or ())},
        )

    def encode(self, reply: Reply, call: Call) -> bytes:
        """A ``response`` object."""
        return _encode(response_object(reply, call))

    def opening(self, reply_id: str, call: Call) -> Sequence[bytes]:
        """``response.created`` and ``response.in_progress``."""
        return opening_events(reply_id, call)

    def keep_alive(self, form: KeepAliveForm, reply_id: str, call: Call) -> bytes:
        """``response.in_progress`` again unless a comment or a newline is asked for: Codex's clock ignores those."""
        if form == "comment":
            return comment()
        return b"\n" if form == "newline" else keep_alive_event(reply_id, call)

    def events(self, reply: Reply, call: Call, *, opened: bool) -> Sequence[bytes]:
        """See :mod:`~drivetrain.gateway.dialects.openai_responses.events`."""
        return reply_events(reply, call, opened=opened)

    def encode_count(self, tokens: int) -> bytes:
        """A ``response.input_tokens`` object."""
        return _encode({"object": "response.input_tokens", "input_tokens": tokens})

    def encode_models(self, model: ServedModel, action: Action) -> bytes:
        """The model list is the chat dialect's."""
        raise NotImplementedError

    def error(self, refusal: Refusal) -> bytes:
        """``{"error": {...}}``."""
        kind = "server_error" if refusal.retryable else "invalid_request_error"
        code = "previous_response_not_found" if isinstance(refusal, PreviousResponseNotFound) else refusal.code
        param = _PARAMS.get(refusal.param, refusal.param) if refusal.param else None
        return _encode({"error": {"message": str(refusal), "type": kind, "param": param, "code": code}})

    def error_events(self, refusal: Refusal, reply_id: str, call: Call) -> Sequence[bytes]:
        """``response.failed``. Codex ignores an ``error`` event and reads the code of a failed response: it retries
        ``server_error`` and does not retry a context overflow or an invalid prompt."""
        code = "server_error" if refusal.retryable else "invalid_prompt"
        if refusal.code == "context_length_exceeded":
            code = refusal.code
        return [failed_event(failed_object(reply_id, call, code, str(refusal)))]


def _parse(body: bytes) -> _Request:
    try:
        try:
            return _decoder.decode(body)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return _decoder.decode(replace_lone_surrogates_in(body))
    except msgspec.ValidationError as error:
        raise Refusal("invalid_request", f"the request body is not a Responses request: {error}.") from error
    except msgspec.DecodeError as error:
        raise Refusal("invalid_request", f"the request body is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise Refusal("invalid_request", "the request body is nested too deeply.") from error


def _refuse_unserved(body: _Request) -> None:
    """Refuse what needs the API's own servers, whatever the session's rules say."""
    reasons = {
        "tool_choice": (_forces_hosted(body.tool_choice), "no hosted tool is served here"),
        "background": (bool(body.background), "a reply is sent to the connection that asked for it"),
        "conversation": (body.conversation is not None, "conversations are not stored under names"),
        "prompt": (body.prompt is not None, "there are no stored prompts"),
    }
    for field, (asked, reason) in reasons.items():
        if asked:
            raise Refusal("unsupported", f"{field} is not supported: {reason}.", fix=f"Leave {field} out.", param=field)
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        what = f"max_output_tokens is {body.max_output_tokens}; it must be positive."
        raise Refusal("invalid_request", what, param="max_output_tokens")


def _forces_hosted(choice: str | dict[str, Any] | None) -> bool:
    return isinstance(choice, dict) and choice.get("type") not in ("function", "custom", "allowed_tools")


def _messages(body: _Request, memory: Memory) -> list[KnownMessage]:
    """Instructions, the conversation that is continued, the input."""
    known = _remember(memory.memo, "system", body.instructions) if body.instructions else []
    earlier = _earlier(body.previous_response_id, memory) if body.previous_response_id else []
    known += earlier
    if isinstance(body.input, str):
        return known + _remember(memory.memo, "user", body.input)
    return known + read_items(body.input or (), memory, behind=earlier[-1].message if earlier else None)


def _remember(memo: MessageMemo, role: Any, text: str) -> list[KnownMessage]:
    reader, raw = f"responses {role}", text.encode()
    return list(memo.get(reader, raw) or memo.put(reader, raw, [Message(role, text)]))


def _earlier(previous: str, memory: Memory) -> list[KnownMessage]:
    """The conversation of a response and its reply, without its ``instructions``, which are not inherited."""
    reply_id = read_response_id(previous)
    messages = memory.conversation(reply_id) if reply_id else None
    if reply_id is None or messages is None:
        raise PreviousResponseNotFound(previous)
    asked = memory.requested(reply_id)
    start = 1 if asked is not None and asked.extra.get("instructions") else 0
    return [KnownMessage(message, message_key(message)) for message in messages[start:]]


def _requested(body: _Request, tools: Tools) -> RequestedSampling:
    extra = {name: value for name in _RECORDED if (value := getattr(body, name)) is not None}
    extra |= _knobs(body)
    if body.instructions:
        extra["instructions"] = True  # message 0 is theirs: a response that continues this one does not inherit it
    if tools.dropped:
        extra["dropped_tools"] = tools.dropped
    if tools.unenforced:
        extra["unenforced_grammars"] = tools.unenforced
    return RequestedSampling(
        temperature=body.temperature, top_p=body.top_p, max_tokens=body.max_output_tokens, extra=extra
    )


def _knobs(body: _Request) -> dict[str, Any]:
    """What the session's rules judge (:mod:`drivetrain.gateway.knobs`), in the spelling of chat completions."""
    knobs: dict[str, Any] = {}
    if isinstance(body.tool_choice, dict):  # a list of allowed tools is a constraint in both of its modes
        knobs["tool_choice"] = {name: value for name, value in body.tool_choice.items() if name != "mode"}
    elif body.tool_choice is not None:
        knobs["tool_choice"] = body.tool_choice
    if body.text is not None and body.text.verbosity is not None:
        knobs["verbosity"] = body.text.verbosity
    format_ = body.text.format if body.text is not None else None
    if format_ is not None:
        kind = format_.get("type", "text")
        rest = {name: value for name, value in format_.items() if name != "type"}
        knobs["response_format"] = {"type": kind, **({kind: rest} if rest else {})}
    if body.top_logprobs:
        knobs["logprobs"] = body.top_logprobs
    if body.reasoning is not None and body.reasoning.get("effort") is not None:
        knobs["reasoning_effort"] = body.reasoning["effort"]
    return knobs


def _echo(body: _Request, tools: Tools) -> dict[str, Any]:
    echo = {name: value for name in _ECHOED if (value := getattr(body, name)) is not None}
    if body.text is not None and body.text.verbosity is not None:
        echo["text"] = {"format": {"type": "text"}, "verbosity": body.text.verbosity}
    return {**echo, "tools": tools.echo}
