"""Each API as raw bytes: what the fault table needs to ask in it and to read its answers, without an SDK's retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tests.gateway.raw import Answer

Texts = tuple[str, ...]
"""A conversation: user, assistant, user, ..."""


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """One API. ``first_event`` and ``terminal`` are bytes of the first and the last event of a streamed reply,
    ``failed`` of an error event; ``overflow`` is a mark of its own context overflow."""

    dialect: str
    path: str
    stream_path: str
    body: Callable[[Texts, bool], dict[str, Any]]
    key: Callable[[str], dict[str, str]]
    text: Callable[[Any], str]
    delta: Callable[[Any], str]
    first_event: bytes
    terminal: bytes
    failed: bytes
    overflow: bytes

    def request(self, texts: Texts, stream: bool) -> tuple[str, bytes]:
        """Path and body."""
        return self.stream_path if stream else self.path, msgspec.json.encode(self.body(texts, stream))

    def said(self, answer: Answer) -> str:
        """The text of a complete reply."""
        if not answer.headers["content-type"].startswith("text/event-stream"):
            return self.text(answer.json())
        assert self.terminal in answer.body, answer.body
        return "".join(self.delta(event) for event in events(answer.body))


def events(body: bytes) -> list[Any]:
    """The JSON payloads of a stream."""
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [msgspec.json.decode(line) for line in lines if line != b"[DONE]"]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _roles(texts: Texts, names: tuple[str, str] = ("user", "assistant")) -> list[tuple[str, str]]:
    return [(names[index % 2], text) for index, text in enumerate(texts)]


def _chat_body(texts: Texts, stream: bool) -> dict[str, Any]:
    return {"model": "m", "stream": stream, "messages": [{"role": r, "content": t} for r, t in _roles(texts)]}


def _responses_body(texts: Texts, stream: bool) -> dict[str, Any]:
    kinds = {"user": "input_text", "assistant": "output_text"}
    items = [{"type": "message", "role": r, "content": [{"type": kinds[r], "text": t}]} for r, t in _roles(texts)]
    return {"model": "m", "stream": stream, "store": False, "input": items}


def _messages_body(texts: Texts, stream: bool) -> dict[str, Any]:
    messages = [{"role": r, "content": t} for r, t in _roles(texts)]
    return {"model": "m", "stream": stream, "max_tokens": 1024, "messages": messages}


def _google_body(texts: Texts, stream: bool) -> dict[str, Any]:
    return {"contents": [{"role": r, "parts": [{"text": t}]} for r, t in _roles(texts, ("user", "model"))]}


def _google_text(reply: Any) -> str:
    parts = reply["candidates"][0]["content"].get("parts", ()) if reply.get("candidates") else ()
    return "".join(part.get("text", "") for part in parts)


def _has(value: Mapping[str, Any], kind: str) -> bool:
    return bool(value.get("type") == kind)


CHAT = Driver(
    dialect="openai_chat",
    path="/v1/chat/completions",
    stream_path="/v1/chat/completions",
    body=_chat_body,
    key=bearer,
    text=lambda reply: str(reply["choices"][0]["message"]["content"]),
    delta=lambda event: "".join(choice["delta"].get("content") or "" for choice in event["choices"]),
    first_event=b'"role":"assistant"',
    terminal=b"data: [DONE]\n\n",
    failed=b'data: {"error":',
    overflow=b'"code":"context_length_exceeded"',
)
RESPONSES = Driver(
    dialect="openai_responses",
    path="/v1/responses",
    stream_path="/v1/responses",
    body=_responses_body,
    key=bearer,
    text=lambda reply: str(reply["output"][-1]["content"][0]["text"]),
    delta=lambda event: event["delta"] if _has(event, "response.output_text.delta") else "",
    first_event=b"event: response.created",
    terminal=b"event: response.completed",
    failed=b"event: response.failed",
    overflow=b'"code":"context_length_exceeded"',
)
MESSAGES = Driver(
    dialect="anthropic",
    path="/v1/messages",
    stream_path="/v1/messages",
    body=_messages_body,
    key=lambda key: {"x-api-key": key, "anthropic-version": "2023-06-01"},
    text=lambda reply: str(reply["content"][-1]["text"]),
    delta=lambda event: event["delta"].get("text", "") if _has(event, "content_block_delta") else "",
    first_event=b"event: message_start",
    terminal=b"event: message_stop",
    failed=b"event: error",
    overflow=b"prompt is too long",
)
GOOGLE = Driver(
    dialect="google",
    path="/v1beta/models/policy:generateContent",
    stream_path="/v1beta/models/policy:streamGenerateContent?alt=sse",
    body=_google_body,
    key=lambda key: {"x-goog-api-key": key},
    text=_google_text,
    delta=_google_text,
    first_event=b'data: {"candidates"',
    terminal=b'"finishReason":"STOP"',
    failed=b'data: {"error":',
    overflow=b"exceeds the maximum number of tokens",
)

DRIVERS = (CHAT, RESPONSES, MESSAGES, GOOGLE)
