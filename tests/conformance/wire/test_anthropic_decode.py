"""Anthropic requests: what the policy reads of every block, what is offered, recorded and refused."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
import pytest

from drivetrain.gateway.dialects.anthropic_messages.dialect import AnthropicMessages
from drivetrain.gateway.dialects.arguments import UNPARSED, arguments_of, input_json
from drivetrain.gateway.dialects.base import WireRequest
from drivetrain.gateway.memo import MessageMemo
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, Message, ToolCall, ToolSpec
from drivetrain.trace.keys import message_key

CALL = {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "ls"}}
PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


class FakeMemory(msgspec.Struct):
    memo: MessageMemo
    images: Literal["refuse", "placeholder"] = "refuse"

    def conversation(self, reply_id: str) -> None:
        raise AssertionError(f"nobody asks for {reply_id}")


def memory(images: Literal["refuse", "placeholder"] = "refuse") -> FakeMemory:
    return FakeMemory(MessageMemo(), images)


def decode(
    *messages: Any, known: FakeMemory | None = None, path: str = "/v1/messages", headers: Any = None, **fields: Any
) -> Call:
    body = {"model": "m", "max_tokens": 64, "messages": list(messages), **fields}
    raw = json.dumps({name: value for name, value in body.items() if value is not ...}).encode()
    request = WireRequest(body=raw, path=path, headers=headers or {})
    return AnthropicMessages().decode(request, known or memory())


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def result(content: Any = ..., id_: str = "call_1", **more: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": id_, **more}
    return block if content is ... else {**block, "content": content}


def test_system_as_text_and_as_blocks() -> None:
    cached = text("two", cache_control={"type": "ephemeral"})
    plain = decode(user(text("hi")), system="one\ntwo")
    blocks = decode(user(text("hi")), system=[text("one"), cached])
    assert plain.messages == blocks.messages == (Message("system", "one\ntwo"), Message("user", "hi"))
    for empty in ("", [], None):
        assert decode(user(text("hi")), system=empty).messages == (Message("user", "hi"),)


def test_system_role_inside_messages() -> None:
    call = decode({"role": "user", "content": "hi"}, {"role": "system", "content": [text("the date is"), text("x")]})
    assert call.messages == (Message("user", "hi"), Message("system", "the date is\nx"))


def test_assistant_blocks() -> None:
    thinking = {"type": "thinking", "thinking": "why", "signature": "sig"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    other = {**CALL, "id": "call_2", "input": {"b": 1, "a": 5000.0}}
    (message,) = decode(assistant(thinking, hidden, text("I "), text("look"), CALL, other)).messages
    assert message.content == "I look"
    assert message.reasoning == "why"
    assert message.tool_calls == (
        ToolCall("call_1", "bash", '{"command": "ls"}'),
        ToolCall("call_2", "bash", '{"b": 1, "a": 5000.0}'),
    )


def test_text_moves_behind_the_results_wherever_it_stands() -> None:
    blocks = [text("before"), result("one"), text("between"), result([text("two"), text("three")], "call_2")]
    assert decode(user(*blocks, text("after"))).messages == (
        Message("tool", "one", tool_call_id="call_1"),
        Message("tool", "two\nthree", tool_call_id="call_2"),
        Message("user", "before\nbetween\nafter"),
    )


def test_a_message_without_blocks_is_an_empty_one() -> None:
    assert decode(user(), assistant()).messages == (Message("user"), Message("assistant"))


@pytest.mark.parametrize(
    ("said", "is_error", "read"),
    [
        ("no such file", True, "Error: no such file"),
        ("no such file", False, "no such file"),
        ("no such file", None, "no such file"),
        (
            "<tool_use_error>String not found</tool_use_error>",
            True,
            "<tool_use_error>String not found</tool_use_error>",
        ),
        ("\nERROR 5\nx", True, "\nERROR 5\nx"),
        ("Exit code 1\nan error", True, "Error: Exit code 1\nan error"),
        ("", True, "Error: "),
    ],
)
def test_a_failed_result_says_so_once(said: str, is_error: bool | None, read: str) -> None:
    (message,) = decode(user(result(said, is_error=is_error))).messages
    assert message == Message("tool", read, tool_call_id="call_1")


def test_result_without_content() -> None:
    assert decode(user(result())).messages == (Message("tool", tool_call_id="call_1"),)


def test_harmless_blocks_become_text() -> None:
    plain = {"type": "document", "title": "notes", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}
    parts = {"type": "document", "source": {"type": "content", "content": [text("a"), text("b")]}}
    found = {"type": "search_result", "title": "page", "source": "http://x", "content": [text("c")]}
    reference = {"type": "tool_reference", "tool_name": "WebFetch"}
    (tool, said) = decode(user(result([reference]), plain, parts, found)).messages
    assert tool.content == "[The tool WebFetch is available now.]"
    assert said.content == "notes\nd\na\nb\npage\nhttp://x\nc"


PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}


@pytest.mark.parametrize("block", [PIXEL, PDF])
def test_pictures_follow_the_session(block: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=r"messages\[1\]\.content\[0\]\.content\[1\]: a block of type") as caught:
        decode(user(text("x")), user(result([text("y"), block])))
    assert (caught.value.code, caught.value.status) == ("unsupported", 400)
    (message,) = decode(user(result([text("y"), block])), known=memory("placeholder")).messages
    assert message.content == f"y\n[{block['type']} left out: this model reads text only]"


@pytest.mark.parametrize(
    ("message", "code", "place"),
    [
        (assistant({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}), "unsupported", "[0]"),
        (
            assistant(text("x"), {"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "e"}}),
            "unsupported",
            "[1]",
        ),
        (user({"type": "container_upload", "file_id": "f"}), "unsupported", "[0]"),
        (user({"type": "compaction", "content": "x"}), "unsupported", "[0]"),
        (user(CALL), "invalid_request", "[0]"),
        (assistant(result("x")), "invalid_request", "[0]"),
        (user(result([result("x")])), "invalid_request", "[0].content[0]"),
        (user({"type": "tool_result", "content": "x"}), "invalid_request", "[0].tool_use_id"),
        (assistant({**CALL, "input": "ls"}), "invalid_request", "[0].input"),
        (assistant({**CALL, "input": [1]}), "invalid_request", "[0].input"),
        (assistant({"type": "tool_use", "id": "x", "input": {}}), "invalid_request", "[0].name"),
        (user({"type": "text"}), "invalid_request", "[0].text"),
    ],
)
def test_blocks_that_are_refused_name_their_place(message: dict[str, Any], code: str, place: str) -> None:
    with pytest.raises(Refusal) as caught:
        decode(user(text("first")), message)
    assert caught.value.code == code
    assert caught.value.param == f"messages[1].content{place}"


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": "x"},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user"}]},
        {"model": ...},
        {"max_tokens": ...},
        {"max_tokens": 0},
        {"system": 7},
        {"tools": [{"description": "nameless"}]},
    ],
)
def test_malformed_requests(fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        decode(**{"messages": [{"role": "user", "content": "x"}], **fields})
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"model":"m","messages":[NaN]}'])
def test_bodies_that_are_no_json(body: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        AnthropicMessages().decode(WireRequest(body=body, path="/v1/messages"), memory())
    assert caught.value.code == "invalid_request"


def test_invalid_utf8_inside_a_call() -> None:
    body = b'{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a",'
    body += b'"name":"b","input":{"c":"\xff"}}]}]}'
    with pytest.raises(Refusal, match="not valid JSON"):
        AnthropicMessages().decode(WireRequest(body=body, path="/v1/messages"), memory())


def test_half_an_emoji_is_read_as_a_replacement() -> None:
    """A JavaScript harness that cuts a text writes half a surrogate pair; the whole request must not fail for it."""
    cut = assistant({**CALL, "input": {"command": "\ud83d"}})
    (tool, said, call) = decode(user(result("smile \ud83d"), text("\\ud83d \U0001f600")), cut).messages
    assert tool.content == "smile \ufffd"
    assert said.content == "\\ud83d \U0001f600"
    assert json.loads(call.tool_calls[0].arguments) == {"command": "\ufffd"}


def test_tools_offered_dropped_and_deferred() -> None:
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}
    tools = [
        {"name": "Bash", "description": "run", "input_schema": schema, "cache_control": {"type": "ephemeral"}},
        {"type": "custom", "name": "Edit", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
        {"name": "DeferredToolPlaceholder", "input_schema": {"type": "object"}, "defer_loading": True},
        {"name": "WebFetch", "input_schema": {"type": "object"}, "defer_loading": True},
    ]
    call = decode(user(text("x")), tools=tools)
    assert call.tools == (ToolSpec("Bash", "run", schema), ToolSpec("Edit", "", {"type": "object"}))
    assert call.requested.extra == {
        "dropped_tools": ["web_search_20250305:web_search", "bash_20250124:bash", "mcp_toolset"],
        "deferred_tools": ["DeferredToolPlaceholder", "WebFetch"],
    }
    named = user(result([{"type": "tool_reference", "tool_name": "WebFetch"}]))
    later = decode(user(text('"tool_name": "DeferredToolPlaceholder", "tool_reference"')), named, tools=tools)
    assert [tool.name for tool in later.tools] == ["Bash", "Edit", "WebFetch"]
    assert later.requested.extra["deferred_tools"] == ["DeferredToolPlaceholder"]


def test_what_was_asked_for_is_recorded() -> None:
    call = decode(
        user(text("x")),
        max_tokens=32000,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stop_sequences=["END"],
        stream=True,
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        thinking={"type": "adaptive"},
        context_management={"edits": []},
        output_config={"effort": "medium", "format": {"type": "json_schema", "schema": {}}},
        metadata={"user_id": "u"},
        service_tier="auto",
        container="c",
        mcp_servers=[{"type": "url", "name": "wiki", "url": "http://x", "authorization_token": "s3cret"}],
        a_field_of_tomorrow={"x": 1},
        headers={"anthropic-beta": "one, two"},
    )
    asked = call.requested
    assert (call.stream, asked.temperature, asked.top_p, asked.max_tokens) == (True, 0.5, 0.9, 32000)
    assert asked.stop == ("END",)
    assert asked.extra == {
        "top_k": 40,
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "response_format": {"type": "json_schema", "schema": {}},
        "reasoning_effort": "medium",
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": []},
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "container": "c",
        "mcp_servers": ["wiki"],
        "betas": ["one", "two"],
    }
    assert "s3cret" not in repr(call)


def test_a_count_needs_no_max_tokens() -> None:
    call = decode(user(text("x")), max_tokens=..., path="/v1/messages/count_tokens")
    assert call.requested.max_tokens is None


def test_known_messages_are_not_decoded_again() -> None:
    known = memory()
    history = [user(text("a")), assistant(CALL), user(result("x"), text("y"))]
    first = decode(*history, system=[text("s")], known=known)
    assert known.memo.decoded == 4
    again = decode(*history, user(text("more")), system=[text("s")], known=known)
    assert known.memo.decoded == 5
    assert again.messages[:-1] == first.messages
    assert again.keys == tuple(message_key(message) for message in again.messages)


@pytest.mark.parametrize("empty", ["", [], None])
def test_an_empty_system_is_remembered_too(empty: Any) -> None:
    known = memory()
    decode(user(text("a")), system=empty, known=known)
    decode(user(text("a")), system=empty, known=known)
    assert known.memo.decoded == 2


DEEP = '{"a": ' + "[" * 300 + "]" * 300 + "}"


@pytest.mark.parametrize("arguments", ["ls -l", '"ls"', "[1]", "", "{", '{"a": NaN}', DEEP])
def test_arguments_that_are_no_object_travel_wrapped_and_come_back(arguments: str) -> None:
    served = json.loads(input_json(arguments))
    assert served == {UNPARSED: arguments}
    (message,) = decode(assistant({**CALL, "input": served})).messages
    assert message.tool_calls[0].arguments == arguments


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 400 + "]" * 400])
def test_an_input_that_python_cannot_read_is_kept_as_text(value: str) -> None:
    raw = '{"unparsed_arguments": ' + value + "}"
    assert arguments_of(raw.encode(), "here") == raw


@pytest.mark.parametrize("arguments", ["{}", '{"a":1}', '{\n "b": "\\u00e9", "a": 5000.0}', '{"a": 1, "a": 2}'])
def test_objects_travel_as_sampled(arguments: str) -> None:
    assert input_json(arguments) == arguments


@pytest.mark.parametrize(
    ("path", "headers", "mine"),
    [
        ("/v1/messages", {}, True),
        ("/v1/messages/batches", {}, True),
        ("/v1/models", {"anthropic-version": "2023-06-01"}, True),
        ("/v1/models", {}, False),
        ("/v1/chat/completions", {}, False),
    ],
)
def test_claims(path: str, headers: dict[str, str], mine: bool) -> None:
    assert AnthropicMessages().claims(path, headers) is mine
