"""Google ``generateContent``: JSON, SSE (``alt=sse``) and the JSON array a stream is without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from drivetrain.gateway.dialects.arguments import input_json
from drivetrain.gateway.dialects.base import Action, Memory, Route, ServedModel, WireRequest
from drivetrain.gateway.dialects.google_genai.request import read_fields, read_messages, read_sampling, read_tools
from drivetrain.gateway.dialects.pieces import pieces
from drivetrain.gateway.patience import KeepAliveForm
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.sse import comment, data_event
from drivetrain.messages import Call, Reply, ToolCall

_encode = msgspec.json.encode
_STREAM = ":streamGenerateContent"
_METHODS = (":generateContent", _STREAM, ":countTokens")
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "FAILED_PRECONDITION",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_DETAIL = "type.googleapis.com/google.rpc."


class Google:
    """The Gemini API dialect (public reference of ``models.generateContent``, ``v1beta``; also under ``v1``)."""

    name = "google"
    routes: tuple[Route, ...] = (
        *(
            Route("POST", f"/{version}/models/{{model:[^:]+}}{method}", "count" if "count" in method else "generate")
            for version in ("v1beta", "v1")
            for method in _METHODS
        ),
        Route("GET", "/v1beta/models", "models"),
        Route("GET", "/v1beta/models/{model:.+}", "model"),
        Route("GET", "/v1/models", "models"),
        Route("GET", "/v1/models/{model}", "model"),
        Route("GET", "/v1/models/{model:.+/.+}", "model"),
    )

    def claims(self, path: str, headers: Mapping[str, str]) -> bool:
        """Its version prefix, its methods, or its own key header."""
        return path.startswith("/v1beta/") or path.endswith(_METHODS) or "x-goog-api-key" in headers

    def decode(self, request: WireRequest, memory: Memory) -> Call:
        """Read a request; see :class:`~drivetrain.gateway.dialects.base.Dialect`."""
        try:
            fields = read_fields(request.body)
            messages, keys = read_messages(fields, memory)
            tools, dropped = read_tools(fields)
            requested = read_sampling(fields, dropped)
        except msgspec.ValidationError as error:
            raise Refusal("invalid_request", f"the request body is not a generateContent request: {error}.") from error
        except msgspec.DecodeError as error:
            raise Refusal("invalid_request", f"the request body is not valid JSON: {error}.") from error
        except RecursionError as error:
            raise Refusal("invalid_request", "the request body is nested too deeply.") from error
        streamed = request.path.endswith(_STREAM)
        events = request.query.get("alt") == "sse"
        return Call(
            dialect=self.name,
            model=request.parts.get("model", ""),
            messages=tuple(messages),
            keys=tuple(keys),
            tools=tools,
            stream=streamed and events,
            requested=requested,
            wire={"array": True} if streamed and not events else {},
        )

    def encode(self, reply: Reply, call: Call) -> bytes:
        """A ``GenerateContentResponse``; a list of them where a stream was asked for without ``alt=sse``."""
        if call.wire.get("array"):
            return b"[" + b",\r\n".join(_chunks(reply)) + b"]"
        thought = [{"text": reply.reasoning, "thought": True}] if reply.reasoning else []
        text = [{"text": reply.content}] if reply.content else []
        return _response(reply, _parts(thought, text, reply), last=True)

    def opening(self, reply_id: str, call: Call) -> Sequence[bytes]:
        """Nothing: the first chunk may come late."""
        del reply_id, call
        return ()

    def keep_alive(self, form: KeepAliveForm, reply_id: str, call: Call) -> bytes:
        """A bare newline: Gemini CLI drops the event that follows a comment line (harnesses.md section 1.5)."""
        if form == "event":
            return data_event(_encode({**_chunk([{"text": ""}]), "modelVersion": call.model, "responseId": reply_id}))
        return comment() if form == "comment" else b"\n"

    def events(self, reply: Reply, call: Call, *, opened: bool) -> Sequence[bytes]:
        """Chunks of thought, text and calls; the last one has the finish reason and the token counts."""
        del call, opened
        return [data_event(chunk) for chunk in _chunks(reply)]

    def encode_count(self, tokens: int) -> bytes:
        """A ``CountTokensResponse``."""
        return _encode({"totalTokens": tokens})

    def encode_models(self, model: ServedModel, action: Action) -> bytes:
        """A list of one ``Model``, or the model."""
        one = {
            "name": f"models/{model.name}",
            "version": "1",
            "displayName": model.name,
            "inputTokenLimit": model.context_length,
            "outputTokenLimit": model.max_output_tokens,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }
        return _encode({"models": [one]} if action == "models" else one)

    def error(self, refusal: Refusal) -> bytes:
        """``{"error": {"code", "message", "status", "details"}}``, the details as ``google.rpc`` messages."""
        return _encode(_error(refusal))

    def error_events(self, refusal: Refusal, reply_id: str, call: Call) -> Sequence[bytes]:
        """One event with the error: the SDK raises it, and nothing has a finish reason."""
        del reply_id, call
        return [data_event(_encode(_error(refusal)))]


def _chunks(reply: Reply) -> list[bytes]:
    """The reply in pieces; the finish reason rides on the last one, since clients drop chunks without content."""
    thought = [{"text": piece, "thought": True} for piece in pieces(reply.reasoning)]
    parts = _parts(thought, [{"text": piece} for piece in pieces(reply.content)], reply)
    return [_response(reply, [part], last=part is parts[-1]) for part in parts]


def _parts(thought: list[dict[str, Any]], text: list[dict[str, Any]], reply: Reply) -> list[dict[str, Any]]:
    """Never empty: a content without parts counts as no answer."""
    calls = [{"functionCall": _function_call(call)} for call in reply.tool_calls]
    return [*thought, *text, *calls] or [{"text": ""}]


def _response(reply: Reply, parts: list[dict[str, Any]], *, last: bool) -> bytes:
    body = _chunk(parts)
    if last:
        prompt, sampled = reply.usage.prompt_tokens, reply.usage.completion_tokens
        body["candidates"][0]["finishReason"] = "MAX_TOKENS" if reply.finish_reason == "length" else "STOP"
        body["usageMetadata"] = {
            "promptTokenCount": prompt,
            "candidatesTokenCount": sampled,
            "totalTokenCount": prompt + sampled,
        }
    return _encode({**body, "modelVersion": reply.model, "responseId": reply.id})


def _chunk(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": parts, "role": "model"}, "index": 0}]}


def _function_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "args": _args(call.arguments)}


def _args(text: str) -> msgspec.Raw:
    """Arguments as an object, numbers and key order as sampled; white space goes, since it may hold a newline."""
    return msgspec.Raw(msgspec.json.format(input_json(text).encode(), indent=-1))


def _error(refusal: Refusal) -> dict[str, Any]:
    details: list[dict[str, Any]] = [
        {"@type": _DETAIL + "ErrorInfo", "reason": refusal.code.upper(), "domain": "drivetrain"}
    ]
    if refusal.param:
        violation = {"field": refusal.param, "description": str(refusal)}
        details.append({"@type": _DETAIL + "BadRequest", "fieldViolations": [violation]})
    if refusal.retry_after_s is not None:
        details.append({"@type": _DETAIL + "RetryInfo", "retryDelay": f"{refusal.retry_after_s:g}s"})
    error = {
        "code": refusal.status,
        "message": _message(refusal),
        "status": _STATUS.get(refusal.status, "INTERNAL"),
        "details": details,
    }
    return {"error": error}


def _message(refusal: Refusal) -> str:
    """A context overflow in the API's own words, by which clients know it."""
    if refusal.tokens is None:
        return str(refusal)
    used, most = refusal.tokens
    return f"The input token count ({used}) exceeds the maximum number of tokens allowed ({most})."
