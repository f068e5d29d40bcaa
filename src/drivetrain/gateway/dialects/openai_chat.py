"""OpenAI chat completions: ``POST /v1/chat/completions``, JSON and SSE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from drivetrain.gateway.dialects.base import Action, Memory, Route, ServedModel, WireRequest
from drivetrain.gateway.memo import KnownMessage, MessageMemo
from drivetrain.gateway.patience import KeepAliveForm
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.sse import comment, data_event
from drivetrain.messages import Call, Message, Reply, RequestedSampling, ToolCall, ToolSpec

_encode = msgspec.json.encode
_CHUNK_CHARS = 48
_PREFIX = "chatcmpl-"


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _Function(msgspec.Struct):
    name: str
    arguments: str = "{}"


class _ToolCall(msgspec.Struct):
    id: str
    function: _Function
    type: str = "function"


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class _FunctionSpec(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    type: str
    function: _FunctionSpec


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
        return self._decode(request.body, memory.memo)

    def _decode(self, body: bytes, memo: MessageMemo) -> Call:
        try:
            request = _decoder.decode(body)
            known = _messages(request.messages, memo)
        except msgspec.ValidationError as error:
            raise Refusal("invalid_request", f"the request body is not a chat completion request: {error}.") from error
        except msgspec.DecodeError as error:
            raise Refusal("invalid_request", f"the request body is not valid JSON: {error}.") from error
        except RecursionError as error:
            raise Refusal("invalid_request", "the request body is nested too deeply.") from error
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
            message["tool_calls"] = [_encode_call(call) for call in reply.tool_calls]
        choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}
        return _encode({**_head(reply, "chat.completion"), "choices": [choice], "usage": _usage(reply)})

    def opening(self, reply_id: str, call: Call) -> Sequence[bytes]:
        """Nothing: the first chunk may come late."""
        del reply_id, call
        return ()

    def events(self, reply: Reply, call: Call, *, opened: bool) -> Sequence[bytes]:
        """``chat.completion.chunk`` events: role, text in pieces, tool calls, finish reason, usage, ``[DONE]``."""
        del opened
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in _pieces(reply.reasoning)]
        deltas += [{"content": piece} for piece in _pieces(reply.content)]
        deltas += [{"tool_calls": [_encode_call(c, index)]} for index, c in enumerate(reply.tool_calls)]
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


def _messages(raw: list[msgspec.Raw], memo: MessageMemo) -> list[KnownMessage]:
    known: list[KnownMessage] = []
    for index, slice_ in enumerate(map(bytes, raw)):
        known += memo.get(slice_) or memo.put(slice_, [_message(_message_decoder.decode(slice_), index)])
    return known


def _message(message: _Message, index: int) -> Message:
    return Message(
        role=message.role,
        content=_text(message.content, index),
        reasoning=message.reasoning_content or message.reasoning or "",
        tool_calls=tuple(
            ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
    )


def _text(content: str | list[_Part] | None, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in ("text", "refusal"):
            raise Refusal(
                "unsupported",
                f"messages[{index}] holds a part of type {part.type!r}; this model reads text only.",
                fix="Send text parts.",
                param=f"messages[{index}].content",
            )
    return "".join(part.text for part in content)


def _tool(tool: _Tool, index: int) -> ToolSpec:
    if tool.type != "function":
        raise Refusal("unsupported", f"tools[{index}] is of type {tool.type!r}; only functions are.", param="tools")
    function = tool.function
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


def _encode_call(call: ToolCall, index: int | None = None) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    body = {"id": call.id, "type": "function", "function": function}
    return body if index is None else {"index": index, **body}


def _usage(reply: Reply) -> dict[str, int]:
    prompt, completion = reply.usage.prompt_tokens, reply.usage.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _pieces(text: str) -> list[str]:
    return [text[at : at + _CHUNK_CHARS] for at in range(0, len(text), _CHUNK_CHARS)]


def _error(refusal: Refusal) -> dict[str, Any]:
    kind = "server_error" if refusal.retryable else "invalid_request_error"
    return {"error": {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}}
