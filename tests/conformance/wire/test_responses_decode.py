"""Responses requests as messages: items of one reply are one message again, whatever order they come back in."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from drivetrain.gateway.dialects.base import ImageRule, WireRequest
from drivetrain.gateway.dialects.openai_responses.dialect import OpenAIResponses, PreviousResponseNotFound
from drivetrain.gateway.memo import MessageMemo
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, Message, RequestedSampling, ToolCall
from tests.conformance.wire.responses_kit import CUSTOM, FUNCTION, NAMESPACE, WEB_SEARCH, codex_request

DIALECT = OpenAIResponses()
REPLY, OTHER = "0123abcd" + "1" * 16, "0123abcd" + "2" * 16
A, B, C = (f"call_0123abcdt0003c{index:02x}" for index in range(3))
LATER = "call_0123abcdt0004c00"


class Session:
    """What a dialect asks of a session."""

    def __init__(self, images: ImageRule = "refuse", **served: tuple[Message, ...]) -> None:
        self.memo = MessageMemo()
        self.images: ImageRule = images
        self.served = served
        self.instructed: set[str] = set()

    def conversation(self, reply_id: str) -> tuple[Message, ...] | None:
        return self.served.get("r" + reply_id)

    def requested(self, reply_id: str) -> RequestedSampling | None:
        return RequestedSampling(extra={"instructions": True} if reply_id in self.instructed else {})


def decode(body: dict[str, Any], session: Session | None = None) -> Call:
    return DIALECT.decode(WireRequest(body=json.dumps(body).encode()), session or Session())


def messages(*items: dict[str, Any], session: Session | None = None, **fields: Any) -> list[Message]:
    return list(decode({"input": list(items), **fields}, session).messages)


def user(text: str = "go") -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str, id_: str | None = None) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "id": id_, "content": [{"type": "output_text", "text": text}]}


def thought(text: str, id_: str | None = None) -> dict[str, Any]:
    return {"type": "reasoning", "id": id_, "summary": [{"type": "summary_text", "text": text}]}


def called(call_id: str, id_: str | None = None) -> dict[str, Any]:
    return {"type": "function_call", "id": id_, "call_id": call_id, "name": "bash", "arguments": "{}"}


def answered(call_id: str, text: str = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def shape(found: list[Message]) -> list[str]:
    """One word per message: a for the calls of an assistant message, t for what a result answers."""
    names = {A: "A", B: "B", C: "C", LATER: "L"}
    words = []
    for one in found:
        if one.role == "assistant":
            words.append(f"a:{one.reasoning}:{one.content}:" + "".join(names.get(c.id, c.id) for c in one.tool_calls))
        else:
            words.append(f"t:{names.get(one.tool_call_id, one.tool_call_id)}" if one.role == "tool" else one.role[0])
    return words


def test_plain_input_and_instructions() -> None:
    call = decode({"model": "m", "input": "hi", "instructions": "be brief"})
    assert call.messages == (Message("system", "be brief"), Message("user", "hi"))
    assert call.requested.extra["instructions"] is True


def test_roles_and_text_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    refusal = [{"type": "output_text", "text": "I "}, {"type": "refusal", "refusal": "won't"}]
    assert messages(
        {"role": "system", "content": "s"},
        {"type": "message", "role": "developer", "content": parts},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": refusal},
    ) == [Message("system", "s"), Message("developer", "ab"), Message("user", "ab"), Message("assistant", "I won't")]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        # a whole reply, and the same with its parts apart
        ([thought("hm"), said("x"), called(A), called(B)], ["a:hm:x:AB"]),
        ([said("x"), called(A), answered(A)], ["a::x:A", "t:A"]),
        # outputs in any order, between the calls, or late
        ([called(A), called(B), answered(B), answered(A)], ["a:::AB", "t:A", "t:B"]),
        ([called(A), answered(A), called(B), answered(B)], ["a:::AB", "t:A", "t:B"]),
        (
            [said("x"), called(A), answered(A), called(B), called(C), answered(C), answered(B)],
            ["a::x:ABC", "t:A", "t:B", "t:C"],
        ),
        # what belongs to the next reply stays apart
        ([called(A), answered(A), called(LATER), answered(LATER)], ["a:::A", "t:A", "a:::L", "t:L"]),
        ([called(A), called(LATER)], ["a:::A", "a:::L"]),
        ([called(A), answered(A), said("x"), called(LATER)], ["a:::A", "t:A", "a::x:L"]),
        ([called(A), answered(A), thought("hm"), called(LATER)], ["a:::A", "t:A", "a:hm::L"]),
        ([said("x"), user(), said("y")], ["a::x:", "u", "a::y:"]),
        ([said("x"), said("y")], ["a::x:", "a::y:"]),
        ([said("x"), thought("hm"), said("y")], ["a::x:", "a:hm:y:"]),
        ([thought("h"), thought("m"), said("y")], ["a:h\n\nm:y:"]),
        # foreign call ids: calls in a row are one reply, a call behind an output is another
        ([called("f1"), called("f2"), answered("f2"), answered("f1")], ["a:::f1f2", "t:f1", "t:f2"]),
        ([called("f1"), answered("f1"), called("f2"), answered("f2")], ["a:::f1", "t:f1", "a:::f2", "t:f2"]),
        ([called("f1"), called(A)], ["a:::f1", "a:::A"]),
        # the same call twice (a harness that resumed doubles its last turn) is no parallel call
        ([called(A), answered(A), called(A), answered(A)], ["a:::A", "t:A", "a:::A", "t:A"]),
        # item ids of ours tell replies apart where order cannot
        ([said("x", f"msg_{REPLY}"), called(A, f"fc_{OTHER}_0")], ["a::x:", "a:::A"]),
        ([called(A, f"fc_{REPLY}_0"), answered(A), said("x", f"msg_{REPLY}")], ["a::x:A", "t:A"]),
        # outputs without their call, and unknown ones
        ([answered("f1"), user()], ["t:f1", "u"]),
        ([called(A), answered("f1"), answered(A)], ["a:::A", "t:A", "t:f1"]),
    ],
)
def test_items_of_one_reply_are_one_message(items: list[dict[str, Any]], expected: list[str]) -> None:
    session = Session()
    assert shape(messages(user(), *items, session=session)) == ["u", *expected]
    assert shape(messages(user(), *items, session=session)) == ["u", *expected]  # from memory
    assert all(not one.name for one in messages(user(), *items, session=session))


def test_what_was_seen_is_not_decoded_again() -> None:
    session = Session()
    history: list[dict[str, Any]] = [user()]
    for turn in range(20):
        ids = [f"call_0123abcdt{turn:04x}c{index:02x}" for index in range(2)]
        history += [thought(f"hm {turn}"), said(f"x {turn}"), *map(called, ids), *map(answered, ids)]
        before = session.memo.decoded
        found = messages(*history, session=session)
        assert len(found) == 1 + 3 * (turn + 1)
        assert session.memo.decoded - before == 7 + (turn == 0)  # six items, one reply joined; the user once
    body = {"input": history}
    assert decode(body, session).keys == decode(body, Session()).keys


def test_custom_and_namespaced_calls_have_the_policys_names() -> None:
    (first, result) = messages(
        {"type": "custom_tool_call", "call_id": A, "name": "apply_patch", "input": 'a "b"\n'},
        {
            "type": "function_call",
            "call_id": B,
            "name": "spawn_agent",
            "namespace": "multi_agent_v1",
            "arguments": "{}",
        },
        {"type": "custom_tool_call_output", "call_id": A, "output": [{"type": "input_text", "text": "done"}]},
    )
    assert first.tool_calls == (
        ToolCall(A, "apply_patch", '{"input":"a \\"b\\"\\n"}'),
        ToolCall(B, "multi_agent_v1__spawn_agent", "{}"),
    )
    assert result == Message("tool", "done", tool_call_id=A)


def test_reasoning_from_content_summary_or_seal() -> None:
    session = Session(**{"r" + REPLY: (Message("user", "go"), Message("assistant", "x", "what was thought"))})
    raw = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "raw"}]}
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": f"drivetrain.{REPLY}"}
    foreign = {"type": "reasoning", "id": "rs_68af4030baa48193b0b4", "summary": [], "encrypted_content": "gAAAAABo"}
    assert messages(user(), raw, said("x"))[1].reasoning == "raw"
    assert messages(user(), sealed, said("x"), session=session)[1].reasoning == "what was thought"
    assert messages(user(), foreign, said("x")) == [Message("user", "go"), Message("assistant", "x")]


def test_item_references() -> None:
    reply = Message("assistant", "x", "hm", (ToolCall(A, "bash", '{"n":1.0}'),))
    session = Session(**{"r" + REPLY: (Message("user", "go"), reply)})
    refs = [{"type": "item_reference", "id": id_} for id_ in (f"rs_{REPLY}", f"msg_{REPLY}", f"fc_{REPLY}_0")]
    assert messages(user(), *refs, session=session)[1] == reply
    for unknown in (f"msg_{OTHER}", f"fc_{REPLY}_9", "msg_other"):
        with pytest.raises(Refusal, match="was not served in this session") as caught:
            messages(user(), {"type": "item_reference", "id": unknown}, session=session)
        assert (caught.value.status, caught.value.param) == (400, "input[1].id")


def test_previous_response() -> None:
    reply = Message("assistant", "x", "", (ToolCall(A, "bash", "{}"), ToolCall(B, "bash", "{}")))
    session = Session(**{"r" + REPLY: (Message("system", "old"), Message("user", "go"), reply)})
    more = {"previous_response_id": f"resp_{REPLY}"}
    found = messages(answered(B), answered(A), user("on"), session=session, **more)
    assert [one.content for one in found] == ["old", "go", "x", "ok", "ok", "on"]
    assert [one.tool_call_id for one in found[3:5]] == [A, B]
    session.instructed.add(REPLY)  # the system message came from `instructions`: not inherited
    assert [one.content for one in messages(user("on"), session=session, **more)] == ["go", "x", "on"]
    swapped = messages(user("on"), session=session, instructions="new", **more)
    assert [one.content for one in swapped] == ["new", "go", "x", "on"]
    assert messages(session=session, **more) == [Message("user", "go"), reply]


@pytest.mark.parametrize("previous", [f"resp_{OTHER}", "resp_68af", "nonsense"])
def test_unknown_previous_response(previous: str) -> None:
    with pytest.raises(PreviousResponseNotFound) as caught:
        decode({"input": "hi", "previous_response_id": previous})
    error = json.loads(DIALECT.error(caught.value))["error"]
    assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    assert caught.value.status == 400


def test_tools_that_nobody_serves_are_dropped_and_recorded() -> None:
    hosted = [
        {"type": "file_search", "vector_store_ids": ["v"]},
        {"type": "mcp", "server_label": "s", "server_url": "https://example.org"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "computer_use_preview", "environment": "linux", "display_width": 1, "display_height": 1},
        {"type": "image_generation"},
        {"type": "local_shell"},
    ]
    call = decode({"input": "hi", "tools": [FUNCTION, CUSTOM, NAMESPACE, WEB_SEARCH, *hosted]})
    names = [tool.name for tool in call.tools]
    assert names == ["bash", "apply_patch", "multi_agent_v1__spawn_agent", "multi_agent_v1__wait_agent"]
    assert call.requested.extra["dropped_tools"] == ["web_search", *(tool["type"] for tool in hosted)]
    assert call.requested.extra["unenforced_grammars"] == ["apply_patch"]
    custom = call.tools[1].parameters
    assert custom["required"] == ["input"] and "start: /.+/" in custom["properties"]["input"]["description"]
    assert [tool.description for tool in call.tools[2:]] == ["helpers", ""]


def test_knobs_reach_the_sessions_rules() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    asked = {
        "temperature": 0.2,
        "top_p": 0.9,
        "max_output_tokens": 50,
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []},
        "text": {"format": schema, "verbosity": "low"},
        "reasoning": {"effort": "high", "summary": "auto"},
        "top_logprobs": 3,
        "parallel_tool_calls": False,
        "truncation": "auto",
        "include": ["message.output_text.logprobs"],
    }
    requested = decode({"input": "hi", **asked}).requested
    assert (requested.temperature, requested.top_p, requested.max_tokens) == (0.2, 0.9, 50)
    assert requested.extra == {
        "tool_choice": {"type": "allowed_tools", "tools": []},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        "verbosity": "low",
        "reasoning": {"effort": "high", "summary": "auto"},
        "reasoning_effort": "high",
        "logprobs": 3,
        "parallel_tool_calls": False,
        "truncation": "auto",
        "include": ["message.output_text.logprobs"],
    }


IMAGE = {"role": "user", "content": [{"type": "input_text", "text": "see "}, {"type": "input_image", "image_url": "x"}]}


def test_pictures_follow_the_sessions_rule() -> None:
    with pytest.raises(Refusal, match=r"input\[0\]\.content\[1\]") as caught:
        messages(IMAGE)
    assert caught.value.code == "unsupported"
    (found,) = messages(IMAGE, session=Session("placeholder"))
    assert found.content == "see [image left out: this model reads text only]"


@pytest.mark.parametrize(
    ("change", "code", "match"),
    [
        ({"input": []}, "invalid_request", "input is empty"),
        ({"input": None}, "invalid_request", "input is empty"),
        ({"input": [{"type": "shell_call", "action": {}}]}, "invalid_request", r"input\[0\] is of type 'shell_call'"),
        (
            {"input": [user(), {"type": "function_call", "name": "x"}]},
            "invalid_request",
            r"input\[1\].*arguments|call_id",
        ),
        ({"input": [{"role": "robot", "content": "x"}]}, "invalid_request", r"input\[0\].*robot"),
        ({"input": ["text"]}, "invalid_request", r"input\[0\]"),
        ({"input": [answered("c") | {"output": [{"type": "input_file"}]}]}, "unsupported", r"input\[0\]\.output\[0\]"),
        ({"tools": [{"type": "function"}]}, "invalid_request", r"tools\[0\] has no name"),
        ({"tools": ["x"]}, "invalid_request", r"tools\[0\] is not a tool"),
        ({"tools": [FUNCTION, FUNCTION]}, "invalid_request", r"tools\[1\]: there is a tool 'bash' already"),
        ({"tools": [NAMESPACE | {"tools": [{"type": "function"}]}]}, "invalid_request", r"tools\[0\]\.tools\[0\]"),
        ({"tool_choice": {"type": "web_search"}}, "unsupported", "no hosted tool"),
        ({"background": True}, "unsupported", "background"),
        ({"conversation": "conv_1"}, "unsupported", "conversation"),
        ({"prompt": {"id": "p"}}, "unsupported", "stored prompts"),
        ({"max_output_tokens": 0}, "invalid_request", "must be positive"),
        ({"temperature": "hot"}, "invalid_request", "not a Responses request"),
    ],
)
def test_bad_requests(change: dict[str, Any], code: str, match: str) -> None:
    with pytest.raises(Refusal, match=match) as caught:
        decode({"input": "hi", **change})
    assert (caught.value.code, caught.value.status) == (code, 400)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_bodies_that_are_no_json(body: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        DIALECT.decode(WireRequest(body=body), Session())
    assert caught.value.status == 400


def test_half_a_surrogate_pair_is_mended() -> None:
    body = b'{"input": [{"role": "user", "content": "cut \\ud83d"}]}'
    assert DIALECT.decode(WireRequest(body=body), Session()).messages[0].content == "cut �"


def test_a_codex_body_decodes_with_its_extras() -> None:
    call = decode(codex_request([thought("hm", f"rs_{REPLY}"), called(A), answered(A)]))
    assert [one.role for one in call.messages] == ["developer", "user", "assistant", "tool"]
    assert call.stream and "instructions" not in call.requested.extra
    assert call.requested.extra["dropped_tools"] == ["web_search"]
    assert call.wire["sealed"] is True


def test_decoding_is_a_function_of_the_request() -> None:
    body = codex_request([called(A), answered(A)])
    first, second = decode(body), decode(body)
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
