"""The event stream of a reply against the public streaming documents and the official SDK's types and accumulator."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import msgspec
import pytest
from anthropic.types import (
    Message,
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawContentBlockStopEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStopEvent,
)
from anthropic.types.shared import ErrorResponse
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from drivetrain.gateway.dialects.anthropic_messages.dialect import AnthropicMessages
from drivetrain.gateway.dialects.base import ServedModel
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, Reply, ToolCall, Usage

DIALECT = AnthropicMessages()
CALL = Call("anthropic", "m", ())
EVENTS: dict[str, type[BaseModel]] = {
    "message_start": RawMessageStartEvent,
    "content_block_start": RawContentBlockStartEvent,
    "content_block_delta": RawContentBlockDeltaEvent,
    "content_block_stop": RawContentBlockStopEvent,
    "message_delta": RawMessageDeltaEvent,
    "message_stop": RawMessageStopEvent,
}

BLOCK = {
    "thinking": r"<thinking(thinking_delta )+signature_delta >",
    "text": r"<text(text_delta )+>",
    "tool_use": r"<tool_use(input_json_delta )+>",
}
GRAMMAR = re.compile(
    rf"message_start (ping )*({BLOCK['thinking']})?({BLOCK['text']})?({BLOCK['tool_use']})*message_delta message_stop "
)
"""From the public streaming documents: one start, whole blocks one after the other, one delta, one stop; blocks in the
order thinking, text, calls; a thinking block ends with its signature."""


def reply(content: str = "", reasoning: str = "", *calls: ToolCall, finish: Any = "stop") -> Reply:
    return Reply("r1", "policy", 1_700_000_000, content, reasoning, calls, finish, Usage(123, 45))


def parse(raw: bytes) -> list[dict[str, Any]]:
    """Framed events; each has exactly a name and one line of data, and the name is the data's type."""
    events = []
    for frame in raw.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        events.append(body)
    return events


def stream(one: Reply) -> bytes:
    return b"".join(DIALECT.events(one, CALL, opened=False))


def spell(events: list[dict[str, Any]]) -> str:
    """Events as a sentence of the grammar."""
    words = {"content_block_start": "<{content_block[type]}", "content_block_delta": "{delta[type]} "}
    return "".join(
        ">" if event["type"] == "content_block_stop" else words.get(event["type"], "{type} ").format(**event)
        for event in events
    )


def strict(model: type[BaseModel], data: Any) -> BaseModel:
    """Validate and make sure that the SDK's type has a place for every field."""
    built = model.model_validate(data)
    assert built.model_dump(mode="json", exclude_unset=True) == data
    _no_extras(built)
    return built


def _no_extras(value: Any) -> None:
    if isinstance(value, BaseModel):
        assert not value.model_extra
        for name in type(value).model_fields:
            _no_extras(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            _no_extras(item)


BASH = ToolCall("call_00000000t0001c00", "bash", '{"command": "ls -l", "note": "' + "x" * 200 + '"}')
LS = ToolCall("call_00000000t0001c01", "ls", "{}")
REPLIES = [
    reply("hello"),
    reply("text " * 100, "thought " * 100),
    reply("", "only thought"),
    reply("", "", BASH, finish="tool_calls"),
    reply("Let me look.", "why", BASH, LS, finish="tool_calls"),
    reply("cut", finish="length"),
    reply(),
    reply("\n", "", ToolCall("call_x", "bash", "no object"), finish="tool_calls"),
]


@pytest.mark.parametrize("one", REPLIES)
def test_events_follow_the_grammar_and_the_types(one: Reply) -> None:
    events = parse(stream(one))
    assert GRAMMAR.fullmatch(spell(events)), spell(events)
    for event in events:
        strict(EVENTS[event["type"]], event)
    opened = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert all(not block.get(field) for block in opened for field in ("text", "thinking", "signature", "input"))
    indexes = [event["index"] for event in events if event["type"] == "content_block_start"]
    assert indexes == list(range(len(indexes)))
    current = -1
    for event in events:
        current += event["type"] == "content_block_start"
        assert event.get("index", current) == current


@pytest.mark.parametrize("one", REPLIES)
def test_true_usage_in_the_first_event_and_cumulative_in_the_last(one: Reply) -> None:
    events = parse(stream(one))
    start, end = events[0]["message"], events[-2]
    assert start["usage"]["input_tokens"] == 123
    assert start["stop_reason"] is None and start["content"] == []
    assert end["usage"]["input_tokens"] == 123 and end["usage"]["output_tokens"] == 45
    assert end["usage"]["cache_read_input_tokens"] == end["usage"]["cache_creation_input_tokens"] == 0
    expected = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[one.finish_reason]
    assert end["delta"] == {"stop_reason": expected, "stop_sequence": None}


@pytest.mark.parametrize("one", REPLIES)
def test_json_reply_has_the_sdk_type(one: Reply) -> None:
    built = strict(Message, json.loads(DIALECT.encode(one, CALL)))
    assert isinstance(built, Message)
    kinds = [block.type for block in built.content]
    assert kinds == [
        *["thinking"] * bool(one.reasoning),
        *["text"] * bool(one.content),
        *["tool_use"] * len(one.tool_calls),
    ]
    assert built.id == "msg_r1"
    for block in built.content:
        if block.type == "thinking":
            assert block.signature


def test_long_texts_come_in_pieces() -> None:
    one = reply("word " * 100, "", BASH, finish="tool_calls")
    deltas = [event["delta"] for event in parse(stream(one)) if event["type"] == "content_block_delta"]
    assert sum(delta["type"] == "text_delta" for delta in deltas) > 5
    assert sum(delta["type"] == "input_json_delta" for delta in deltas) > 2


def test_encoding_twice_gives_the_same_bytes() -> None:
    one = REPLIES[4]
    assert stream(one) == stream(one) == b"".join(DIALECT.events(one, CALL, opened=True))
    assert DIALECT.encode(one, CALL) == DIALECT.encode(one, CALL)
    other = msgspec.structs.replace(one, id="r2")
    assert parse(stream(one))[3] != parse(stream(other))[3]  # the signature belongs to the reply


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
objects = st.builds(
    lambda value, escaped, indent: json.dumps(value, ensure_ascii=escaped, indent=indent),
    st.dictionaries(st.text(max_size=8), json_values, max_size=4),
    st.booleans(),
    st.sampled_from([None, 1]),
)
odd = st.sampled_from(
    ['"x"', "[1]", "oops", "", '{"a": "\\ud83d"}', '{"a": "\\ud83d\\ude00"}', '{"\\udc00": "\\\\ud83d"}']
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    arguments = draw(st.lists(objects | odd, max_size=3))
    calls = [ToolCall(f"call_{at}", f"tool_{at}", text) for at, text in enumerate(arguments)]
    finish = draw(st.sampled_from(["length", "tool_calls" if calls else "stop"]))
    return reply(draw(texts), draw(texts), *calls, finish=finish)


class Played(httpx2.BaseTransport):
    """Answers every request with the bytes it was given last."""

    body = b""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        kind = "text/event-stream" if self.body.startswith(b"event") else "application/json"
        return httpx2.Response(200, headers={"content-type": kind}, content=self.body)


PLAYED = Played()


@pytest.fixture(scope="module")
def client() -> Iterator[anthropic.Anthropic]:
    http = anthropic.DefaultHttpxClient(transport=PLAYED)
    with anthropic.Anthropic(api_key="k", base_url="http://played", max_retries=0, http_client=http) as made:
        yield made


@settings(max_examples=60, deadline=None)
@given(one=replies(), ping_at=st.integers(0, 3))
def test_what_the_sdk_accumulates_is_the_json_reply(client: anthropic.Anthropic, one: Reply, ping_at: int) -> None:
    events = list(DIALECT.events(one, CALL, opened=True))
    events.insert(ping_at, DIALECT.keep_alive("default", one.id, CALL))
    asked: Any = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    PLAYED.body = b"".join(events)
    with client.messages.stream(**asked) as streamed:
        accumulated = streamed.get_final_message()
    PLAYED.body = DIALECT.encode(one, CALL)
    whole = client.messages.create(**asked)
    assert accumulated.to_dict(exclude_none=True) == whole.to_dict(exclude_none=True)
    for call, block in zip(one.tool_calls, [b for b in whole.content if b.type == "tool_use"], strict=True):
        assert (block.id, block.name) == (call.id, call.name)
    assert "".join(b.text for b in whole.content if b.type == "text") == one.content
    assert "".join(b.thinking for b in whole.content if b.type == "thinking") == one.reasoning


def test_nothing_opens_a_stream_but_keep_alives() -> None:
    assert DIALECT.opening("r1", CALL) == ()
    assert DIALECT.keep_alive("default", "r1", CALL) == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert DIALECT.keep_alive("event", "r1", CALL) == DIALECT.keep_alive("default", "r1", CALL)
    assert DIALECT.keep_alive("comment", "r1", CALL) == b": keep-alive\n\n"
    assert DIALECT.keep_alive("newline", "r1", CALL) == b"\n"


@pytest.mark.parametrize(
    ("code", "kind", "in_stream"),
    [
        ("invalid_request", "invalid_request_error", "invalid_request_error"),
        ("unsupported", "invalid_request_error", "invalid_request_error"),
        ("invalid_api_key", "authentication_error", "authentication_error"),
        ("forbidden", "permission_error", "permission_error"),
        ("not_found", "not_found_error", "not_found_error"),
        ("session_sealed", "invalid_request_error", "invalid_request_error"),
        ("request_too_large", "request_too_large", "request_too_large"),
        ("rate_limited", "rate_limit_error", "rate_limit_error"),
        ("engine_refused", "invalid_request_error", "invalid_request_error"),
        ("engine_unavailable", "api_error", "overloaded_error"),
        ("engine_timeout", "timeout_error", "overloaded_error"),
        ("cancelled", "api_error", "overloaded_error"),
    ],
)
def test_error_types(code: Any, kind: str, in_stream: str) -> None:
    refusal = Refusal(code, "it failed.", fix="Try this.")
    body = json.loads(DIALECT.error(refusal))
    assert body == {"type": "error", "error": {"type": kind, "message": str(refusal)}, "request_id": None}
    if kind != "request_too_large":  # documented with its status, absent from the SDK's union
        strict(ErrorResponse, body)
    (event,) = parse(b"".join(DIALECT.error_events(refusal, "r1", CALL)))
    assert event == {**body, "error": {"type": in_stream, "message": str(refusal)}}


def test_an_overflow_is_said_in_the_words_of_the_api() -> None:
    refusal = Refusal("context_length_exceeded", "something else", tokens=(9001, 8192))
    error = json.loads(DIALECT.error(refusal))["error"]
    assert error == {"type": "invalid_request_error", "message": "prompt is too long: 9001 tokens > 8192 maximum"}


def test_models() -> None:
    model = ServedModel("policy", 8192, 1024, 1_700_000_000)
    one = json.loads(DIALECT.encode_models(model, "model"))
    built = anthropic.types.ModelInfo.model_validate(one)
    assert (built.id, built.max_input_tokens, built.max_tokens, built.created_at.year) == ("policy", 8192, 1024, 2023)
    page = json.loads(DIALECT.encode_models(model, "models"))
    assert page == {"data": [one], "has_more": False, "first_id": "policy", "last_id": "policy"}
