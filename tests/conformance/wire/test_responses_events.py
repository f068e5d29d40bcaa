"""Replies as Responses objects and events: of the SDK's types, in the API's order, equal however they are sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI

from drivetrain.gateway.dialects.base import ImageRule, WireRequest
from drivetrain.gateway.dialects.openai_responses.dialect import OpenAIResponses
from drivetrain.gateway.memo import MessageMemo
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, FinishReason, Message, Reply, RequestedSampling, ToolCall, Usage
from tests.conformance.wire.responses_kit import (
    CUSTOM,
    FUNCTION,
    NAMESPACE,
    WEB_SEARCH,
    check_response,
    check_stream,
    order_of,
    read_frames,
)

DIALECT = OpenAIResponses()
REPLY_ID = "0123abcd" + "f" * 16
ASKED = {
    "model": "gpt",
    "input": "hi",
    "instructions": "be brief",
    "tools": [FUNCTION, CUSTOM, NAMESPACE, WEB_SEARCH],
    "include": ["reasoning.encrypted_content"],
    "metadata": {"task": "7"},
    "temperature": 0.5,
    "max_output_tokens": 90,
    "text": {"verbosity": "low"},
}


class NoMemory:
    """A session that has served nothing."""

    memo = MessageMemo()
    images: ImageRule = "refuse"

    def conversation(self, reply_id: str) -> tuple[Message, ...] | None:
        return None

    def requested(self, reply_id: str) -> RequestedSampling | None:
        return None


def call_for(body: Mapping[str, Any] = ASKED) -> Call:
    return DIALECT.decode(WireRequest(body=json.dumps(body).encode()), NoMemory())


def reply_of(
    content: str = "", reasoning: str = "", calls: tuple[ToolCall, ...] = (), finish: FinishReason | None = None
) -> Reply:
    finish = finish or ("tool_calls" if calls else "stop")
    return Reply(REPLY_ID, "policy", 1_700_000_000, content, reasoning, calls, finish, Usage(11, 7))


def made(index: int, name: str, arguments: str) -> ToolCall:
    return ToolCall(f"call_0123abcdt0003c{index:02x}", name, arguments)


FULL = reply_of(
    "Let me look.",
    "The bug is in a file.",
    (
        made(0, "bash", '{"command": "ls"}'),
        made(1, "apply_patch", '{"input": "*** Begin"}'),
        made(2, "multi_agent_v1__spawn_agent", "{}"),
    ),
)


class Wire:
    """The official client behind which a body is played."""

    def __init__(self) -> None:
        self.body = b""
        self.kind = "text/event-stream"
        transport = httpx.MockTransport(
            lambda _: httpx.Response(200, content=self.body, headers={"content-type": self.kind})
        )
        self.client = OpenAI(api_key="k", base_url="http://gateway/v1", http_client=httpx.Client(transport=transport))

    def stream(self, frames: list[bytes]) -> Any:
        self.body = b"".join(frames)
        return self.client.responses.stream(model="gpt", input="hi")


WIRE = Wire()


def without_parsed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_parsed(v) for k, v in value.items() if k not in ("parsed", "parsed_arguments")}
    return [without_parsed(item) for item in value] if isinstance(value, list) else value


def test_golden_order_of_a_reply_with_everything() -> None:
    events = read_frames(b"".join(DIALECT.events(FULL, call_for(), opened=False)))
    check_stream(events)
    assert order_of(events) == (
        "created progress "
        "+reasoning sum+ think think. sum. done "
        "+message part+ text text. part. done "
        "+function_call args args. done "
        "+custom_tool_call input input. done "
        "+function_call args args. done "
        "end "
    )
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_the_object_has_what_the_api_has() -> None:
    body = json.loads(DIALECT.encode(FULL, call_for()))
    response = check_response(body)
    assert (response.id, response.status, response.model) == (f"resp_{REPLY_ID}", "completed", "policy")
    reasoning, message, bash, patch, spawn = body["output"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "The bug is in a file."}]
    assert reasoning["encrypted_content"] == f"drivetrain.{REPLY_ID}"
    assert message["content"] == [{"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}]
    assert response.output_text == "Let me look."
    assert (bash["type"], bash["name"], bash["arguments"]) == ("function_call", "bash", '{"command": "ls"}')
    assert (patch["type"], patch["input"]) == ("custom_tool_call", "*** Begin")
    assert (spawn["name"], spawn["namespace"]) == ("spawn_agent", "multi_agent_v1")
    assert [item["id"].split("_")[0] for item in body["output"]] == ["rs", "msg", "fc", "ctc", "fc"]
    assert len({item["id"] for item in body["output"]}) == 5
    assert (body["instructions"], body["temperature"], body["max_output_tokens"]) == ("be brief", 0.5, 90)
    assert [tool["type"] for tool in body["tools"]] == ["function", "custom", "namespace"]
    assert body["metadata"] == {"task": "7"} and body["text"]["verbosity"] == "low"
    assert response.usage is not None and response.usage.total_tokens == 18


def test_the_seal_is_given_only_when_asked_for() -> None:
    call = call_for({"input": "hi"})
    assert "encrypted_content" not in json.loads(DIALECT.encode(FULL, call))["output"][0]


@pytest.mark.parametrize(
    ("reply", "types"),
    [
        (reply_of(), ["message"]),
        (reply_of(reasoning="hm"), ["reasoning"]),
        (reply_of(calls=(made(0, "bash", "{}"),)), ["function_call"]),
        (reply_of(reasoning="hm", calls=(made(0, "unknown", "{}"),)), ["reasoning", "function_call"]),
    ],
)
def test_items_of_sparse_replies(reply: Reply, types: list[str]) -> None:
    """Only a reply of no words at all has an empty message: an answer without any item would be no turn."""
    assert [item["type"] for item in json.loads(DIALECT.encode(reply, call_for()))["output"]] == types


def test_length_stop_is_incomplete() -> None:
    reply = reply_of("cut off in the mid", finish="length")
    body = json.loads(DIALECT.encode(reply, call_for()))
    check_response(body)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete" and body["completed_at"] is None
    events = read_frames(b"".join(DIALECT.events(reply, call_for(), opened=False)))
    check_stream(events)
    assert events[-1]["type"] == "response.incomplete"
    with WIRE.stream(list(DIALECT.events(reply, call_for(), opened=False))) as stream:
        last = list(stream)[-1]
    assert last.type == "response.incomplete" and last.response.output_text == "cut off in the mid"


def test_custom_input_that_is_no_object_is_handed_over_as_sampled() -> None:
    sampled = ['{"patch": "x"}', '{"input": "x", "more": 1}', '{"input": 7}', '"text"', "*** Begin"]
    reply = reply_of(calls=tuple(made(index, "apply_patch", text) for index, text in enumerate(sampled)))
    items = json.loads(DIALECT.encode(reply, call_for()))["output"]
    assert [item["input"] for item in items] == sampled


def test_half_a_surrogate_pair_in_custom_input() -> None:
    reply = reply_of(calls=(made(0, "apply_patch", r'{"input": "cut \ud83d"}'), made(1, "bash", r'{"a": "\ud83d"}')))
    patch, bash = json.loads(DIALECT.encode(reply, call_for()))["output"]
    assert (patch["input"], bash["arguments"]) == ("cut \ufffd", r'{"a": "\ud83d"}')


def test_long_texts_go_out_in_pieces() -> None:
    text = " ".join(f"word{i}" for i in range(200))
    events = read_frames(b"".join(DIALECT.events(reply_of(text), call_for(), opened=False)))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) > 10 and "".join(deltas) == text


@pytest.mark.parametrize("form", ["default", "event", "comment", "newline"])
def test_a_stream_opened_early_goes_on_where_it_stood(form: Any) -> None:
    call = call_for()
    kept = [DIALECT.keep_alive(form, REPLY_ID, call)] * 3
    frames = [*DIALECT.opening(REPLY_ID, call), *kept, *DIALECT.events(FULL, call, opened=True)]
    events = read_frames(b"".join(frames))
    check_stream(events)
    assert order_of(events).count("progress") == (4 if form in ("default", "event") else 1)
    late = [event for event in events if event["sequence_number"] > 1]
    assert late == read_frames(b"".join(DIALECT.events(FULL, call, opened=False)))[2:]
    with WIRE.stream(frames) as stream:
        assert without_parsed(stream.get_final_response().to_dict()) == json.loads(DIALECT.encode(FULL, call))


@pytest.mark.parametrize(
    ("code", "wire"),
    [
        ("engine_unavailable", "server_error"),
        ("cancelled", "server_error"),
        ("context_length_exceeded", "context_length_exceeded"),  # Codex looks for this one, beside the documented codes
        ("invalid_request", "invalid_prompt"),
    ],
)
def test_late_failure_is_a_failed_response(code: Any, wire: str) -> None:
    call = call_for()
    refusal = Refusal(code, "it broke.")
    frames = [*DIALECT.opening(REPLY_ID, call), *DIALECT.error_events(refusal, REPLY_ID, call)]
    events = read_frames(b"".join(frames))
    assert events[-1]["response"]["error"] == {"code": wire, "message": "it broke."}
    if wire != "context_length_exceeded":
        check_stream(events)
    with WIRE.stream(frames) as stream, pytest.raises(RuntimeError, match=r"response\.completed"):
        stream.get_final_response()


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)
_ARGUMENTS = st.one_of(
    st.dictionaries(_TEXT, _TEXT | st.integers(), max_size=3).map(json.dumps),
    _TEXT.map(lambda text: json.dumps({"input": text}, ensure_ascii=False)),
    _TEXT,
)
_NAMES = st.sampled_from(["bash", "apply_patch", "multi_agent_v1__spawn_agent", "never_offered"])


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    names = draw(st.lists(_NAMES, max_size=4))
    calls = tuple(made(index, name, draw(_ARGUMENTS)) for index, name in enumerate(names))
    finish = draw(st.sampled_from([None, "length"]))
    return reply_of(draw(_TEXT), draw(_TEXT), calls, finish)


@settings(max_examples=15, deadline=None)
@given(replies(), st.booleans())
def test_any_reply_streams_to_what_it_encodes_to(reply: Reply, opened: bool) -> None:
    call = call_for()
    frames = [*(DIALECT.opening(reply.id, call) if opened else ()), *DIALECT.events(reply, call, opened=opened)]
    assert frames[2 if opened else 0 :] == list(DIALECT.events(reply, call, opened=opened))  # a replay: the same bytes
    events = read_frames(b"".join(frames))
    check_stream(events)
    encoded = json.loads(DIALECT.encode(reply, call))
    check_response(encoded)
    assert events[-1]["response"] == encoded
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == encoded["output"]
    with WIRE.stream(frames) as stream:
        heard = _heard(list(stream))
    assert heard == {
        item["id"]: item.get(
            "arguments", item.get("input", (item.get("summary") or item.get("content") or [{}])[0].get("text"))
        )
        for item in encoded["output"]
    }
    if reply.finish_reason != "length":
        with WIRE.stream(frames) as stream:
            assert without_parsed(stream.get_final_response().to_dict()) == encoded


def _heard(events: list[Any]) -> dict[str, str]:
    """What the deltas say, by item."""
    heard = {event.item.id: "" for event in events if event.type == "response.output_item.added"}
    for event in events:
        if event.type.endswith(".delta"):
            heard[event.item_id] += event.delta
    return heard
