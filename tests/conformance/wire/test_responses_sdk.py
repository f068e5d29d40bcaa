"""The Responses dialect with the official SDK, sync and async, streaming and not, against a gateway on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.gateway.dialects.base import WireRequest
from drivetrain.gateway.dialects.openai_responses.dialect import OpenAIResponses
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.sessions import Session
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.sample import rows_of
from tests.conformance.wire.responses_kit import (
    CUSTOM,
    FUNCTION,
    NAMESPACE,
    bash,
    check_response,
    check_stream,
    codex_request,
    order_of,
    read_frames,
    say_call,
)
from tests.gateway.conftest import Rig, StartRig

TOOLS: Any = [FUNCTION, CUSTOM, NAMESPACE]
TWO_CALLS = f"<think>two at once</think>Let me look, ünd lösen 🙂.\n{bash('ls -l')}\n{bash('cat naïve.py')}"


@pytest.fixture(scope="session")
def codec(tiny_model: ModelDir) -> TokenCodec:
    """A policy that reasons."""
    return load_codec(tiny_model, parser="think+hermes")


def links(session: Session) -> list[str]:
    return [turn.link for turn in session.graph]


def chained(turns: int) -> list[str]:
    return ["root", *["linear"] * (turns - 1)]


def outputs(response: Any, text: str = "ok") -> list[dict[str, Any]]:
    """An output for every call of a response."""
    kinds = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
    return [
        {"type": kinds[item.type], "call_id": item.call_id, "output": f"{text} {at}"}
        for at, item in enumerate(response.output)
        if item.type in kinds
    ]


def resent(response: Any) -> list[dict[str, Any]]:
    """The items of a response, as the SDK's users append them to the next input."""
    return [item.to_dict() for item in response.output]


async def post(rig: Rig, client: AsyncOpenAI, body: Any, path: str = "/v1/responses") -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {client.api_key}"}
    async with aiohttp.ClientSession() as http, http.post(rig.url + path, json=body, headers=headers) as response:
        return response.status, await response.read()


async def test_reasoning_text_and_parallel_calls(start_rig: StartRig) -> None:
    rig = await start_rig([TWO_CALLS])
    session, client = await rig.session()
    done = await client.responses.create(model="any", input="fix it", tools=TOOLS)
    turn = next(iter(session.graph))
    check_response(done.to_dict())
    assert [item.type for item in done.output] == ["reasoning", "message", "function_call", "function_call"]
    assert done.output_text == "Let me look, ünd lösen 🙂."
    assert turn.reply.reasoning == "two at once"
    assert [item.call_id for item in done.output[2:]] == [call.id for call in turn.reply.tool_calls]  # type: ignore[union-attr]
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens) == (turn.prompt_len, len(turn.sampled_ids))
    assert (turn.dialect, turn.delivered, done.status) == ("openai_responses", True, "completed")
    assert done.id == f"resp_{turn.reply.id}"
    said = done.model_dump_json()
    assert "token_ids" not in said and '"logprob"' not in said


async def test_sync_and_async_whole_and_streamed_say_the_same(start_rig: StartRig) -> None:
    rig = await start_rig([TWO_CALLS] * 4)
    session, client = await rig.session()
    plain = OpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0, timeout=20)
    asked: dict[str, Any] = {"model": "any", "tools": TOOLS}

    def streamed() -> Any:
        with plain.responses.stream(input="b", **asked) as stream:
            return stream.get_final_response()

    async with client.responses.stream(input="a", **asked) as stream:
        kinds = [event.type async for event in stream]
        first = await stream.get_final_response()
    raw = [event async for event in await client.responses.create(input="c", stream=True, **asked)]
    found = [
        first,
        await asyncio.to_thread(streamed),
        raw[-1].response,  # type: ignore[union-attr]
        await asyncio.to_thread(lambda: plain.responses.create(input="d", **asked)),
    ]
    assert len({(one.output_text, len(one.output), one.status) for one in found}) == 1
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    check_stream([event.to_dict() for event in raw])
    assert all(turn.delivered for turn in session.graph)


async def test_custom_and_namespaced_tools_there_and_back(start_rig: StartRig) -> None:
    patch = say_call("apply_patch", {"input": "*** Begin Patch\n+ü"})
    raw = say_call("apply_patch", {"patch": "no input"})
    spawn = say_call("multi_agent_v1__spawn_agent", {"task": "look"})
    rig = await start_rig([f"{patch}\n{spawn}", raw])
    session, client = await rig.session()
    first = await client.responses.create(model="any", input="fix it", tools=TOOLS)
    made, called = first.output
    assert (made.type, made.name, made.input) == ("custom_tool_call", "apply_patch", "*** Begin Patch\n+ü")  # type: ignore[union-attr]
    assert (called.type, called.name, called.namespace) == ("function_call", "spawn_agent", "multi_agent_v1")  # type: ignore[union-attr]
    history: Any = [{"role": "user", "content": "fix it"}, *resent(first), *outputs(first)]
    second = await client.responses.create(model="any", input=history, tools=TOOLS)
    assert json.loads(second.output[0].input) == {"patch": "no input"}  # type: ignore[union-attr]
    last = await client.responses.create(model="any", input=[*history, *resent(second), *outputs(second)], tools=TOOLS)
    assert last.output_text == "done"
    assert links(session) == chained(3)
    assert [turn.soft_mismatches for turn in session.graph] == [0, 0, 1]  # raw text comes back in an object


Rewrite = Callable[[list[dict[str, Any]], list[dict[str, Any]]], list[dict[str, Any]]]


def verbatim(items: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return items + results


def interleaved(items: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_call = {result["call_id"]: result for result in results}
    return [one for item in items for one in (item, by_call.get(item.get("call_id"))) if one]


def stripped(items: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """No ids, no reasoning, plain strings, arguments spelled anew, outputs backwards."""
    kept = []
    for item in items:
        if item["type"] == "message":
            kept.append({"role": "assistant", "content": item["content"][0]["text"]})
        elif item["type"] == "function_call":
            spelled = json.dumps(json.loads(item["arguments"]), indent=1)
            kept.append({name: item[name] for name in ("type", "call_id", "name")} | {"arguments": spelled})
    return kept + results[::-1]


def referred(items: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "item_reference", "id": item["id"]} for item in items] + results


@pytest.mark.parametrize("rewrite", [verbatim, interleaved, stripped, referred])
async def test_resent_items_stay_one_chain(start_rig: StartRig, rewrite: Rewrite) -> None:
    """openenv.md section 5.1: a reply of text and calls is several items and must not become several messages."""
    rig = await start_rig([TWO_CALLS, f"Again.\n{bash('pwd')}", TWO_CALLS])
    session, client = await rig.session()
    history: list[Any] = [{"role": "user", "content": "fix it"}]
    for _ in range(4):
        done = await client.responses.create(model="any", input=history, tools=TOOLS, instructions="Be brief.")
        history += rewrite(resent(done), outputs(done))
    assert links(session) == chained(4)
    assert len(rows_of(session.graph)) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_previous_response_stays_one_chain(start_rig: StartRig, streamed: bool) -> None:
    rig = await start_rig([TWO_CALLS, f"Again.\n{bash('pwd')}", TWO_CALLS])
    session, client = await rig.session()
    asked: dict[str, Any] = {"model": "any", "tools": TOOLS, "instructions": "Be brief."}
    items: Any = "fix it"
    previous: Any = openai.omit
    for _ in range(4):
        if streamed:
            events = await client.responses.create(input=items, previous_response_id=previous, stream=True, **asked)
            done = [event async for event in events][-1].response  # type: ignore[union-attr]
        else:
            done = await client.responses.create(input=items, previous_response_id=previous, **asked)
        items, previous = outputs(done) or "go on", done.id
    assert links(session) == chained(4)
    assert len(rows_of(session.graph)) == 1
    other = await client.responses.create(model="any", input="hi", previous_response_id=previous, tools=TOOLS)
    roles = [message.role for message in session.conversation(other.id.removeprefix("resp_")) or ()]
    assert roles[0] == "user" and "system" not in roles  # instructions are not inherited


async def test_a_system_item_is_inherited_where_instructions_are_not(start_rig: StartRig) -> None:
    rig = await start_rig()
    session, client = await rig.session()
    asked: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    first = await client.responses.create(model="any", input=asked)
    await client.responses.create(model="any", input="more", previous_response_id=first.id)
    assert links(session) == chained(2)


@pytest.mark.case("C10")
async def test_length_stop(start_rig: StartRig) -> None:
    rig = await start_rig(["word " * 200] * 2)
    session, client = await rig.session(max_tokens_per_turn=16)
    done = await client.responses.create(model="any", input="hi")
    assert (done.status, done.incomplete_details.reason) == ("incomplete", "max_output_tokens")  # type: ignore[union-attr]
    async with client.responses.stream(model="any", input="again") as stream:
        last = [event async for event in stream][-1]
    assert last.type == "response.incomplete" and last.response.output_text.startswith("word")
    assert [turn.finish_reason for turn in session.graph] == ["length", "length"]


async def test_counts_are_those_of_the_call(start_rig: StartRig) -> None:
    rig = await start_rig()
    session, client = await rig.session()
    asked: dict[str, Any] = {"model": "any", "input": "fix it", "tools": TOOLS, "instructions": "Be brief."}
    counted = await client.responses.input_tokens.count(**asked)
    assert len(session.graph) == 0
    done = await client.responses.create(**asked)
    assert done.usage is not None and counted.input_tokens == done.usage.input_tokens
    assert counted.object == "response.input_tokens"


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"tool_choice": "required"}, "unsupported", "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "bash"}}, "unsupported", "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "unsupported", "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "unsupported", "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, "unsupported", "text.format"),
        ({"background": True}, "unsupported", "background"),
        ({"input": 7}, "invalid_request", None),
        ({"input": "word " * 20000}, "context_length_exceeded", "input"),
        ({"previous_response_id": "resp_x"}, "previous_response_not_found", "previous_response_id"),
    ],
)
async def test_bad_requests(start_rig: StartRig, change: dict[str, Any], code: str, param: str | None) -> None:
    rig = await start_rig()
    session, client = await rig.session()
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(**({"model": "any", "input": "hi", "stream": stream} | change))
        assert (caught.value.code, caught.value.param) == (code, param)
        assert caught.value.type == "invalid_request_error"
    assert len(session.graph) == 0 and session.budget.reserved_turns == 0


async def test_free_tool_choices_are_served(start_rig: StartRig) -> None:
    rig = await start_rig()
    session, client = await rig.session()
    for choice in ("auto", "none"):
        text: Any = {"format": {"type": "text"}}
        done = await client.responses.create(model="any", input=choice, tools=TOOLS, tool_choice=choice, text=text)
        assert done.tool_choice == choice
    assert [turn.requested.extra["tool_choice"] for turn in session.graph] == ["auto", "none"]


async def test_wrong_keys_and_paths_are_answered_in_the_dialect(start_rig: StartRig) -> None:
    rig = await start_rig()
    _, client = await rig.session()
    with pytest.raises(openai.AuthenticationError) as caught:
        await client.with_options(api_key="dtk-wrong").responses.create(model="any", input="hi")
    assert (caught.value.code, caught.value.type) == ("invalid_api_key", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        await client.responses.retrieve("resp_123")
    assert missing.value.code == "not_found"
    status, body = await post(rig, client, {}, "/v1/responses/compact")
    assert status == 404 and json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_engine_failure_keeps_its_status_inside_the_grace(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(error=EngineError("gone"))], tiny_model, then="recovered")
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    with pytest.raises(openai.InternalServerError) as caught:
        await client.responses.create(model="any", input="hi", stream=True)
    assert (caught.value.status_code, caught.value.type) == (503, "server_error")
    assert (await client.responses.create(model="any", input="hi")).output_text == "recovered"
    assert len(session.graph) == 1


@pytest.mark.case("D2")
@pytest.mark.parametrize("form", ["default", "event", "comment", "newline"])
async def test_a_slow_reply_is_kept_alive(start_rig: StartRig, tiny_model: ModelDir, form: Any) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(text=TWO_CALLS, delay_s=0.4)] * 2, tiny_model)
    rig = await start_rig(engine=engine, patience=Patience(grace_s=0.05, every_s=0.05, form=form))
    session, client = await rig.session()
    body = {"model": "any", "input": "hi", "tools": TOOLS, "stream": True}
    _, raw = await post(rig, client, body)
    events = read_frames(raw)
    check_stream(events)
    progress = order_of(events).count("progress")
    assert progress >= 4 if form in ("default", "event") else progress == 1
    assert {"comment": b": keep-alive", "newline": b"\n\n\n"}.get(form, b"event: ") in raw
    async with client.responses.stream(model="any", input="again", tools=TOOLS) as stream:
        done = await stream.get_final_response()
    assert done.output_text == "Let me look, ünd lösen 🙂." and len(done.output) == 4
    assert all(turn.delivered for turn in session.graph)


async def test_a_late_failure_is_a_failed_response(start_rig: StartRig, tiny_model: ModelDir) -> None:
    """Codex asks again after ``response.failed`` (harnesses.md section 6); so may the SDK's user, who is told."""
    slow = ScriptedReply(error=EngineError("gone"), delay_s=0.3)
    engine = ScriptedEngine.from_lines([slow, slow], tiny_model, then="recovered")
    rig = await start_rig(engine=engine, patience=Patience(grace_s=0.05, every_s=0.05))
    session, client = await rig.session()
    events = [event async for event in await client.responses.create(model="any", input="hi", stream=True)]
    check_stream([event.to_dict() for event in events])
    failed = events[-1]
    assert failed.type == "response.failed" and failed.response.error is not None
    assert failed.response.error.code == "server_error" and "gone" in failed.response.error.message
    async with client.responses.stream(model="any", input="hi") as stream:
        with pytest.raises(RuntimeError, match=r"response\.completed"):
            await stream.get_final_response()
    assert (await client.responses.create(model="any", input="hi")).output_text == "recovered"
    assert len(session.graph) == 1


@pytest.mark.case("D1")
async def test_a_retry_of_an_undelivered_reply_gets_the_same_bytes(start_rig: StartRig) -> None:
    rig = await start_rig([TWO_CALLS])
    session, _ = await rig.session()
    call_body = json.dumps(codex_request([])).encode()
    dialect = OpenAIResponses()
    bodies = []
    for _ in range(2):  # served, never marked delivered
        call = dialect.decode(WireRequest(body=call_body), session)
        served = await rig.gateway.serve(session, call, call_body)
        bodies.append((dialect.encode(served.reply, call), list(dialect.events(served.reply, call, opened=False))))
    assert bodies[0] == bodies[1] and len(session.graph) == 1


async def test_a_codex_session_is_one_row(start_rig: StartRig) -> None:
    """Developer messages, sealed reasoning, namespaces, web_search, extras: 12 turns, one chain, one row."""
    lines = [
        TWO_CALLS,
        f"<think>patch</think>{say_call('apply_patch', {'input': '*** Begin'})}",
        f"Helpers.\n{say_call('multi_agent_v1__spawn_agent', {'task': 'look'})}",
        bash("pytest -q"),
    ]
    script = [lines[turn % 4] for turn in range(11)]
    rig = await start_rig(script)
    session, client = await rig.session()
    items: list[dict[str, Any]] = []
    for _ in range(12):
        _, raw = await post(rig, client, codex_request(items))
        events = read_frames(raw)
        check_stream(events)
        for event in events:  # what Codex keeps: the finished items, without status
            if event["type"] == "response.output_item.done":
                items.append({name: value for name, value in event["item"].items() if name != "status"})
        done = check_response(events[-1]["response"])
        items += outputs(done)
    assert links(session) == chained(12)
    assert [turn.soft_mismatches for turn in session.graph] == [0] * 12
    (row,) = rows_of(session.graph)
    assert sum(row.loss_mask) == sum(len(turn.sampled_ids) for turn in session.graph)
    assert session.graph[0].requested.extra["dropped_tools"] == ["web_search"]
    assert all(item["encrypted_content"] for item in items if item["type"] == "reasoning")
