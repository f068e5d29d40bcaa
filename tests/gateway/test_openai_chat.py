"""The chat dialect with the official SDK: JSON, streaming, tools, errors."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import openai
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.gateway.patience import Patience
from tests.gateway.conftest import BASH, StartRig, bash_call

USER = {"role": "user", "content": "fix the bug"}


async def test_json_reply_with_a_tool_call(start_rig: StartRig) -> None:
    rig = await start_rig([bash_call("ls -l")])
    session, client = await rig.session()
    done = await client.chat.completions.create(model="any", messages=[USER], tools=[BASH])
    choice = done.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.arguments == '{"command":"ls -l"}'
    turn = next(iter(session.graph))
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (turn.prompt_len, len(turn.sampled_ids))
    assert "token_ids" not in done.model_dump_json() and "prompt_token_ids" not in done.model_dump_json()


async def test_stream_builds_the_same_message(start_rig: StartRig) -> None:
    rig = await start_rig([bash_call("cat " + "x" * 200)])
    session, client = await rig.session()
    text, arguments, name, finish, usage = "", "", "", None, None
    stream = await client.chat.completions.create(
        model="any", messages=[USER], tools=[BASH], stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                name = call.function.name or name
                arguments += call.function.arguments or ""
            finish = choice.finish_reason or finish
    turn = next(iter(session.graph))
    assert (text, name, finish) == ("Let me look.", "bash", "tool_calls")
    assert arguments == turn.reply.tool_calls[0].arguments
    assert usage is not None and usage.total_tokens == turn.prompt_len + len(turn.sampled_ids)
    assert turn.delivered


async def test_keep_alives_while_the_engine_is_slow(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(text="late", delay_s=0.6)], tiny_model)
    rig = await start_rig(engine=engine, patience=Patience(grace_s=0.05, every_s=0.1))
    _, client = await rig.session()
    body = {"model": "m", "messages": [USER], "stream": True}
    headers = {"Authorization": f"Bearer {client.api_key}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{rig.url}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        raw = await response.text()
    assert raw.count(": keep-alive\n\n") >= 3
    assert raw.endswith("data: [DONE]\n\n")
    assert "late" in raw


async def test_failure_inside_the_grace_keeps_its_status(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(error=EngineError("gone"))], tiny_model, then="recovered")
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model="m", messages=[USER], stream=True)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["Retry-After"] == "1"
    again = await client.chat.completions.create(model="m", messages=[USER])
    assert again.choices[0].message.content == "recovered"
    assert len(session.graph) == 1
    assert session.events == {"refused": 1}


async def test_failure_after_the_grace_is_an_error_event(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(error=EngineError("gone"), delay_s=0.3)], tiny_model)
    rig = await start_rig(engine=engine, patience=Patience(grace_s=0.05, every_s=0.05))
    _, client = await rig.session()
    stream = await client.chat.completions.create(model="m", messages=[USER], stream=True)
    with pytest.raises(openai.APIError, match="gone"):
        async for _ in stream:
            pass


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"n": 2}, 400, "unsupported"),
        ({"logit_bias": {"5": 1}}, 400, "unsupported"),
        ({"response_format": {"type": "json_object"}}, 400, "unsupported"),
        ({"tool_choice": "required"}, 400, "unsupported"),
        ({"messages": []}, 400, "invalid_request"),
        ({"messages": "text"}, 400, "invalid_request"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_request"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, 400, "unsupported"),
        ({"max_tokens": 0}, 400, "invalid_request"),
        ({"messages": [{"role": "user", "content": "word " * 20000}]}, 400, "context_length_exceeded"),
    ],
)
async def test_bad_requests(start_rig: StartRig, change: dict[str, Any], status: int, code: str) -> None:
    rig = await start_rig()
    session, client = await rig.session()
    headers = {"Authorization": f"Bearer {client.api_key}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            f"{rig.url}/v1/chat/completions", json={"model": "m", "messages": [USER], **change}, headers=headers
        ) as response,
    ):
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (status, code)
    assert len(session.graph) == 0
    assert session.budget.reserved_turns == 0


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
async def test_bodies_that_are_no_json(start_rig: StartRig, body: bytes) -> None:
    rig = await start_rig()
    _, client = await rig.session()
    headers = {"Authorization": f"Bearer {client.api_key}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{rig.url}/v1/chat/completions", data=body, headers=headers) as response,
    ):
        assert response.status == 400


async def test_harness_sampling_is_recorded_and_not_obeyed(start_rig: StartRig) -> None:
    rig = await start_rig(["ok"])
    session, client = await rig.session(temperature=0.7, max_tokens_per_turn=64)
    await client.chat.completions.create(model="m", messages=[USER], temperature=0.1, top_p=0.5, max_tokens=32, seed=3)
    turn = next(iter(session.graph))
    assert (turn.requested.temperature, turn.requested.top_p, turn.requested.seed) == (0.1, 0.5, 3)
    assert turn.effective["temperature"] == 0.7 and turn.effective["top_p"] == 1.0
    assert turn.effective["max_tokens"] == 32


async def test_models_route(start_rig: StartRig) -> None:
    rig = await start_rig()
    _, client = await rig.session()
    assert [model.id for model in (await client.models.list()).data] == ["policy"]


async def test_parallel_calls_of_one_session(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([], tiny_model, then=ScriptedReply(text="ok", delay_s=0.1))
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    asked = [
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"task {i}"}]) for i in range(8)
    ]
    await asyncio.gather(*asked)
    assert len(session.graph) == 8
    assert engine.peak == 8
    assert {turn.parent for turn in session.graph} == {None}
