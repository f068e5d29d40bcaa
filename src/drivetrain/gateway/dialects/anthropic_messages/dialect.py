"""Anthropic Messages: ``POST /v1/messages``, JSON and SSE, exact token counts, models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from drivetrain.gateway.dialects.anthropic_messages import reply as wire_reply
from drivetrain.gateway.dialects.anthropic_messages.request import read_request
from drivetrain.gateway.dialects.base import Action, Memory, Route, ServedModel, WireRequest
from drivetrain.gateway.patience import KeepAliveForm
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.sse import comment
from drivetrain.messages import Call, Reply

_encode = msgspec.json.encode
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_COUNT = "/v1/messages/count_tokens"


class AnthropicMessages:
    """The Messages dialect (public API reference of Anthropic, version 2023-06-01)."""

    name = "anthropic"
    routes: tuple[Route, ...] = (
        Route("POST", "/v1/messages", "generate"),
        Route("POST", _COUNT, "count"),
        Route("GET", "/v1/models", "models"),
        Route("GET", "/v1/models/{model}", "model"),
    )

    def claims(self, path: str, headers: Mapping[str, str]) -> bool:
        """Its own paths, and whatever names a version of this API: the model routes are shared with OpenAI's."""
        return path.startswith("/v1/messages") or "anthropic-version" in headers

    def decode(self, request: WireRequest, memory: Memory) -> Call:
        """Read a request; see :class:`~drivetrain.gateway.dialects.base.Dialect`."""
        return read_request(
            request.body,
            memory,
            dialect=self.name,
            headers=request.headers,
            counting=request.path.rstrip("/") == _COUNT,
        )

    def encode(self, reply: Reply, call: Call) -> bytes:
        """A ``message`` object."""
        del call
        return wire_reply.message(reply)

    def opening(self, reply_id: str, call: Call) -> Sequence[bytes]:
        """Nothing: ``message_start`` carries the true number of input tokens, which is known with the reply.

        Pings before it are no matter: the official SDKs drop them before they look at the order of events.
        """
        del reply_id, call
        return ()

    def events(self, reply: Reply, call: Call, *, opened: bool) -> Sequence[bytes]:
        """The stream of a ``message``; see :mod:`drivetrain.gateway.dialects.anthropic_messages.reply`."""
        del call, opened
        return list(wire_reply.events(reply))

    def keep_alive(self, form: KeepAliveForm, reply_id: str, call: Call) -> bytes:
        """A ``ping`` event, the API's own form; a comment or a bare newline if the harness wants it."""
        del reply_id, call
        if form == "comment":
            return comment()
        return b"\n" if form == "newline" else wire_reply.event("ping")

    def encode_count(self, tokens: int) -> bytes:
        """``{"input_tokens": ...}``."""
        return _encode({"input_tokens": tokens})

    def encode_models(self, model: ServedModel, action: Action) -> bytes:
        """A page with one ``model`` object, or the object."""
        one: dict[str, Any] = {
            "type": "model",
            "id": model.name,
            "display_name": model.name,
            "created_at": datetime.fromtimestamp(model.created, UTC),
            "lifecycle": "active",
            "max_input_tokens": model.context_length,
            "max_tokens": model.max_output_tokens,
        }
        page = {"data": [one], "has_more": False, "first_id": model.name, "last_id": model.name}
        return _encode(page if action == "models" else one)

    def error(self, refusal: Refusal) -> bytes:
        """``{"type": "error", "error": {...}}`` with the API's own type for the status."""
        return _encode(_error(refusal, _ERROR_TYPES.get(refusal.status, "invalid_request_error")))

    def error_events(self, refusal: Refusal, reply_id: str, call: Call) -> Sequence[bytes]:
        """One ``error`` event and no ``message_stop``.

        A failure that may pass is an ``overloaded_error``: behind status 200 the type is all a client can go by.
        """
        del reply_id, call
        kind = _ERROR_TYPES.get(refusal.status, "invalid_request_error")
        fields = _error(refusal, "overloaded_error" if refusal.status >= 500 else kind)
        return [wire_reply.event(fields.pop("type"), **fields)]


def _error(refusal: Refusal, kind: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": _message(refusal)}, "request_id": None}


def _message(refusal: Refusal) -> str:
    """The API's own words for a context overflow: Claude Code compacts when it reads them (harnesses.md section 7)."""
    if refusal.code == "context_length_exceeded" and refusal.tokens is not None:
        prompt, limit = refusal.tokens
        return f"prompt is too long: {prompt} tokens > {limit} maximum"
    return str(refusal)
