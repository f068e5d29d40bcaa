"""OpenAI chat completions: ``POST /v1/chat/completions``, JSON and SSE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from drivetrain.gateway.dialects.base import Action, ImageRule, Memory, Route, ServedModel, WireRequest
from drivetrain.gateway.dialects.pieces import pieces
from drivetrain.gateway.dialects.surrogates import replace_lone_surrogates_in
from drivetrain.gateway.memo import KnownMessage
from drivetrain.gateway.patience import KeepAliveForm
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.sse import comment, data_event
from drivetrain.messages import Call, Message, Reply, RequestedSampling, ToolCall, ToolSpec

_encode = msgspec.json.encode
_PREFIX = "chatcmpl-"
_READER = "chat message"


_MEDIA = {"image_url": "image", "input_audio": "audio", "file": "document"}


class _Part(msgspec.Struct):
    type: str
    text: str = ""
    refusal: str = ""


class _Function(msgspec.Struct):
    name: str
    arguments: str = "{}"


class _ToolCall(msgspec.Struct):
    id: str
    function: _Function
    type: str = "function"


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: Any = None
    tool_call_id: str | None = None
    name: str | None = None


class _FunctionSpec(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    type: str
    function: _FunctionSpec | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Request(msgspec.Struct):
    model: str
    messages: list[msgspec.Raw]
    tools: list[_Tool] | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    logit_bias: dict[str, float] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    top_k: int | None = None  # these three as inference engines spell them
    min_p: float | None = None
    repetition_penalty: float | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    functions: Any = None
    function_call: Any = None


_KNOBS = (
    "n",
    "tool_choice",
    "response_format",
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "reasoning_effort",
    "logprobs",
    "top_logprobs",
    "top_k",
    "min_p",
    "parallel_tool_calls",
)
"""Recorded, and judged by the session's rules (:mod:`drivetrain.gateway.knobs`)."""


_decoder = msgspec.json.Decoder(_Request)
_message_decoder = msgspec.json.Decoder(_Message)


class OpenAIChat:
    """The chat completions dialect (public API reference of OpenAI, ``chat.completion`` objects)."""

    name = "openai_chat"
    routes: tuple[Route, ...] = (
        Route("POST", "/v1/chat/completions", "generate"),
        Route("GET", "/v1/models", "models"),
        Route("GET", "/v1/models/{model}", "model"),
    )

    def claims(self, path: str, headers: Mapping[str, str]) -> bool:
        """Only its own path: whatever nobody claims is answered in this dialect anyway."""
        del headers
        return path.startswith("/v1/chat/")

    def decode(self, request: WireRequest, memory: Memory) -> Call:
        """Read a request; see :class:`~drivetrain.gateway.dialects.base.Dialect`."""
        body = request.body
        if b"\\ud" in body or b"\\uD" in body:
            body = replace_lone_surrogates_in(body)
        return self._decode(body, memory)

    def _decode(self, body: bytes, memory: Memory) -> Call:
        try:
            request = _decoder.decode(body)
            known = _messages(request.messages, memory)
        except msgspec.ValidationError as error:
            raise Refusal("invalid_request", f"the request body is not a chat completion request: {error}.") from error
        except msgspec.DecodeError as error:
            raise Refusal("invalid_request", f"the request body is not valid JSON: {error}.") from error
        except RecursionError as error:
            raise Refusal("invalid_request", "the request body is nested too deeply.") from error
        _refuse_unserved(request)
        if not request.messages:
            raise Refusal("invalid_request", "messages is empty.", param="messages")
        return Call(
            dialect=self.name,
            model=request.model,
            messages=tuple(one.message for one in known),
            keys=tuple(one.key for one in known),
            tools=tuple(_tool(tool, index) for index, tool in enumerate(request.tools or ())),
            stream=bool(request.stream),
            stream_usage=bool(request.stream_options and request.stream_options.include_usage),
            requested=_requested(request),
        )

    def encode(self, reply: Reply, call: Call) -> bytes:
        """A ``chat.completion`` object."""
        del call
        message: dict[str, Any] = {"role": "assistant", "content": reply.content or None, "refusal": None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = [_encode_call(one) for one in reply.tool_calls]
        choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}
        return _encode({**_head(reply, "chat.completion"), "choices": [choice], "usage": _usage(reply)})

    def opening(self, reply_id: str, call: Call) -> Sequence[bytes]:
        """Nothing: the first chunk may come late."""
        del reply_id, call
        return ()

    def events(self, reply: Reply, call: Call, *, opened: bool) -> Sequence[bytes]:
        """``chat.completion.chunk`` events: role, text in pieces, tool calls, finish reason, usage, ``[DONE]``.

        A tool call opens with its id and name and goes on in pieces of its arguments, as the API documents.
        """
        del opened
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in pieces(reply.reasoning)]
        deltas += [{"content": piece} for piece in pieces(reply.content)]
        for index, one in enumerate(reply.tool_calls):
            deltas += [{"tool_calls": [delta]} for delta in _call_deltas(one, index)]
        head = _head(reply, "chat.completion.chunk")
        if call.stream_usage:
            head["usage"] = None
        chunks = [_chunk(head, delta, None) for delta in deltas]
        chunks.append(_chunk(head, {}, reply.finish_reason))
        if call.stream_usage:
            chunks.append({**head, "choices": [], "usage": _usage(reply)})
        return [*(data_event(_encode(chunk)) for chunk in chunks), data_event(b"[DONE]")]

    def keep_alive(self, form: KeepAliveForm, reply_id: str, call: Call) -> bytes:
        """A comment line, which Pi, OpenCode and the official SDK ignore; Qwen's clock needs a chunk that says nothing
        (harnesses.md section 1.5)."""
        if form == "event":
            head = {"id": _PREFIX + reply_id, "object": "chat.completion.chunk", "created": 0, "model": call.model}
            return data_event(_encode(_chunk(head, {"content": ""}, None)))
        return b"\n" if form == "newline" else comment()

    def encode_count(self, tokens: int) -> bytes:
        """This API has no such route."""
        raise NotImplementedError

    def encode_models(self, model: ServedModel, action: Action) -> bytes:
        """A ``list`` of one ``model`` object, or the object; ``max_model_len`` as vLLM spells it."""
        one = {
            "id": model.name,
            "object": "model",
            "created": model.created,
            "owned_by": "drivetrain",
            "max_model_len": model.context_length,
        }
        return _encode({"object": "list", "data": [one]} if action == "models" else one)

    def error(self, refusal: Refusal) -> bytes:
        """``{"error": {...}}``."""
        return _encode(_error(refusal))

    def error_events(self, refusal: Refusal, reply_id: str, call: Call) -> Sequence[bytes]:
        """One error event; no ``[DONE]``, so that nothing looks finished."""
        del reply_id, call
        return [data_event(_encode(_error(refusal)))]


def _refuse_unserved(request: _Request) -> None:
    """Refuse what the API has replaced, and what is no text."""
    for field, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        if getattr(request, field) is not None:
            raise Refusal(
                "unsupported",
                f"{field} is not supported: the API has replaced it.",
                fix=f"Use {instead}.",
                param=field,
            )
    if any(kind != "text" for kind in request.modalities or ()):
        raise Refusal("unsupported", "modalities: text only is answered.", fix="Leave it out.", param="modalities")


def _messages(raw: list[msgspec.Raw], memory: Memory) -> list[KnownMessage]:
    memo = memory.memo
    known: list[KnownMessage] = []
    for index, slice_ in enumerate(map(bytes, raw)):
        known += memo.get(_READER, slice_) or memo.put(_READER, slice_, [_message(slice_, index, memory.images)])
    return known


def _message(raw: bytes, index: int, images: ImageRule) -> Message:
    place = f"messages[{index}]"
    try:
        message = _message_decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise Refusal("invalid_request", f"{place} is not a chat message: {error}.", param=place) from error
    if message.role == "function" or message.function_call is not None:
        raise Refusal(
            "unsupported",
            f"{place} holds a function_call or its result: the API has replaced them.",
            fix="Use tool_calls and messages of role 'tool'.",
            param=place,
        )
    return Message(
        role=message.role,
        content=_text(message.content, place, images),
        reasoning=message.reasoning_content or message.reasoning or "",
        tool_calls=tuple(
            ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
    )


def _text(content: str | list[_Part] | None, place: str, images: ImageRule) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_part_text(part, f"{place}.content[{index}]", images) for index, part in enumerate(content))


def _part_text(part: _Part, place: str, images: ImageRule) -> str:
    if part.type in ("text", "refusal"):
        return part.text or part.refusal
    if part.type in _MEDIA and images == "placeholder":
        return f"[{_MEDIA[part.type]} left out: this model reads text only]"
    raise Refusal(
        "unsupported",
        f"{place} is a part of type {part.type!r}; this model reads text only.",
        fix="Send text parts, or open the session with images='placeholder'.",
        param=place,
    )


def _tool(tool: _Tool, index: int) -> ToolSpec:
    place = f"tools[{index}]"
    if tool.type != "function":
        raise Refusal("unsupported", f"{place} is of type {tool.type!r}; only functions are.", param=place)
    function = tool.function
    if function is None:
        raise Refusal("invalid_request", f"{place} names no function.", param=f"{place}.function")
    return ToolSpec(function.name, function.description or "", function.parameters or {})


def _requested(request: _Request) -> RequestedSampling:
    stop = request.stop or ()
    extra = {name: value for name in _KNOBS if (value := getattr(request, name)) is not None}
    return RequestedSampling(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=_positive(request.max_completion_tokens, request.max_tokens),
        seed=request.seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        extra=extra,
    )


def _positive(*values: int | None) -> int | None:
    for value in values:
        if value is not None:
            if value < 1:
                raise Refusal("invalid_request", f"max_tokens is {value}; it must be positive.", param="max_tokens")
            return value
    return None


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    return {"id": _PREFIX + reply.id, "object": kind, "created": reply.created, "model": reply.model}


def _chunk(head: dict[str, Any], delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}


def _encode_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _call_deltas(call: ToolCall, index: int) -> list[dict[str, Any]]:
    opening = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
    return [opening, *({"index": index, "function": {"arguments": piece}} for piece in pieces(call.arguments))]


def _usage(reply: Reply) -> dict[str, int]:
    prompt, completion = reply.usage.prompt_tokens, reply.usage.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _error(refusal: Refusal) -> dict[str, Any]:
    kind = "server_error" if refusal.retryable else "invalid_request_error"
    return {"error": {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}}
