"""The Messages dialect with the official SDK on loopback: sync, async, streamed, tools, counts, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import anthropic
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import ContextOverflow, EngineError
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.gateway.patience import KeepAliveForm, Patience
from tests.conformance.wire.anthropic_kit import (
    ASK,
    BASH,
    Way,
    async_events,
    async_json,
    async_stream,
    blocks,
    clients,
    codec,
    every_way,
    one_call,
    raw_stream,
    sync_events,
    sync_stream,
)
from tests.gateway.conftest import StartRig, bash_call

__all__ = ["codec"]


@every_way
async def test_text(start_rig: StartRig, way: Way) -> None:
    c = await clients(await start_rig(["hello there"]))
    message = await way(c, ASK)
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].text == "hello there"
    assert (message.stop_reason, message.model) == ("end_turn", "policy")
    turn = c.turns[-1]
    assert message.id == f"msg_{turn.reply.id}"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (turn.prompt_len, len(turn.sampled_ids))
    assert turn.delivered and turn.dialect == "anthropic"
    assert "token_ids" not in message.to_json() and "logprobs" not in message.to_json()


PARALLEL = (
    "<think>two at once</think>\nBoth.\n"
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls", "n": 5000.0}}\n</tool_call>\n'
    '<tool_call>\n{"name": "bash", "arguments": {"command": "pwd"}}\n</tool_call>'
)


@every_way
async def test_thinking_and_parallel_calls(start_rig: StartRig, way: Way) -> None:
    c = await clients(await start_rig([PARALLEL, "all done"]))
    message = await way(c, {**ASK, "tools": [BASH]})
    thinking, text, first, second = message.content
    assert (thinking.type, text.type, first.type, second.type) == ("thinking", "text", "tool_use", "tool_use")
    assert thinking.thinking == "two at once" and thinking.signature
    assert text.text == "Both."
    assert (first.input, second.input) == ({"command": "ls", "n": 5000.0}, {"command": "pwd"})
    assert message.stop_reason == "tool_use"
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "ok"} for call in (first, second)]
    history = [*ASK["messages"], {"role": "assistant", "content": blocks(message)}]
    history.append({"role": "user", "content": [*results, {"type": "text", "text": "go on"}]})
    await way(c, {**ASK, "tools": [BASH], "messages": history})
    turn = c.turns[-1]
    assert c.session.graph[turn.parent].reply.id == message.id.removeprefix("msg_")
    assert [(m.role, m.content) for m in turn.messages] == [("tool", "ok"), ("tool", "ok"), ("user", "go on")]
    assert turn.soft_mismatches == 0


async def test_a_length_stop(start_rig: StartRig) -> None:
    c = await clients(await start_rig(["word " * 100, "word " * 100]))
    message = await c.asyn.messages.create(**{**ASK, "max_tokens": 5})
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 5)
    streamed = await async_stream(c, {**ASK, "max_tokens": 3})
    assert (streamed.stop_reason, streamed.usage.output_tokens) == ("max_tokens", 3)


@every_way
async def test_an_empty_reply_is_legal(start_rig: StartRig, way: Way, tiny_model: ModelDir) -> None:
    nothing = ScriptedReply(token_ids=[tiny_model.eos_token_id])
    c = await clients(await start_rig([nothing]))
    message = await way(c, ASK)
    assert (message.content, message.stop_reason) == ([], "end_turn")


# --- counts and models


async def test_a_count_is_what_the_request_would_use(start_rig: StartRig) -> None:
    c = await clients(await start_rig([one_call(0)]))
    body: Any = {"model": "claude", "system": "Be brief.", "messages": ASK["messages"], "tools": [BASH]}
    counted = await c.asyn.messages.count_tokens(**body)
    assert len(c.session.graph) == 0
    message = await c.asyn.messages.create(**body, max_tokens=512)
    assert counted.input_tokens == message.usage.input_tokens > 0
    call = message.content[-1]
    history = [*body["messages"], {"role": "assistant", "content": blocks(message)}]
    history.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "ok"}]})
    body["messages"] = history
    again = await asyncio.to_thread(lambda: c.sync.messages.count_tokens(**body))
    beta = await c.asyn.beta.messages.count_tokens(**body)
    following = await c.asyn.messages.create(**body, max_tokens=512)
    assert again.input_tokens == beta.input_tokens == following.usage.input_tokens > counted.input_tokens
    assert [turn.link for turn in c.turns] == ["root", "linear"]


async def test_models(start_rig: StartRig) -> None:
    rig = await start_rig()
    c = await clients(rig, max_tokens_per_turn=77)
    listed = [model async for model in c.asyn.models.list()]
    assert [(m.id, m.max_input_tokens, m.max_tokens) for m in listed] == [
        ("policy", rig.gateway.engine.context_length, 77)
    ]
    one = await asyncio.to_thread(lambda: c.sync.models.retrieve("policy"))
    assert one == listed[0]


# --- failures


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        ({"messages": []}, anthropic.BadRequestError, "at least one message"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "positive"),
        ({"tools": [BASH], "tool_choice": {"type": "any"}}, anthropic.BadRequestError, "tool_choice"),
        ({"tools": [BASH], "tool_choice": {"type": "tool", "name": "bash"}}, anthropic.BadRequestError, "tool_choice"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
            anthropic.BadRequestError,
            "response_format",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}
                ]
            },
            anthropic.BadRequestError,
            "text only",
        ),
        (
            {"messages": [{"role": "user", "content": "word " * 20000}]},
            anthropic.BadRequestError,
            r"prompt is too long: \d{5,} tokens > 8192 maximum",
        ),
    ],
)
@pytest.mark.parametrize("way", [async_json, sync_stream], ids=["json", "stream"])
async def test_bad_requests(start_rig: StartRig, change: Any, kind: type[Exception], match: str, way: Way) -> None:
    c = await clients(await start_rig(), retries=2)
    with pytest.raises(kind, match=match) as caught:
        await way(c, {**ASK, **change})
    assert isinstance(caught.value, anthropic.APIStatusError)
    assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    assert len(c.session.graph) == 0 and c.session.budget.reserved_turns == 0


async def test_free_tool_choices_are_served(start_rig: StartRig) -> None:
    c = await clients(await start_rig([bash_call("ls")] * 2))
    for choice in ({"type": "auto", "disable_parallel_tool_use": True}, {"type": "none"}):
        await c.asyn.messages.create(**ASK, tools=[BASH], tool_choice=choice)  # type: ignore[arg-type]
        assert c.turns[-1].requested.extra["tool_choice"] == choice


async def test_wrong_key(start_rig: StartRig) -> None:
    rig = await start_rig()
    stranger = anthropic.AsyncAnthropic(base_url=rig.url, api_key="dt-wrong", max_retries=0)
    for call in (stranger.messages.create(**ASK), stranger.messages.count_tokens(model="m", messages=ASK["messages"])):
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await call
        assert caught.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
        assert caught.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(anthropic.AuthenticationError):
        [_ async for _ in stranger.models.list()]


async def test_unknown_routes(start_rig: StartRig) -> None:
    c = await clients(await start_rig())
    with pytest.raises(anthropic.NotFoundError) as caught:
        [_ async for _ in c.asyn.messages.batches.list()]
    assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.NotFoundError, match="/v1/files/x"):
        await c.asyn.get("/v1/files/x", cast_to=object)
    assert len(c.session.graph) == 0


async def test_a_body_that_is_too_large(start_rig: StartRig) -> None:
    c = await clients(await start_rig(), max_body_bytes=1000)
    with pytest.raises(anthropic.ContentTooLargeError) as caught:
        await c.asyn.messages.create(**{**ASK, "messages": [{"role": "user", "content": "x" * 2000}]})
    assert caught.value.body["error"]["type"] == "request_too_large"  # type: ignore[index]


async def test_a_sealed_session_is_asked_once(start_rig: StartRig) -> None:
    """The SDKs repeat a 409 unless they are told not to."""
    rig = await start_rig()
    c = await clients(rig, retries=3)
    asked: list[str] = []

    async def note(request: Any) -> None:
        asked.append(str(request.url))

    await rig.gateway.seal_session(c.session.id)
    http = anthropic.DefaultAsyncHttpxClient(event_hooks={"request": [note]})
    patient = c.asyn.copy(http_client=http)
    with pytest.raises(anthropic.ConflictError) as caught:
        await patient.messages.create(**ASK)
    assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    assert len(asked) == 1


@pytest.mark.parametrize("way", [async_json, sync_stream], ids=["json", "stream"])
async def test_a_failing_engine_inside_the_grace(start_rig: StartRig, tiny_model: ModelDir, way: Way) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(error=EngineError("gone"))], tiny_model, then="recovered")
    c = await clients(await start_rig(engine=engine))
    with pytest.raises(anthropic.ServiceUnavailableError) as caught:
        await way(c, ASK)
    assert caught.value.body["error"]["type"] == "api_error"  # type: ignore[index]
    assert caught.value.response.headers["Retry-After"] == "1"
    assert (await way(c, ASK)).content[0].text == "recovered"
    assert len(c.session.graph) == 1


async def test_the_sdk_retries_a_failing_engine_by_itself(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(error=EngineError("gone"))], tiny_model, then="recovered")
    c = await clients(await start_rig(engine=engine), retries=1)
    assert (await c.asyn.messages.create(**ASK)).content[0].text == "recovered"  # type: ignore[union-attr]
    assert len(c.session.graph) == 1


@pytest.mark.parametrize("form", ["default", "comment", "event", "newline"])
@pytest.mark.case("D2")
async def test_a_slow_reply_behind_keep_alives(start_rig: StartRig, tiny_model: ModelDir, form: KeepAliveForm) -> None:
    engine = ScriptedEngine.from_lines([], tiny_model, then=ScriptedReply(text="late", delay_s=0.3))
    c = await clients(await start_rig(engine=engine, patience=Patience(grace_s=0.05, every_s=0.05, form=form)))
    ways = (async_stream, async_events, sync_stream, sync_events)
    asked = [way(c, {**ASK, "system": f"way {index}"}) for index, way in enumerate(ways)]
    raw, *messages = await asyncio.gather(raw_stream(c), *asked)
    assert [message.content[0].text for message in messages] == ["late"] * 4
    assert all(turn.delivered for turn in c.turns)
    waited = raw.split(b"event: message_start")[0]
    sign = {"comment": b": keep-alive\n\n", "newline": b"\n"}.get(form, b'event: ping\ndata: {"type":"ping"}\n\n')
    assert waited == sign * (len(waited) // len(sign)) and len(waited) >= 2 * len(sign)


@pytest.mark.parametrize("way", [async_stream, async_events, sync_stream, sync_events])
async def test_a_late_failure_is_an_error_and_no_finished_message(
    start_rig: StartRig, tiny_model: ModelDir, way: Way
) -> None:
    failing = ScriptedReply(error=EngineError("gone"), delay_s=0.3)
    engine = ScriptedEngine.from_lines([failing], tiny_model, then="recovered")
    c = await clients(await start_rig(engine=engine, patience=Patience(grace_s=0.05, every_s=0.05)))
    with pytest.raises(anthropic.APIStatusError, match="gone") as caught:
        await way(c, ASK)
    assert caught.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]
    assert (await way(c, ASK)).content[0].text == "recovered"


async def test_a_late_overflow_says_so(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(error=ContextOverflow(9000, 8192), delay_s=0.3)], tiny_model)
    c = await clients(await start_rig(engine=engine, patience=Patience(grace_s=0.05, every_s=0.05)))
    with pytest.raises(anthropic.APIStatusError, match="prompt is too long: 9000 tokens > 8192 maximum"):
        await async_stream(c, ASK)


@pytest.mark.case("D14")
async def test_a_used_up_budget_is_a_message(start_rig: StartRig) -> None:
    c = await clients(await start_rig(["one"]), max_turns=1)
    await c.asyn.messages.create(**ASK)
    stop = await async_stream(c, {**ASK, "messages": [{"role": "user", "content": "more"}]})
    assert "budget" in stop.content[0].text and stop.stop_reason == "end_turn"
    assert len(c.session.graph) == 1


async def test_a_placeholder_for_pictures(start_rig: StartRig) -> None:
    c = await clients(await start_rig(["a cat"]), images="placeholder")
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    content: Any = [{"type": "text", "text": "what is it?"}, picture]
    await c.asyn.messages.create(**{**ASK, "messages": [{"role": "user", "content": content}]})
    assert c.turns[0].messages[0].content == "what is it?\n[image left out: this model reads text only]"


async def test_prefill_is_rendered_as_an_earlier_turn(start_rig: StartRig) -> None:
    """A trailing assistant message that was not served here: rendered, then a new turn, as in the other dialects."""
    c = await clients(await start_rig(["B)"]))
    prefill: Sequence[Any] = [*ASK["messages"], {"role": "assistant", "content": "The answer is ("}]
    await c.asyn.messages.create(**{**ASK, "messages": prefill})
    assert [message.role for message in c.turns[0].messages] == ["user", "assistant"]
