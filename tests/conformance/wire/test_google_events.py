"""generateContent replies, streams and requests against the public API reference."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.gateway.dialects.base import ImageRule, WireRequest
from drivetrain.gateway.dialects.google_genai.dialect import Google
from drivetrain.gateway.dialects.google_genai.request import result_text
from drivetrain.gateway.dialects.google_genai.schema import json_schema
from drivetrain.gateway.memo import MessageMemo
from drivetrain.gateway.refusal import Refusal, RefusalCode
from drivetrain.messages import Call, Message, Reply, ToolCall, Usage

DIALECT = Google()


class Memory:
    """What a dialect asks of a session."""

    def __init__(self, images: ImageRule = "refuse") -> None:
        self.memo = MessageMemo()
        self.images = images

    def conversation(self, reply_id: str) -> tuple[Message, ...] | None:
        raise AssertionError(reply_id)


def decode(body: Any, *, method: str = "generateContent", alt: str = "", memory: Memory | None = None) -> Call:
    request = WireRequest(
        body=body if isinstance(body, bytes) else msgspec.json.encode(body),
        path=f"/v1beta/models/m:{method}",
        parts={"model": "m"},
        query={"alt": alt} if alt else {},
    )
    return DIALECT.decode(request, memory or Memory())


def user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text} for text in texts]}


def call_of(**more: Any) -> Call:
    return Call(dialect="google", model="any", messages=(Message("user", "hi"),), **more)


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
    """The chunks of a stream; checks its framing: unnamed events of one line."""
    lines = b"".join(events).decode().removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def kind(part: dict[str, Any]) -> str:
    if "functionCall" in part:
        return "call"
    return "thought" if part.get("thought") else "text"


def test_order_of_chunks() -> None:
    """Thoughts, text, calls; the last chunk alone has a finish reason and the token counts."""
    calls = (ToolCall("a", "bash", '{"command": "ls"}'), ToolCall("b", "bash", '{\n  "n": 9007199254740993\n}'))
    reply = reply_of(content="Let me see.", reasoning="hm", tool_calls=calls, finish_reason="tool_calls")
    events = DIALECT.events(reply, call_of(), opened=False)
    assert b"9007199254740993" in b"".join(events)
    chunks = payloads(events)
    for chunk in chunks:
        types.GenerateContentResponse.model_validate(chunk)
    candidates = [chunk["candidates"][0] for chunk in chunks]
    assert [kind(part) for one in candidates for part in one["content"]["parts"]] == ["thought", "text", "call", "call"]
    assert [one.get("finishReason") for one in candidates] == [None, None, None, "STOP"]
    assert all((one["content"]["role"], one["index"]) == ("model", 0) for one in candidates)
    assert [chunk.get("usageMetadata") for chunk in chunks] == [
        None,
        None,
        None,
        {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18},
    ]
    assert {(chunk["responseId"], chunk["modelVersion"]) for chunk in chunks} == {("abc", "policy")}
    whole = json.loads(DIALECT.encode(reply, call_of()))
    types.GenerateContentResponse.model_validate(whole)
    parts = whole["candidates"][0]["content"]["parts"]
    assert parts[2]["functionCall"] == {"id": "a", "name": "bash", "args": {"command": "ls"}}


def test_stream_without_alt_is_one_json_array() -> None:
    call = decode({"contents": [user("hi")]}, method="streamGenerateContent")
    assert not call.stream
    reply = reply_of(content="word " * 50)
    chunks = json.loads(DIALECT.encode(reply, call))
    assert chunks == payloads(DIALECT.events(reply, call, opened=False))
    assert len(chunks) > 2
    assert decode({"contents": [user("hi")]}, method="streamGenerateContent", alt="sse").stream
    assert not decode({"contents": [user("hi")]}, alt="sse").stream


def test_empty_reply_still_has_a_part() -> None:
    """A content without parts counts as no answer, and clients drop it from their history."""
    reply = reply_of(content="", finish_reason="length")
    (chunk,) = payloads(DIALECT.events(reply, call_of(), opened=False))
    assert chunk["candidates"][0]["content"]["parts"] == [{"text": ""}]
    assert chunk["candidates"][0]["finishReason"] == "MAX_TOKENS"


@pytest.mark.parametrize("arguments", ["[1]", '"text"', "no json", '{"a": NaN}', "[" * 3000, "null"])
def test_arguments_that_are_no_object_survive_the_round_trip(arguments: str) -> None:
    reply = reply_of(tool_calls=(ToolCall("a", "bash", arguments),), finish_reason="tool_calls")
    part = json.loads(DIALECT.encode(reply, call_of()))["candidates"][0]["content"]
    assert isinstance(part["parts"][1]["functionCall"]["args"], dict)
    call = decode({"contents": [user("hi"), part]})
    assert call.messages[1].tool_calls == reply.tool_calls


@pytest.mark.parametrize("form", ["default", "comment", "newline", "event"])
def test_keep_alive_has_no_effect(form: Any) -> None:
    """A bare newline unless asked otherwise: Gemini CLI drops the event after a comment (harnesses.md section 1.5)."""
    beat = DIALECT.keep_alive(form, "abc", call_of())
    if form == "event":
        (chunk,) = payloads([beat])
        assert chunk["candidates"] == [{"content": {"parts": [{"text": ""}], "role": "model"}, "index": 0}]
        assert chunk["responseId"] == "abc"
    else:
        assert beat == {"default": b"\n", "newline": b"\n", "comment": b": keep-alive\n\n"}[form]


STATUSES: list[tuple[RefusalCode, int, str]] = [
    ("invalid_request", 400, "INVALID_ARGUMENT"),
    ("invalid_api_key", 401, "UNAUTHENTICATED"),
    ("forbidden", 403, "PERMISSION_DENIED"),
    ("not_found", 404, "NOT_FOUND"),
    ("session_sealed", 409, "FAILED_PRECONDITION"),
    ("request_too_large", 413, "INVALID_ARGUMENT"),
    ("rate_limited", 429, "RESOURCE_EXHAUSTED"),
    ("engine_unavailable", 503, "UNAVAILABLE"),
    ("engine_timeout", 504, "DEADLINE_EXCEEDED"),
]


@pytest.mark.parametrize(("code", "status", "name"), STATUSES)
def test_errors(code: RefusalCode, status: int, name: str) -> None:
    error = json.loads(DIALECT.error(Refusal(code, "no.", param="tools", retry_after_s=2)))["error"]
    assert (error["code"], error["status"], error["message"]) == (status, name, "no.")
    details = {one["@type"].rpartition(".")[2]: one for one in error["details"]}
    assert details["ErrorInfo"]["reason"] == code.upper()
    assert details["BadRequest"]["fieldViolations"] == [{"field": "tools", "description": "no."}]
    assert details["RetryInfo"]["retryDelay"] == "2s"


def test_context_overflow_in_the_words_of_the_api() -> None:
    refusal = Refusal("context_length_exceeded", "too long.", tokens=(9000, 8192))
    (event,) = DIALECT.error_events(refusal, "abc", call_of())
    (chunk,) = payloads([event])
    assert list(chunk) == ["error"]
    assert chunk["error"]["message"] == (
        "The input token count (9000) exceeds the maximum number of tokens allowed (8192)."
    )


def test_camel_and_snake_case_null_and_single_messages_read_the_same() -> None:
    camel = {
        "systemInstruction": {"parts": [{"text": "You fix."}]},
        "contents": [
            user("hi"),
            {"role": "model", "parts": [{"functionCall": {"id": "a", "name": "bash", "args": {"my_key": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"id": "a", "name": "bash", "response": {"a_b": 1}}}]},
        ],
        "generationConfig": {"maxOutputTokens": 5, "topP": 0.5},
        "tools": [{"functionDeclarations": [{"name": "bash", "parametersJsonSchema": {"my_key": 1}}]}],
    }
    snake = {
        "system_instruction": {"parts": {"text": "You fix."}, "role": None},
        "contents": [
            {"parts": {"text": "hi", "inline_data": None}},
            {"role": "model", "parts": [{"function_call": {"id": "a", "name": "bash", "args": {"my_key": 1}}}]},
            {"role": "function", "parts": [{"function_response": {"id": "a", "name": "bash", "response": {"a_b": 1}}}]},
        ],
        "generation_config": {"max_output_tokens": "5", "top_p": 0.5, "seed": None},
        "tools": {"function_declarations": {"name": "bash", "parameters_json_schema": {"my_key": 1}}},
        "cached_content": None,
    }
    left, right = decode(camel), decode(snake)
    assert left == right
    assert left.messages == (
        Message("system", "You fix."),
        Message("user", "hi"),
        Message("assistant", tool_calls=(ToolCall("a", "bash", '{"my_key":1}'),)),
        Message("tool", '{"a_b":1}', tool_call_id="a"),
    )
    assert left.tools[0].parameters == {"my_key": 1}
    assert (left.requested.max_tokens, left.requested.top_p) == (5, 0.5)


def test_wrapped_count_request() -> None:
    inner = {"model": "models/m", "contents": [user("hi")], "systemInstruction": "You fix."}
    assert decode({"generateContentRequest": inner}, method="countTokens").messages == decode(inner).messages


def test_system_and_user_of_equal_bytes_stay_apart() -> None:
    memory = Memory()
    body = {"systemInstruction": user("same"), "contents": [user("same")]}
    for _ in range(2):
        assert decode(body, memory=memory).messages == (Message("system", "same"), Message("user", "same"))
    assert memory.memo.decoded == 2


def test_contents_of_one_reply_come_together_and_are_decoded_once() -> None:
    memory = Memory()
    parts: list[dict[str, Any]] = [
        {"text": "hm", "thought": True},
        {"text": "Let me "},
        {"text": "look."},
        {"functionCall": {"id": "a", "name": "bash", "args": {}}},
    ]
    contents = [user("hi"), *({"role": "model", "parts": [part]} for part in parts), user("go", " on")]
    call = decode({"contents": contents}, memory=memory)
    whole = Message("assistant", "Let me look.", "hm", (ToolCall("a", "bash", "{}"),))
    assert call.messages == (Message("user", "hi"), whole, Message("user", "go on"))
    seen = memory.memo.decoded
    assert decode({"contents": contents}, memory=memory) == call
    assert memory.memo.decoded == seen
    assert decode({"contents": [user("hi"), {"role": "model", "parts": parts}, user("go on")]}).keys == call.keys


def test_results_without_ids_go_to_their_call_by_name_then_by_order() -> None:
    def called(name: str) -> dict[str, Any]:
        return {"functionCall": {"name": name, "args": {}}}

    def result(name: str, text: str) -> dict[str, Any]:
        return {"functionResponse": {"name": name, "response": {"output": text}}}

    turn = {"role": "model", "parts": [called("ls"), called("cat"), called("ls")]}
    results = {"role": "user", "parts": [result("cat", "1"), result("ls", "2"), result("other", "3"), {"text": "go"}]}
    call = decode({"contents": [user("hi"), turn, results]})
    first, second, third = (one.id for one in call.messages[1].tool_calls)
    assert len({first, second, third}) == 3
    assert [(one.role, one.content, one.tool_call_id) for one in call.messages[2:]] == [
        ("tool", "1", second),
        ("tool", "2", first),
        ("tool", "3", third),
        ("user", "go", ""),
    ]


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"output": "plain é"}, "plain é"),
        ({"result": "plain"}, "plain"),
        ({"output": {"b": 1, "a": [2]}}, '{"b":1,"a":[2]}'),
        ({"output": 0}, "0"),
        ({"output": ""}, ""),
        ({"error": "no such file"}, "Error: no such file"),
        ({"error": "Error: no such file\nat line 3"}, "Error: no such file\nat line 3"),
        ({"output": "x", "exit_code": 0}, '{"output":"x","exit_code":0}'),
        ({"stdout": "x"}, '{"stdout":"x"}'),
        ({}, ""),
    ],
)
def test_what_the_model_reads_of_a_result(response: dict[str, Any], text: str) -> None:
    assert result_text(response) == text


def test_schema_in_upper_case() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "enum": ["STRING", "OBJECT"]},
            "any_of": {"any_of": [{"type": "INTEGER"}, {"type": "NULL"}], "max_items": "3"},
            "list": {"type": "ARRAY", "items": {"type": "NUMBER"}, "default": {"type": "KEPT"}},
        },
        "required": ["type"],
        "nullable": None,
    }
    assert json_schema(schema) == {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["STRING", "OBJECT"]},
            "any_of": {"anyOf": [{"type": "integer"}, {"type": "null"}], "maxItems": 3},
            "list": {"type": "array", "items": {"type": "number"}, "default": {"type": "KEPT"}},
        },
        "required": ["type"],
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "contents"),
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "system", "parts": []}]}, "contents[0]"),
        ({"contents": [user("hi"), {"role": "user", "parts": [{"text": 5}]}]}, "contents[1].parts"),
        ({"contents": [{"role": "user", "parts": [{"fileData": {"fileUri": "x"}}]}]}, "contents[0].parts[0].fileData"),
        (
            {"contents": [{"role": "model", "parts": [{"executable_code": {"code": "x"}}]}]},
            "contents[0].parts[0].executableCode",
        ),
        ({"contents": [{"role": "user", "parts": [{"functionCall": {"name": "x"}}]}]}, "contents[0].parts[0]"),
        ({"contents": [{"role": "model", "parts": [{"functionResponse": {}}]}]}, "contents[0].parts[0]"),
        ({"contents": [user("hi")], "tools": [{"functionDeclarations": [{}]}]}, "tools[0]"),
        ({"contents": [user("hi")], "generationConfig": {"temperature": "warm"}}, "generationConfig"),
        ({"contents": [user("hi")], "cachedContent": "c"}, "cachedContent"),
    ],
)
def test_malformed_requests_name_the_place(body: Any, param: str) -> None:
    with pytest.raises(Refusal) as caught:
        decode(body)
    assert (caught.value.param, caught.value.status) == (param, 400)


DEEP = b"[" * 100_000
BODIES = [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", DEEP, b'{"contents":' + DEEP, b'{"contents":[{"parts":' + DEEP]


@pytest.mark.parametrize("body", BODIES)
def test_bodies_that_are_no_request(body: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        decode(body)
    assert caught.value.code == "invalid_request"


def test_deep_arguments_are_read_or_refused() -> None:
    deep = b"[" * 3000 + b"]" * 3000
    body = b'{"contents":[{"role":"model","parts":[{"functionCall":{"name":"x","args":{"a":' + deep + b"}}}]}]}"
    with pytest.raises(Refusal, match="nested too deeply"):
        decode(body)


def test_half_a_surrogate_pair_is_read() -> None:
    body = rb'{"contents":[{"role":"user","parts":[{"text":"cut \ud83d, whole \ud83d\ude42"}]}]}'
    assert decode(body).messages == (Message("user", "cut �, whole 🙂"),)


texts = st.text(max_size=400)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=8), values, max_size=3).map(lambda v: json.dumps(v, indent=1)) | texts
replies = st.builds(
    reply_of,
    content=texts,
    reasoning=texts,
    tool_calls=st.lists(st.builds(ToolCall, id=st.just("a"), name=st.just("b"), arguments=arguments), max_size=3).map(
        tuple
    ),
    finish_reason=st.sampled_from(["stop", "length", "tool_calls"]),
)


@settings(max_examples=60, deadline=None)
@given(replies)
def test_stream_adds_up_to_the_json_reply(reply: Reply) -> None:
    whole = json.loads(DIALECT.encode(reply, call_of()))
    said: list[dict[str, Any]] = []
    chunks = payloads(DIALECT.events(reply, call_of(), opened=False))
    for chunk in chunks:
        for part in chunk["candidates"][0]["content"]["parts"]:
            if said and kind(part) == kind(said[-1]) != "call":
                said[-1]["text"] += part["text"]
            else:
                said.append(part)
    last = chunks[-1]
    last["candidates"][0]["content"]["parts"] = said
    assert last == whole


@settings(max_examples=60, deadline=None)
@given(replies)
def test_reply_comes_back_as_it_was(reply: Reply) -> None:
    """In one content or in one for each chunk."""
    content = json.loads(DIALECT.encode(reply, call_of()))["candidates"][0]["content"]
    chunks = payloads(DIALECT.events(reply, call_of(), opened=False))
    for contents in ([content], [chunk["candidates"][0]["content"] for chunk in chunks]):
        (message,) = decode({"contents": contents}).messages
        assert (message.content, message.reasoning) == (reply.content, reply.reasoning)
        assert [_value(one.arguments) for one in message.tool_calls] == [_value(o.arguments) for o in reply.tool_calls]


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
