"""The chat completions dialect with the official SDK: sync, async, streams, the accumulator, tools, errors, models."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.patience import Patience
from drivetrain.tokens.codec import TokenCodec
from tests.gateway.conftest import BASH, Rig, StartRig

USER: Any = {"role": "user", "content": "fix the bug"}
TWO_CALLS = (
    "<think>two things at once</think>Let me look, ünd lösen 🙂.\n"
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "bash", "arguments": {"command":  "cat naïve.py"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def codec(tiny_model: ModelDir) -> TokenCodec:
    """One that reads reasoning."""
    return load_codec(tiny_model, parser="think+hermes")


def sync_client(rig: Rig, client: AsyncOpenAI) -> OpenAI:
    return OpenAI(base_url=f"{rig.url}/v1", api_key=client.api_key, max_retries=0, timeout=20)


def raw_http(rig: Rig, client: AsyncOpenAI) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=rig.url, headers={"Authorization": f"Bearer {client.api_key}"}, timeout=60)


async def test_reply_with_reasoning_text_and_parallel_calls(start_rig: StartRig) -> None:
    rig = await start_rig([TWO_CALLS])
    session, client = await rig.session()
    done = await client.chat.completions.create(model="any", messages=[USER], tools=[BASH])  # type: ignore[list-item]
    turn = next(iter(session.graph))
    message = done.choices[0].message
    assert message.content == "Let me look, ünd lösen 🙂."
    assert message.model_extra == {"reasoning_content": "two things at once"}
    calls = [(call.id, call.type, call.function.name) for call in message.tool_calls or () if call.type == "function"]
    assert calls == [(call.id, "function", "bash") for call in turn.reply.tool_calls]
    assert [c.function.arguments for c in message.tool_calls or () if c.type == "function"] == [
        call.arguments for call in turn.reply.tool_calls
    ]
    assert done.choices[0].finish_reason == "tool_calls"
    assert (done.model, done.object, done.id) == ("policy", "chat.completion", f"chatcmpl-{turn.reply.id}")
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (turn.prompt_len, len(turn.sampled_ids))


async def test_accumulator_of_the_sdk_rebuilds_the_reply(start_rig: StartRig) -> None:
    rig = await start_rig([TWO_CALLS, TWO_CALLS])
    session, client = await rig.session()
    asked: Any = {"model": "m", "messages": [USER], "tools": [BASH], "stream_options": {"include_usage": True}}
    async with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        built = await stream.get_final_completion()
    turn = next(iter(session.graph))
    whole = await client.chat.completions.create(model="m", messages=[USER, USER], tools=[BASH])  # type: ignore[list-item]
    assert_same_message(built, whole)
    assert built.usage is not None and built.usage.total_tokens == turn.prompt_len + len(turn.sampled_ids)
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert kinds.count("content.done") == 1


async def test_sync_client_streams_the_same(start_rig: StartRig) -> None:
    rig = await start_rig([TWO_CALLS, TWO_CALLS])
    _, client = await rig.session()
    sync = sync_client(rig, client)

    def use() -> tuple[Any, ChatCompletion]:
        with sync.chat.completions.stream(model="m", messages=[USER], tools=[BASH]) as stream:  # type: ignore[list-item]
            built = stream.get_final_completion()
        return built, sync.chat.completions.create(model="m", messages=[USER, USER], tools=[BASH])  # type: ignore[list-item]

    built, whole = await asyncio.to_thread(use)
    assert_same_message(built, whole)


def assert_same_message(built: Any, whole: ChatCompletion) -> None:
    """Equal but for the ids, which name the turn."""
    one, other = built.choices[0], whole.choices[0]
    assert (one.finish_reason, one.message.role) == (other.finish_reason, other.message.role)
    assert one.message.content == other.message.content
    assert one.message.model_extra["reasoning_content"] == other.message.model_extra["reasoning_content"]
    assert len(one.message.tool_calls) == len(other.message.tool_calls or ()) == 2
    for left, right in zip(one.message.tool_calls, other.message.tool_calls or (), strict=True):
        assert right.type == left.type == "function"
        assert left.function.name == right.function.name
        assert left.function.arguments == right.function.arguments


@pytest.mark.parametrize("form", ["default", "comment", "newline", "event"])
@pytest.mark.case("D2")
async def test_keep_alives_mean_nothing(start_rig: StartRig, tiny_model: ModelDir, form: Any) -> None:
    """In the accumulator too; Qwen's clock counts data events only (harnesses.md section 1.5)."""
    engine = ScriptedEngine.from_lines([ScriptedReply(text=TWO_CALLS, delay_s=0.3)] * 2, tiny_model)
    rig = await start_rig(engine=engine, patience=Patience(grace_s=0.02, every_s=0.05, form=form))
    session, client = await rig.session()
    async with client.chat.completions.stream(model="m", messages=[USER], tools=[BASH]) as stream:  # type: ignore[list-item]
        async for _ in stream:
            pass
        message = (await stream.get_final_completion()).choices[0].message
    turn = next(iter(session.graph))
    assert (message.role, message.content) == ("assistant", turn.reply.content)
    assert [call.function.arguments for call in message.tool_calls or ()] == [
        c.arguments for c in turn.reply.tool_calls
    ]
    async with raw_http(rig, client) as http:
        body = {"model": "m", "messages": [USER, USER], "stream": True}
        raw = (await http.post("/v1/chat/completions", json=body)).text
    before, _, _ = raw.partition('"role":"assistant"')
    beats = {"default": ": keep-alive\n\n", "comment": ": keep-alive\n\n", "newline": "\n", "event": '{"content":""}'}
    assert before.count(beats[form]) >= 2


async def test_failure_after_the_grace_is_an_error_event(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(error=EngineError("gone"), delay_s=0.2)] * 2, tiny_model)
    rig = await start_rig(engine=engine, patience=Patience(grace_s=0.02, every_s=0.05))
    _, client = await rig.session()
    with pytest.raises(openai.APIError, match="gone"):
        async for _ in await client.chat.completions.create(model="m", messages=[USER], stream=True):
            pass
    async with raw_http(rig, client) as http:
        raw = (await http.post("/v1/chat/completions", json={"model": "m", "messages": [USER], "stream": True})).text
    assert "[DONE]" not in raw and "finish_reason" not in raw


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 2}, "n"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "bash"}}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"functions": [{"name": "bash"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"tools": [{"type": "custom", "custom": {"name": "patch"}}]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": [USER, {"role": "function", "name": "bash", "content": "x"}]}, "messages[1]"),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "bash", "arguments": "{}"}}, USER]},
            "messages[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages[1]"),
        ({"messages": []}, "messages"),
        ({"max_completion_tokens": 0}, "max_tokens"),
    ],
)
async def test_refused_with_the_field_at_fault(start_rig: StartRig, change: dict[str, Any], param: str) -> None:
    rig = await start_rig(["ok"])
    session, client = await rig.session()
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**{"model": "m", "messages": [USER], **change})
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")
    assert len(session.graph) == 0
    assert session.budget.reserved_turns == 0


@pytest.mark.parametrize("change", [{"n": 1}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"store": False}])
async def test_what_asks_for_nothing_special_is_served(start_rig: StartRig, change: dict[str, Any]) -> None:
    rig = await start_rig(["ok"])
    _, client = await rig.session()
    asked: Any = {"model": "m", "messages": [USER], "response_format": {"type": "text"}, **change}
    done = await client.chat.completions.create(**asked)
    assert done.choices[0].message.content == "ok"


async def test_max_completion_tokens_wins(start_rig: StartRig) -> None:
    rig = await start_rig(["word " * 50])
    session, client = await rig.session()
    done = await client.chat.completions.create(model="m", messages=[USER], max_completion_tokens=5, max_tokens=40)
    assert done.choices[0].finish_reason == "length"
    assert len(next(iter(session.graph)).sampled_ids) == 5


async def test_developer_role(start_rig: StartRig) -> None:
    rig = await start_rig(["ok"])
    session, client = await rig.session()
    developer: Any = {"role": "developer", "content": "You fix bugs."}
    await client.chat.completions.create(model="m", messages=[developer, USER])
    prompt = rig.gateway.codec.tokenizer.decode(next(iter(session.graph)).delta_ids.tolist())
    assert "You fix bugs." in prompt


async def test_error_classes(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(error=EngineError("overloaded"))], tiny_model, then="ok")
    rig = await start_rig(engine=engine)
    session, client = await rig.session(max_body_bytes=100_000)
    create = client.chat.completions.create
    with pytest.raises(openai.InternalServerError) as unavailable:
        await create(model="m", messages=[USER])
    assert (unavailable.value.status_code, unavailable.value.response.headers["Retry-After"]) == (503, "1")
    with pytest.raises(openai.APIStatusError) as too_large:
        await create(model="m", messages=[{"role": "user", "content": "x" * 200_000}])
    assert too_large.value.status_code == 413
    with pytest.raises(openai.BadRequestError) as overflow:
        await create(model="m", messages=[{"role": "user", "content": "word " * 18_000}])
    assert overflow.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        await client.embeddings.create(model="m", input="x")
    with pytest.raises(openai.AuthenticationError) as stranger:
        await client.with_options(api_key="nobody").chat.completions.create(model="m", messages=[USER])
    assert stranger.value.code == "invalid_api_key"
    await rig.gateway.seal_session(session.id)
    with pytest.raises(openai.ConflictError):
        await create(model="m", messages=[USER])
    assert len(session.graph) == 0


async def test_models(start_rig: StartRig) -> None:
    rig = await start_rig()
    session, client = await rig.session()
    listed = (await client.models.list()).data[0]
    for model in (listed, await client.models.retrieve("policy"), await client.models.retrieve("Org/Name-8B")):
        assert (model.id, model.object, model.created) == ("policy", "model", int(session.created_at))
        assert model.model_extra == {"max_model_len": rig.gateway.engine.context_length}


async def test_half_a_surrogate_pair_is_read(start_rig: StartRig) -> None:
    """JavaScript that cuts a text inside an emoji sends half of it (``JSON.stringify`` writes an escape)."""
    rig = await start_rig(["ok", "ok"])
    session, client = await rig.session()
    body = rb'{"model":"m","messages":[{"role":"user","content":"cut \ud83d and \\ud83d and \ud83d\ude42"}]}'
    async with raw_http(rig, client) as http:
        assert (await http.post("/v1/chat/completions", content=body)).status_code == 200
    (message,) = next(iter(session.graph)).messages
    assert message.content == "cut � and \\ud83d and 🙂"


@pytest.mark.parametrize("where", ["arguments", "parameters", "unknown", "content"])
async def test_deep_nesting_is_never_a_server_error(start_rig: StartRig, where: str) -> None:
    rig = await start_rig(["ok"])
    _, client = await rig.session()
    deep = b"[" * 3000 + b"]" * 3000
    pieces: dict[str, bytes] = {
        "arguments": b'{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"bash",'
        b'"arguments":"{\\"a\\":' + deep + b'}"}}]},{"role":"tool","tool_call_id":"a","content":"x"}',
        "content": b'{"role":"user","content":' + deep + b"}",
    }
    message = pieces.get(where, b'{"role":"user","content":"hi"}')
    extra = b""
    if where == "parameters":
        extra = b',"tools":[{"type":"function","function":{"name":"bash","parameters":{"a":' + deep + b"}}}]"
    if where == "unknown":
        extra = b',"metadata":{"a":' + deep + b"}"
    async with raw_http(rig, client) as http:
        reply = await http.post(
            "/v1/chat/completions", content=b'{"model":"m","messages":[' + message + b"]" + extra + b"}"
        )
    assert reply.status_code in (200, 400), reply.text
    if where == "content":
        assert reply.json()["error"]["code"] == "invalid_request"


@pytest.mark.parametrize("size", [300_000, 10_000_000])
async def test_big_bodies(start_rig: StartRig, size: int) -> None:
    """What the model would read is a context overflow; ten megabytes that it would not read are no trouble."""
    rig = await start_rig(["ok"])
    session, client = await rig.session()
    read = size < 1_000_000
    text = "a b c d e " * (size // 10)
    async with raw_http(rig, client) as http:
        body = {"model": "m", "messages": [{"role": "user", "content": text if read else "hi"}], "metadata": text}
        reply = await http.post("/v1/chat/completions", json=body)
    if read:
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    else:
        assert reply.json()["choices"][0]["message"]["content"] == "ok"
    assert len(session.graph) == int(not read)


@pytest.mark.case("A8")
async def test_half_a_surrogate_pair_in_a_call_comes_back(start_rig: StartRig) -> None:
    """Sampled as an escape in a call's arguments, returned and continued, also behind another system prompt."""
    rig = await start_rig([r'<tool_call>{"name": "bash", "arguments": {"command": "cut \ud83d"}}</tool_call>'])
    session, client = await rig.session()
    asked: Any = {"model": "m", "tools": [BASH]}
    done = await client.chat.completions.create(**asked, messages=[USER])
    (call,) = done.choices[0].message.tool_calls or ()
    assert call.type == "function" and call.function.arguments.endswith(r'cut \ud83d"}')
    history: Any = [
        USER,
        done.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "x"},
    ]
    await client.chat.completions.create(**asked, messages=history)
    await client.chat.completions.create(**asked, messages=[{"role": "system", "content": "new"}, *history])
    assert [turn.link for turn in session.graph] == ["root", "linear", "new_root"]
