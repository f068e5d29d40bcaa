"""One conversation through each API with its official SDK: the same tokens, masks and log-probs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from openai import AsyncOpenAI

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.model import load_codec
from drivetrain.messages import Message
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.sample import HarnessTrace, rows_of
from tests.gateway.conftest import Rig, StartRig

SYSTEM = "You fix bugs. Réponds en français 🙂."
TASK = "Fix the bug in naïve.py, please.\nÆØÅ"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "limit": {"type": "integer"}},
    "required": ["command"],
}
NAME, DESCRIPTION = "bash", "run a command"
FOLLOW_UP = "Good. Now run the tests too — all of them."


class Step(msgspec.Struct, frozen=True):
    """What the policy says in one turn, and what its calls give."""

    reasoning: str
    text: str
    commands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()

    @property
    def sampled(self) -> str:
        calls = [
            f'{{"name": "bash", "arguments": {{"command":  {json.dumps(one)}, "limit": {n}}}}}'
            for n, one in enumerate(self.commands)
        ]
        spelled = "".join(f"\n<tool_call>\n{call}\n</tool_call>" for call in calls)
        return f"<think>{self.reasoning}</think>{self.text}{spelled}"


STEPS = (
    Step("first look", "Let me look.", ("ls -l",), ("naïve.py\ntest_naïve.py",)),
    Step("two at once", "Two files.", ("cat naïve.py", "cat test_naïve.py"), ("def f(): …", "assert f() == 'é'")),
    Step("edit", "I edit it.", ("sed -i 's/…/return \"é\"/' naïve.py",), ("done\t🙂",)),
    Step("the end?", "Fixed: f returns « é »."),
    Step("tests", "Running them.", ("pytest -q", "git diff"), ("1 passed", "+ return 'é'\n- …")),
    Step("", "All tests pass 🙂."),
)

Driver = Callable[[Rig, str, bool], Awaitable[None]]


def answers(call_ids: list[str], step: Step) -> list[tuple[str, str]]:
    assert len(call_ids) == len(step.results)
    return list(zip(call_ids, step.results, strict=True))


async def drive_chat(rig: Rig, key: str, stream: bool) -> None:
    client = AsyncOpenAI(base_url=f"{rig.url}/v1", api_key=key, max_retries=0)
    function = {"name": NAME, "description": DESCRIPTION, "parameters": SCHEMA}
    asked: dict[str, Any] = {"model": "m", "tools": [{"type": "function", "function": function}]}
    history: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    for step in STEPS:
        if stream:
            async with client.chat.completions.stream(**asked, messages=history) as events:
                message: Any = (await events.get_final_completion()).choices[0].message
        else:
            message = (await client.chat.completions.create(**asked, messages=history)).choices[0].message
        history.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        ids = [call.id for call in message.tool_calls or ()]
        history += [{"role": "tool", "tool_call_id": id_, "content": text} for id_, text in answers(ids, step)]
        if not ids:
            history.append({"role": "user", "content": FOLLOW_UP})


async def drive_responses(rig: Rig, key: str, stream: bool) -> None:
    client = AsyncOpenAI(base_url=f"{rig.url}/v1", api_key=key, max_retries=0)
    function = {"type": "function", "name": NAME, "description": DESCRIPTION, "parameters": SCHEMA, "strict": False}
    asked: dict[str, Any] = {"model": "m", "tools": [function], "instructions": SYSTEM, "store": False}
    history: list[Any] = [{"role": "user", "content": TASK}]
    for step in STEPS:
        if stream:
            async with client.responses.stream(**asked, input=history) as events:
                response: Any = await events.get_final_response()
        else:
            response = await client.responses.create(**asked, input=history)
        history += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        ids = [item.call_id for item in response.output if item.type == "function_call"]
        history += [
            {"type": "function_call_output", "call_id": id_, "output": text} for id_, text in answers(ids, step)
        ]
        if not ids:
            history.append({"role": "user", "content": FOLLOW_UP})


async def drive_anthropic(rig: Rig, key: str, stream: bool) -> None:
    client = AsyncAnthropic(base_url=rig.url, api_key=key, max_retries=0)
    tool = {"name": NAME, "description": DESCRIPTION, "input_schema": SCHEMA}
    asked: dict[str, Any] = {"model": "m", "tools": [tool], "system": SYSTEM, "max_tokens": 1024}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    history: list[Any] = [{"role": "user", "content": TASK}]
    for step in STEPS:
        if stream:
            async with client.messages.stream(**asked, messages=history) as events:
                message = await events.get_final_message()
        else:
            message = await client.messages.create(**asked, messages=history)
        history.append(
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]}
        )
        ids = [block.id for block in message.content if block.type == "tool_use"]
        said: Any = [{"type": "tool_result", "tool_use_id": id_, "content": text} for id_, text in answers(ids, step)]
        history.append({"role": "user", "content": said or FOLLOW_UP})


async def drive_google(rig: Rig, key: str, stream: bool) -> None:
    client = genai.Client(api_key=key, http_options=types.HttpOptions(base_url=rig.url))
    declared = {"name": NAME, "description": DESCRIPTION, "parameters_json_schema": SCHEMA}
    tools: Any = [{"function_declarations": [declared]}]
    config = types.GenerateContentConfig(system_instruction=SYSTEM, tools=tools)
    history: list[Any] = [types.UserContent(TASK)]
    models = client.aio.models
    for step in STEPS:
        if stream:
            chunks = [c async for c in await models.generate_content_stream(model="m", contents=history, config=config)]
        else:
            chunks = [await models.generate_content(model="m", contents=history, config=config)]
        contents = [chunk.candidates[0].content for chunk in chunks if chunk.candidates]
        history += contents
        calls = [part.function_call for one in contents if one for part in one.parts or () if part.function_call]
        results = [
            types.Part(function_response=types.FunctionResponse(id=id_, name=NAME, response={"output": text}))
            for id_, text in answers([call.id or "" for call in calls], step)
        ]
        history.append(types.Content(role="user", parts=results) if results else types.UserContent(FOLLOW_UP))


DRIVERS: dict[str, Driver] = {
    "openai_chat": drive_chat,
    "openai_responses": drive_responses,
    "anthropic": drive_anthropic,
    "google": drive_google,
}


@pytest.fixture(scope="module")
def codec(tiny_model: ModelDir) -> TokenCodec:
    """One that reads reasoning."""
    return load_codec(tiny_model, parser="think+hermes")


def told(graph: TraceGraph) -> list[list[Message]]:
    """The messages of each turn as the model saw them, call ids numbered in order: they name the session."""
    names: dict[str, str] = {}
    seen = []
    for turn in graph:
        for message in turn.messages:
            names.setdefault(message.tool_call_id, f"call {len(names)}")
        seen.append([msgspec.structs.replace(m, tool_call_id=names[m.tool_call_id]) for m in turn.messages])
    return seen


async def test_every_api_gives_the_same_rows(start_rig: StartRig, tiny_model: ModelDir, tmp_path: Any) -> None:
    engine = ScriptedEngine.from_lines([step.sampled for step in STEPS], tiny_model)
    rig = await start_rig(engine=engine)
    rows: dict[tuple[str, bool], HarnessTrace] = {}
    graphs: dict[tuple[str, bool], TraceGraph] = {}
    for name, drive in DRIVERS.items():
        for stream in (False, True):
            session, client = await rig.session()
            await drive(rig, client.api_key, stream)
            case = (name, stream)
            turns = list(session.graph)
            assert {turn.dialect for turn in turns} == {name}, case
            assert [turn.link for turn in turns] == ["root"] + ["linear"] * 5, case
            assert [turn.finish_reason for turn in turns] == [
                "tool_calls" if step.commands else "stop" for step in STEPS
            ], case
            assert all(turn.delivered for turn in turns), case
            assert sum(turn.soft_mismatches for turn in turns) == 0, case
            (rows[case],) = rows_of(session.graph)
            graphs[case] = session.graph

    first, *others = rows
    want = rows[first]
    assert 0 < sum(want.loss_mask) < len(want.loss_mask)
    for case in others:
        assert told(graphs[case]) == told(graphs[first]), case
        assert next(iter(graphs[case])).tools == next(iter(graphs[first])).tools, case
        got = rows[case]
        assert got.prompt_ids == want.prompt_ids, case
        assert got.response_ids == want.response_ids, case
        assert got.loss_mask == want.loss_mask, case
        assert got.response_logprobs == want.response_logprobs, case
        for one, other in zip(graphs[case], graphs[first], strict=True):
            assert np.array_equal(one.sampled_ids, other.sampled_ids), case
            assert one.prompt_sha256 == other.prompt_sha256, case
            assert (one.reply.content, one.reply.reasoning) == (other.reply.content, other.reply.reasoning), case
    sent = [call.prompt_ids for call in engine.calls]
    assert all(sent[n] == sent[n % len(STEPS)] for n in range(len(sent)))
