"""The Google dialect with the official SDK: sync, async, streaming, tools, thoughts, errors, counts, models."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import msgspec
import pytest
from google import genai
from google.genai import errors, types

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.sessions import Session
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.sample import rows_of
from tests.gateway.conftest import Rig, StartRig, bash_call

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {"name": "bash", "description": "run a command", "parameters_json_schema": SCHEMA}
TOOLS: Any = [{"function_declarations": [BASH]}]
TWO_CALLS = (
    "<think>two things at once</think>Let me look, ünd lösen 🙂.\n"
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "bash", "arguments": {"command": "cat naïve.py"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def codec(tiny_model: ModelDir) -> TokenCodec:
    """One that reads reasoning."""
    return load_codec(tiny_model, parser="think+hermes")


def config(**more: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(tools=TOOLS, **more)


async def connect(rig: Rig, **policy: Any) -> tuple[Session, genai.Client]:
    """An open session and an SDK client that holds its key."""
    session, openai_client = await rig.session(**policy)
    return session, genai.Client(api_key=openai_client.api_key, http_options=types.HttpOptions(base_url=rig.url))


async def test_reply_with_thought_text_and_parallel_calls(start_rig: StartRig) -> None:
    rig = await start_rig([TWO_CALLS])
    session, client = await connect(rig)
    done = await client.aio.models.generate_content(model="any", contents="fix it", config=config())
    turn = next(iter(session.graph))
    assert done.candidates is not None and done.candidates[0].content is not None
    thought, text, first, second = done.candidates[0].content.parts or ()
    assert (thought.thought, thought.text) == (True, "two things at once")
    assert text.text == "Let me look, ünd lösen 🙂."
    assert [part.function_call.args for part in (first, second) if part.function_call] == [
        {"command": "ls -l"},
        {"command": "cat naïve.py"},
    ]
    assert [call.id for call in done.function_calls or ()] == [call.id for call in turn.reply.tool_calls]
    assert done.candidates[0].finish_reason == types.FinishReason.STOP
    assert (done.model_version, done.response_id) == ("policy", turn.reply.id)
    usage = done.usage_metadata
    assert usage is not None
    assert (usage.prompt_token_count, usage.candidates_token_count) == (turn.prompt_len, len(turn.sampled_ids))
    assert usage.total_token_count == turn.prompt_len + len(turn.sampled_ids)
    assert (turn.dialect, turn.delivered) == ("google", True)


async def test_sync_client_and_stream_say_the_same(start_rig: StartRig) -> None:
    rig = await start_rig([TWO_CALLS, TWO_CALLS])
    session, client = await connect(rig)

    def whole() -> list[types.Part]:
        done = client.models.generate_content(model="any", contents="fix it", config=config())
        assert done.candidates and done.candidates[0].content
        return done.candidates[0].content.parts or []

    def streamed() -> list[types.GenerateContentResponse]:
        return list(client.models.generate_content_stream(model="any", contents="fix that", config=config()))

    at_once = await asyncio.to_thread(whole)
    chunks = await asyncio.to_thread(streamed)
    parts = [part for chunk in chunks for part in chunk.parts or ()]
    assert "".join(part.text or "" for part in parts if not part.thought) == at_once[1].text
    assert "".join(part.text or "" for part in parts if part.thought) == at_once[0].text
    calls = [part.function_call for part in parts if part.function_call]
    assert [call.args for call in calls] == [part.function_call.args for part in at_once[2:] if part.function_call]
    last = list(session.graph)[-1]
    assert [call.id for call in calls] == [call.id for call in last.reply.tool_calls]
    assert all(turn.delivered for turn in session.graph)


async def test_stream_has_usage_and_finish_reason_on_its_last_chunk(start_rig: StartRig) -> None:
    rig = await start_rig(["word " * 100])
    session, client = await connect(rig)
    chunks = [chunk async for chunk in await client.aio.models.generate_content_stream(model="m", contents="hi")]
    assert len(chunks) > 5
    reasons = [chunk.candidates[0].finish_reason for chunk in chunks if chunk.candidates]
    assert reasons == [None] * (len(chunks) - 1) + [types.FinishReason.STOP]
    assert [chunk.usage_metadata is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert "".join(chunk.text or "" for chunk in chunks) == next(iter(session.graph)).reply.content


async def test_cut_reply_says_max_tokens(start_rig: StartRig) -> None:
    rig = await start_rig(["word " * 100, "word " * 100])
    _, client = await connect(rig)
    cut = types.GenerateContentConfig(max_output_tokens=7)
    done = await client.aio.models.generate_content(model="m", contents="hi", config=cut)
    assert done.candidates and done.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
    chunks = [c async for c in await client.aio.models.generate_content_stream(model="m", contents="ho", config=cut)]
    assert chunks[-1].candidates and chunks[-1].candidates[0].finish_reason == types.FinishReason.MAX_TOKENS


async def test_count_is_exact_and_leaves_nothing_behind(start_rig: StartRig) -> None:
    rig = await start_rig(["ok"])
    session, client = await connect(rig)
    contents: Any = [
        {"role": "user", "parts": [{"text": "fix the bug, naïvely"}]},
        {"role": "model", "parts": [{"text": "how?"}]},
        {"role": "user", "parts": [{"text": "well"}]},
    ]
    counted = await client.aio.models.count_tokens(model="m", contents=contents)
    assert len(session.graph) == 0
    await client.aio.models.generate_content(model="m", contents=contents)
    assert counted.total_tokens == next(iter(session.graph)).prompt_len


async def test_models(start_rig: StartRig) -> None:
    rig = await start_rig()
    _, client = await connect(rig, max_tokens_per_turn=77)
    (listed,) = [model async for model in await client.aio.models.list()]
    got = await client.aio.models.get(model="policy")
    for model in (listed, got):
        assert (model.name, model.display_name) == ("models/policy", "policy")
        assert (model.input_token_limit, model.output_token_limit) == (rig.gateway.engine.context_length, 77)
        assert model.supported_actions == ["generateContent", "countTokens"]


async def test_chat_helper_streams_one_chain(start_rig: StartRig) -> None:
    """The SDK keeps a content for each chunk of a streamed reply: they come together again."""
    lines = ["<think>hm</think>" + f"answer {n} " * 40 for n in range(4)]
    rig = await start_rig(lines)
    session, client = await connect(rig)
    chat = client.aio.chats.create(model="m")
    for n in range(4):
        async for _ in await chat.send_message_stream(f"question {n}"):
            pass
    assert [turn.link for turn in session.graph] == ["root", "linear", "linear", "linear"]
    assert len(chat.get_history(curated=True)) > 20
    assert len(rows_of(session.graph)) == 1


async def test_automatic_function_calling(start_rig: StartRig) -> None:
    """The SDK runs the tool by itself; its declaration comes with types in upper case."""
    rig = await start_rig([bash_call("ls"), "all done"])
    session, client = await connect(rig)
    asked: list[str] = []

    def bash(command: str) -> str:
        """run a command"""
        asked.append(command)
        return "a.py"

    done = await client.aio.models.generate_content(
        model="m", contents="fix it", config=types.GenerateContentConfig(tools=[bash])
    )
    assert (done.text, asked) == ("all done", ["ls"])
    first, second = session.graph
    assert (first.link, second.link) == ("root", "linear")
    assert first.tools is not None
    assert first.tools[0].parameters["type"] == "object"
    assert first.tools[0].parameters["properties"]["command"]["type"] == "string"
    (result,) = second.messages
    assert (result.role, result.content, result.tool_call_id) == ("tool", "a.py", first.reply.tool_calls[0].id)


@pytest.mark.parametrize(
    ("change", "code", "status"),
    [
        ({"candidate_count": 2}, 400, "INVALID_ARGUMENT"),
        ({"response_mime_type": "application/json"}, 400, "INVALID_ARGUMENT"),
        ({"response_schema": {"type": "OBJECT"}}, 400, "INVALID_ARGUMENT"),
        ({"response_modalities": ["IMAGE"]}, 400, "INVALID_ARGUMENT"),
        ({"max_output_tokens": -1}, 400, "INVALID_ARGUMENT"),
        ({"cached_content": "cachedContents/1"}, 400, "INVALID_ARGUMENT"),
        ({"tool_config": {"function_calling_config": {"mode": "ANY"}}}, 400, "INVALID_ARGUMENT"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_not_served(
    start_rig: StartRig, change: dict[str, Any], code: int, status: str, stream: bool
) -> None:
    rig = await start_rig(["ok"])
    session, client = await connect(rig)
    models = client.aio.models
    with pytest.raises(errors.ClientError) as caught:
        if stream:
            async for _ in await models.generate_content_stream(model="m", contents="hi", config=config(**change)):
                pass
        else:
            await models.generate_content(model="m", contents="hi", config=config(**change))
    assert (caught.value.code, caught.value.status) == (code, status)
    assert "not supported" in str(caught.value.message) or "must be positive" in str(caught.value.message)
    assert len(session.graph) == 0


async def test_image_is_refused_or_named(start_rig: StartRig) -> None:
    rig = await start_rig(["ok"])
    picture = types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")
    session, client = await connect(rig)
    with pytest.raises(errors.ClientError, match=r"contents\[0\]\.parts\[1\] holds inlineData"):
        await client.aio.models.generate_content(model="m", contents=["see", picture])
    assert len(session.graph) == 0
    session, client = await connect(rig, images="placeholder")
    await client.aio.models.generate_content(model="m", contents=["see ", picture])
    (message,) = next(iter(session.graph)).messages
    assert message.content == "see [image left out: this model reads text only]"


async def test_context_overflow_in_the_words_of_the_api(start_rig: StartRig) -> None:
    rig = await start_rig(["ok"])
    _, client = await connect(rig)
    with pytest.raises(errors.ClientError) as caught:
        await client.aio.models.generate_content(model="m", contents="word " * 20000)
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
    words = r"The input token count \(\d{5,}\) exceeds the maximum number of tokens allowed \(8192\)\."
    assert caught.value.message is not None
    assert re.fullmatch(words, caught.value.message)


async def test_wrong_key_and_sealed_session(start_rig: StartRig) -> None:
    rig = await start_rig(["ok"])
    session, client = await connect(rig)
    stranger = genai.Client(api_key="nobody", http_options=types.HttpOptions(base_url=rig.url))
    with pytest.raises(errors.ClientError) as caught:
        await stranger.aio.models.generate_content(model="m", contents="hi")
    assert (caught.value.code, caught.value.status) == (401, "UNAUTHENTICATED")
    await rig.gateway.seal_session(session.id)
    with pytest.raises(errors.ClientError) as caught:
        await client.aio.models.generate_content(model="m", contents="hi")
    assert (caught.value.code, caught.value.status) == (409, "FAILED_PRECONDITION")


async def test_engine_failure_keeps_its_status_inside_the_grace(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(error=EngineError("gone"))] * 2, tiny_model)
    rig = await start_rig(engine=engine)
    _, client = await connect(rig)
    with pytest.raises(errors.ServerError) as caught:
        await client.aio.models.generate_content(model="m", contents="hi")
    assert (caught.value.code, caught.value.status) == (503, "UNAVAILABLE")
    with pytest.raises(errors.ServerError) as caught:
        async for _ in await client.aio.models.generate_content_stream(model="m", contents="hi"):
            pass
    assert (caught.value.code, caught.value.status) == (503, "UNAVAILABLE")


@pytest.mark.parametrize("form", ["default", "newline", "event"])
@pytest.mark.case("D2")
async def test_slow_reply_then_failure_after_the_grace(start_rig: StartRig, tiny_model: ModelDir, form: Any) -> None:
    """Keep-alives mean nothing to the SDK, and an error event is raised as what it is."""
    lines = [ScriptedReply(text="late", delay_s=0.3), ScriptedReply(error=EngineError("gone"), delay_s=0.2)]
    engine = ScriptedEngine.from_lines(lines, tiny_model)
    rig = await start_rig(engine=engine, patience=Patience(grace_s=0.02, every_s=0.05, form=form))
    session, client = await connect(rig)
    chunks = [c async for c in await client.aio.models.generate_content_stream(model="m", contents="hi")]
    assert "".join(chunk.text or "" for chunk in chunks) == "late"
    assert len(chunks) == 1 or form == "event"
    with pytest.raises(errors.ServerError, match="gone") as caught:
        async for _ in await client.aio.models.generate_content_stream(model="m", contents="ho"):
            pass
    assert (caught.value.code, caught.value.status) == (503, "UNAVAILABLE")
    assert len(session.graph) == 1


async def test_harness_sampling_is_recorded(start_rig: StartRig) -> None:
    rig = await start_rig(["ok"])
    session, client = await connect(rig)
    asked = types.GenerateContentConfig(
        temperature=0.3,
        top_p=0.95,
        top_k=64,
        seed=3,
        max_output_tokens=32,
        stop_sequences=["x"],
        thinking_config=types.ThinkingConfig(include_thoughts=True),
        safety_settings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],  # type: ignore[list-item]
        tools=[*TOOLS, {"google_search": {}}, {"code_execution": {}}, {"url_context": {}}],
        tool_config={"function_calling_config": {"mode": "AUTO"}},  # type: ignore[arg-type]
    )
    await client.aio.models.generate_content(model="m", contents="hi", config=asked)
    turn = next(iter(session.graph))
    requested = turn.requested
    assert (requested.temperature, requested.top_p, requested.seed) == (0.3, 0.95, 3)
    assert (requested.max_tokens, requested.stop) == (32, ("x",))
    assert requested.extra["top_k"] == 64
    assert requested.extra["tool_choice"] == "auto"
    assert requested.extra["thinking_config"] == {"includeThoughts": True}
    assert requested.extra["dropped_tools"] == ["googleSearch", "codeExecution", "urlContext"]
    assert [tool.name for tool in turn.tools or ()] == ["bash"]
    assert turn.effective["max_tokens"] == 32 and turn.effective["temperature"] == 1.0


Contents = list[dict[str, Any]]


async def play(client: genai.Client, turns: int, rewrite: Any = None, *, stream: bool = False) -> None:
    """A harness: sends its history, appends the reply as it came and the results of its calls."""
    history: Contents = [{"role": "user", "parts": [{"text": "fix the bug"}]}]
    models = client.aio.models
    for turn in range(turns):
        sent: Any = rewrite(json.loads(json.dumps(history))) if rewrite else history
        asked = config(system_instruction="You fix bugs.")
        if stream:
            chunks = [c async for c in await models.generate_content_stream(model="m", contents=sent, config=asked)]
        else:
            chunks = [await models.generate_content(model="m", contents=sent, config=asked)]
        parts = [part for chunk in chunks for part in chunk.parts or ()]
        said = [json.loads(part.model_dump_json(exclude_none=True)) for part in parts]
        history.append({"role": "model", "parts": said})
        results = [
            {"function_response": {"id": call["id"], "name": call["name"], "response": {"output": f"out {turn} é"}}}
            for part in said
            if (call := part.get("function_call"))
        ]
        assert results
        history.append({"role": "user", "parts": results})


def drop_thoughts(history: Contents) -> Contents:
    for content in history:
        content["parts"] = [part for part in content["parts"] if not part.get("thought")]
    return history


def drop_ids(history: Contents) -> Contents:
    for content in history:
        for part in content["parts"]:
            for kind in ("function_call", "function_response"):
                part.get(kind, {}).pop("id", None)
    return history


def reorder_args(history: Contents) -> Contents:
    for content in history:
        for part in content["parts"]:
            if call := part.get("function_call"):
                call["args"] = dict(reversed(call["args"].items())) | {"n": float(call["args"]["n"])}
    return history


def apart(history: Contents) -> Contents:
    """A content for each part, as clients that stream keep them; a signature on the calls."""
    out = []
    for content in history:
        for part in content["parts"]:
            if "function_call" in part:
                part["thought_signature"] = "c2ln"
            out.append({"role": content["role"], "parts": [part]})
    return out


def function_role(history: Contents) -> Contents:
    for content in history:
        if "function_response" in content["parts"][0]:
            content["role"] = "function"
        elif content["role"] == "user":
            del content["role"]
    return history


@pytest.mark.parametrize(
    ("rewrite", "stream"),
    [
        (None, False),
        (drop_thoughts, False),
        (drop_ids, False),
        (reorder_args, False),
        (function_role, False),
        (None, True),
        (apart, True),
    ],
)
@pytest.mark.case("A4", "A9", "A10")
async def test_harness_rewrites_stay_linear(start_rig: StartRig, rewrite: Any, stream: bool) -> None:
    """12 turns with a thought, text and two calls each: one chain, every prompt extends the stored tokens."""
    lines = []
    for n in range(12):
        arguments = msgspec.json.encode({"command": f"step {n} é", "n": n}).decode()
        call = f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'
        lines.append(f"<think>thought {n}</think>Step {n}.\n{call}\n{call}")
    rig = await start_rig(lines)
    session, client = await connect(rig)
    await play(client, 12, rewrite, stream=stream)
    assert [turn.link for turn in session.graph] == ["root"] + ["linear"] * 11
    assert len(rows_of(session.graph)) == 1
    first, second = list(session.graph)[:2]
    assert [message.tool_call_id for message in second.messages] != ["", ""]
    if rewrite is not drop_ids:
        assert [m.tool_call_id for m in second.messages] == [call.id for call in first.reply.tool_calls]
