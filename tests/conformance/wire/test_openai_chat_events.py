"""Chat completion streams against the public API reference: order of chunks, accumulation, schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from drivetrain.gateway.dialects.openai_chat import OpenAIChat
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, Message, Reply, ToolCall, Usage

DIALECT = OpenAIChat()


def call_of(**more: Any) -> Call:
    return Call(dialect="openai_chat", model="any", messages=(Message("user", "hi"),), **more)


def reply_of(**more: Any) -> Reply:
    given: dict[str, Any] = {
        "id": "abc",
        "model": "policy",
        "created": 17,
        "content": "Hello",
        "reasoning": "",
        "tool_calls": (),
        "finish_reason": "stop",
        "usage": Usage(11, 7),
    }
    return Reply(**given | more)


def payloads(events: Any) -> list[Any]:
    """The chunks of a stream; checks its framing and that it ends with ``[DONE]``."""
    raw = b"".join(events)
    assert raw.endswith(b"\n\n")
    lines = raw.decode().removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def kinds(chunks: list[Any]) -> list[str]:
    """What each chunk says, in words."""
    found = []
    for chunk in chunks:
        if not chunk["choices"]:
            found.append("usage" if chunk["usage"] else "empty")
            continue
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        if choice["finish_reason"]:
            assert delta == {}
            found.append("finish")
        elif "role" in delta:
            found.append("role")
        elif "tool_calls" in delta:
            (one,) = delta["tool_calls"]
            found.append(f"call {one['index']}" if "id" in one else f"arguments {one['index']}")
        else:
            (name,) = delta
            found.append(name)
    return found


def test_order_of_chunks() -> None:
    """Role first; a call opens with id and name and goes on with arguments; usage, alone, just before ``[DONE]``."""
    calls = (ToolCall("a", "bash", '{"command": "ls"}'), ToolCall("b", "bash", '{\n  "command": "pwd"\n}'))
    reply = reply_of(content="Let me see.", reasoning="hm", tool_calls=calls, finish_reason="tool_calls")
    chunks = payloads(DIALECT.events(reply, call_of(stream_usage=True), opened=False))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    ChatCompletion.model_validate_json(DIALECT.encode(reply, call_of()))
    assert kinds(chunks) == [
        "role",
        "reasoning_content",
        "content",
        "call 0",
        "arguments 0",
        "call 1",
        "arguments 1",
        "finish",
        "usage",
    ]
    first = chunks[3]["choices"][0]["delta"]["tool_calls"][0]
    assert first == {"index": 0, "id": "a", "type": "function", "function": {"name": "bash", "arguments": ""}}
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["usage"] == {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-abc"}
    assert {(chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks} == {
        (17, "policy", "chat.completion.chunk")
    }


def test_no_usage_unless_asked() -> None:
    chunks = payloads(DIALECT.events(reply_of(), call_of(), opened=False))
    assert kinds(chunks) == ["role", "content", "finish"]
    assert all("usage" not in chunk for chunk in chunks)


def test_empty_reply() -> None:
    assert kinds(payloads(DIALECT.events(reply_of(content=""), call_of(), opened=False))) == ["role", "finish"]


@pytest.mark.parametrize("form", ["default", "comment", "newline", "event"])
def test_keep_alive_has_no_effect(form: Any) -> None:
    beat = DIALECT.keep_alive(form, "abc", call_of())
    if form == "event":
        chunk = json.loads(beat.removeprefix(b"data: "))
        ChatCompletionChunk.model_validate(chunk)
        assert chunk["id"] == "chatcmpl-abc"
        assert chunk["choices"] == [{"index": 0, "delta": {"content": ""}, "finish_reason": None, "logprobs": None}]
    else:
        assert b"data:" not in beat and beat.endswith(b"\n")


def test_error_event_is_no_end() -> None:
    (event,) = DIALECT.error_events(Refusal("engine_unavailable", "gone"), "abc", call_of())
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (error["message"], error["type"], error["code"]) == ("gone", "server_error", "engine_unavailable")


texts = st.text(max_size=400)
tool_calls = st.lists(
    st.builds(ToolCall, id=st.text(min_size=1, max_size=9), name=st.text(min_size=1, max_size=9), arguments=texts),
    max_size=3,
).map(tuple)
replies = st.builds(
    reply_of,
    content=texts,
    reasoning=texts,
    tool_calls=tool_calls,
    finish_reason=st.sampled_from(["stop", "length", "tool_calls"]),
)


@settings(max_examples=60, deadline=None)
@given(replies)
def test_stream_adds_up_to_the_json_reply(reply: Reply) -> None:
    chunks = payloads(DIALECT.events(reply, call_of(stream_usage=True), opened=False))
    whole = json.loads(DIALECT.encode(reply, call_of()))
    message: dict[str, Any] = {"content": "", "reasoning_content": ""}
    calls: dict[int, dict[str, Any]] = {}
    finish = None
    for chunk in chunks:
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            for name in ("content", "reasoning_content"):
                message[name] += choice["delta"].get(name) or ""
            for delta in choice["delta"].get("tool_calls", ()):
                if "id" in delta:
                    assert delta["index"] == len(calls)
                    calls[delta["index"]] = {"id": delta["id"], "name": delta["function"]["name"], "arguments": ""}
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    said = whole["choices"][0]["message"]
    assert message["content"] == (said["content"] or "")
    assert message["reasoning_content"] == said.get("reasoning_content", "")
    assert list(calls.values()) == [{"id": one["id"], **one["function"]} for one in said.get("tool_calls", ())]
    assert (finish, chunks[-1]["usage"]) == (whole["choices"][0]["finish_reason"], whole["usage"])
    assert "logprobs" not in said and "token_ids" not in json.dumps(whole)
