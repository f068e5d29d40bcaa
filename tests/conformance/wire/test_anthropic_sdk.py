"""The Messages dialect with the official SDK on loopback: sync, async, streamed, tools, thinking, counts, errors."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import anthropic
import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import ContextOverflow, EngineError
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.patience import KeepAliveForm, Patience
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.sessions import Session
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.sample import rows_of
from tests.gateway.conftest import Rig, StartRig, bash_call

Block = dict[str, Any]
ASK: Any = {"model": "claude", "max_tokens": 512, "messages": [{"role": "user", "content": "fix the bug"}]}
BASH: Any = {
    "name": "bash",
    "description": "run a command",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def codec(tiny_model: ModelDir) -> TokenCodec:
    """The tiny model's, read as that of a model that reasons."""
    return load_codec(tiny_model, parser="think+hermes")


class Clients(msgspec.Struct):
    """One session and both SDK clients with its key; they retry ``retries`` times."""

    session: Session
    sync: anthropic.Anthropic
    asyn: anthropic.AsyncAnthropic

    @property
    def turns(self) -> list[Any]:
        return list(self.session.graph)


async def clients(rig: Rig, *, retries: int = 0, **policy: Any) -> Clients:
    session, key = await rig.gateway.open_session(SessionPolicy(model="policy", **policy))
    options: Any = {"base_url": rig.url, "api_key": key, "max_retries": retries, "timeout": 20}
    return Clients(session, anthropic.Anthropic(**options), anthropic.AsyncAnthropic(**options))


Way = Callable[[Clients, Any], Any]


def accumulate(events: Sequence[RawMessageStreamEvent]) -> Message:
    """The message that raw events make; the last of them ends it."""
    assert events[-1].type == "message_stop"
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert isinstance(snapshot, Message)
    return snapshot


async def _async_json(c: Clients, body: Any) -> Message:
    return await c.asyn.messages.create(**body)


async def _async_events(c: Clients, body: Any) -> Message:
    """Raw events, put together by the SDK's accumulator."""
    return accumulate([event async for event in await c.asyn.messages.create(**body, stream=True)])


async def _async_stream(c: Clients, body: Any) -> Message:
    async with c.asyn.messages.stream(**body) as stream:
        return await stream.get_final_message()


async def _sync_json(c: Clients, body: Any) -> Message:
    return await asyncio.to_thread(lambda: c.sync.messages.create(**body))


async def _sync_stream(c: Clients, body: Any) -> Message:
    def run() -> Message:
        with c.sync.messages.stream(**body) as stream:
            return stream.get_final_message()

    return await asyncio.to_thread(run)


async def _sync_events(c: Clients, body: Any) -> Message:
    return accumulate(await asyncio.to_thread(lambda: list(c.sync.messages.create(**body, stream=True))))


WAYS: dict[str, Way] = {
    "async-json": _async_json,
    "async-stream": _async_stream,
    "async-events": _async_events,
    "sync-json": _sync_json,
    "sync-stream": _sync_stream,
    "sync-events": _sync_events,
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def blocks(message: Message) -> list[Block]:
    """The content as a client sends it back."""
    return [block.model_dump(exclude_none=True) for block in message.content]


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
    streamed = await _async_stream(c, {**ASK, "max_tokens": 3})
    assert (streamed.stop_reason, streamed.usage.output_tokens) == ("max_tokens", 3)


@every_way
async def test_an_empty_reply_is_legal(start_rig: StartRig, way: Way, tiny_model: ModelDir) -> None:
    nothing = ScriptedReply(token_ids=[tiny_model.eos_token_id])
    c = await clients(await start_rig([nothing]))
    message = await way(c, ASK)
    assert (message.content, message.stop_reason) == ([], "end_turn")


# --- a conversation of twelve turns, and what harnesses do to it


def one_call(index: int) -> str:
    arguments = json.dumps({"command": f"step {index}", "big": 2**60 + index, "timeout": 5000.0, "a": {"z": 1, "b": 2}})
    call = f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'
    return f"<think>step {index} is next</think>\nLet me look.\n{call}"


def verbatim(history: list[Block]) -> None:
    pass


def thinking_dropped(history: list[Block]) -> None:
    for message in history:
        if message["role"] == "assistant":
            message["content"] = [block for block in message["content"] if block["type"] != "thinking"]


def like_javascript(history: list[Block]) -> None:
    """Keys in another order, numbers as doubles (harnesses.md section 1.2)."""

    def again(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: again(value[key]) for key in reversed(value)}
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return int(float(value)) if isinstance(value, int) else value

    for block in _blocks_of(history, "tool_use"):
        block["input"] = again(block["input"])


def cache_control_moves(history: list[Block]) -> None:
    """Two marks: on the last block, and on that of the user message before."""
    for message in [message for message in history if message["role"] == "user"][-2:]:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        message["content"][-1]["cache_control"] = {"type": "ephemeral"}


def strings_become_blocks(history: list[Block]) -> None:
    for message in history:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    for block in _blocks_of(history, "tool_result"):
        block["content"] = [{"type": "text", "text": block["content"]}]


def trailing_newline(history: list[Block]) -> None:
    for message in history:
        if message["role"] == "assistant":
            for block in message["content"]:
                if block["type"] == "text":
                    block["text"] += "\n"


def text_and_call_split(history: list[Block]) -> None:
    """The text and the calls of one reply come back as two assistant messages."""
    split: list[Block] = []
    for message in history:
        if message["role"] != "assistant":
            split.append(message)
            continue
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        split.append({"role": "assistant", "content": [b for b in message["content"] if b["type"] != "tool_use"]})
        split.append({"role": "assistant", "content": calls})
    history[:] = split


def ids_renamed(history: list[Block]) -> None:
    for kind, field in (("tool_use", "id"), ("tool_result", "tool_use_id")):
        for index, block in enumerate(_blocks_of(history, kind)):
            block[field] = f"toolu_{index}"


def _blocks_of(history: list[Block], kind: str) -> list[Block]:
    contents = [message["content"] for message in history if isinstance(message["content"], list)]
    return [block for content in contents for block in content if block["type"] == kind]


REWRITES = [
    verbatim,
    thinking_dropped,
    like_javascript,
    cache_control_moves,
    strings_become_blocks,
    trailing_newline,
    text_and_call_split,
    ids_renamed,
]


def assert_one_chain(graph: TraceGraph, turns: int = 12) -> None:
    found = list(graph)
    assert [turn.link for turn in found] == ["root"] + ["linear"] * (turns - 1), [t.fork_detail for t in found]
    assert len(rows_of(graph)) == 1
    last = found[-1]
    assert graph.path(last) == found


@pytest.mark.case("A4", "A9", "A10")
@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda f: f.__name__)
async def test_twelve_turns_stay_one_chain(start_rig: StartRig, rewrite: Callable[[list[Block]], None]) -> None:
    c = await clients(await start_rig([one_call(index) for index in range(12)]))
    history: list[Block] = [*ASK["messages"]]
    system: list[Block] = [{"type": "text", "text": "You are an agent."}, {"type": "text", "text": "Be brief."}]
    for index in range(12):
        sent = copy.deepcopy(history)
        rewrite(sent)
        marked = copy.deepcopy(system)
        marked[index % 2]["cache_control"] = {"type": "ephemeral"}
        way = _async_stream if index % 2 else _async_json
        message = await way(c, {**ASK, "system": marked, "messages": sent, "tools": [BASH]})
        history.append({"role": "assistant", "content": blocks(message)})
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
        calls = [block for block in message.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": f"result {index}"} for call in calls]
        history.append({"role": "user", "content": results})
    assert_one_chain(c.session.graph)


# --- Claude Code (harnesses.md sections 3 and 8.3)


async def claude_code(c: Clients, *, turns: int) -> None:
    """Twelve turns as Claude Code sends them: a rotating billing line, marks that move, system messages inside."""
    history: list[Any] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nBe careful.\n</system-reminder>\n"},
                {"type": "text", "text": "fix the bug"},
            ],
        },
        {"role": "system", "content": "Today is Monday."},
    ]
    for index in range(turns):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.332; cch={index:05x};"},
            {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
            {
                "type": "text",
                "text": "\nYou help.\n\n# Environment\ncwd: /repo",
                "cache_control": {"type": "ephemeral"},
            },
        ]
        sent = copy.deepcopy(history)
        cache_control_moves(sent)
        body: Any = {
            "model": "claude",
            "max_tokens": 32000,
            "system": system,
            "messages": sent,
            "tools": [
                BASH | {"cache_control": {"type": "ephemeral"}},
                {"name": "DeferredToolPlaceholder", "input_schema": {"type": "object"}, "defer_loading": True},
                {"type": "web_search_20250305", "name": "web_search"},
            ],
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "medium"},
            "metadata": {"user_id": "user_device_session"},
            "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14"],
        }
        async with c.asyn.beta.messages.stream(**body) as stream:
            message = await stream.get_final_message()
        history.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in message.content]})
        calls = [block for block in message.content if block.type == "tool_use"]
        answers: list[Block] = [
            {"type": "tool_result", "tool_use_id": call.id, "content": f"result {index}", "is_error": index % 3 == 0}
            for call in calls
        ]
        if index % 4 == 1:
            answers.append({"type": "text", "text": "<system-reminder>todo list is empty</system-reminder>"})
        history.append({"role": "user", "content": answers})
        if index % 5 == 2:
            history.append({"role": "system", "content": f"The date changed {index}."})


@pytest.mark.case("C7")
async def test_claude_code_is_one_row_when_its_billing_line_is_declared(start_rig: StartRig) -> None:
    rig = await start_rig([one_call(index) for index in range(12)])
    c = await clients(rig, volatile_lines=(r"^x-anthropic-billing-header:",))
    await claude_code(c, turns=12)
    assert_one_chain(c.session.graph)
    turn = c.turns[0]
    assert turn.messages[0].content == "You are Claude Code.\n\nYou help.\n\n# Environment\ncwd: /repo"
    assert [tool.name for tool in turn.tools] == ["bash"]
    assert turn.requested.max_tokens == 32000
    assert turn.requested.extra["dropped_tools"] == ["web_search_20250305:web_search"]
    assert turn.requested.extra["deferred_tools"] == ["DeferredToolPlaceholder"]
    assert turn.requested.extra["reasoning_effort"] == "medium"
    assert turn.requested.extra["metadata"] == {"user_id": "user_device_session"}
    assert "claude-code-20250219" in turn.requested.extra["betas"]


@pytest.mark.case("C7")
async def test_claude_code_forks_every_turn_when_it_is_not(start_rig: StartRig) -> None:
    c = await clients(await start_rig([one_call(index) for index in range(12)]))
    await claude_code(c, turns=12)
    assert [turn.fork_reason for turn in c.turns] == ["", *["system_changed"] * 11]
    assert len(rows_of(c.session.graph)) == 12


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
@pytest.mark.parametrize("way", [_async_json, _sync_stream], ids=["json", "stream"])
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


@pytest.mark.parametrize("way", [_async_json, _sync_stream], ids=["json", "stream"])
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
    ways = (_async_stream, _async_events, _sync_stream, _sync_events)
    asked = [way(c, {**ASK, "system": f"way {index}"}) for index, way in enumerate(ways)]
    raw, *messages = await asyncio.gather(_raw_stream(c), *asked)
    assert [message.content[0].text for message in messages] == ["late"] * 4
    assert all(turn.delivered for turn in c.turns)
    waited = raw.split(b"event: message_start")[0]
    sign = {"comment": b": keep-alive\n\n", "newline": b"\n"}.get(form, b'event: ping\ndata: {"type":"ping"}\n\n')
    assert waited == sign * (len(waited) // len(sign)) and len(waited) >= 2 * len(sign)


@pytest.mark.parametrize("way", [_async_stream, _async_events, _sync_stream, _sync_events])
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
        await _async_stream(c, ASK)


@pytest.mark.case("D14")
async def test_a_used_up_budget_is_a_message(start_rig: StartRig) -> None:
    c = await clients(await start_rig(["one"]), max_turns=1)
    await c.asyn.messages.create(**ASK)
    stop = await _async_stream(c, {**ASK, "messages": [{"role": "user", "content": "more"}]})
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


async def _raw_stream(c: Clients) -> bytes:
    body = {**ASK, "stream": True, "system": "raw"}
    headers = {"x-api-key": str(c.asyn.api_key), "anthropic-version": "2023-06-01"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(str(c.asyn.base_url).rstrip("/") + "/v1/messages?beta=true", json=body, headers=headers) as response,
    ):
        return await response.read()
