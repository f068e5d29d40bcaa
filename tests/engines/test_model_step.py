"""A trainer's own sampler behind the gateway: token steps, and OpenEnv's ModelStep with OpenEnv's classes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from drivetrain.engines.model_step import (
    ModelStepEngine,
    TokenSample,
    TokenStepEngine,
    openenv_message,
    step_sampling,
)
from drivetrain.engines.models import ModelDir
from drivetrain.engines.probe import probe_engine
from drivetrain.engines.protocol import (
    ContextOverflow,
    Engine,
    EngineError,
    EngineMalformed,
    GeneratesFromMessages,
    Pausable,
    Sampling,
    VersionSettable,
)
from drivetrain.engines.scripted import fake_logprob
from drivetrain.errors import ConfigError
from drivetrain.gateway.sessions import Session
from drivetrain.messages import Message, ToolCall, ToolSpec
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.sample import rows_of, untrained_reason
from tests.engines.table_engine import CODEC, TableEngine
from tests.gateway.conftest import BASH, StartRig, bash_call, start_rig  # noqa: F401 (a fixture)

harness = pytest.importorskip("openenv.core.harness")
llm_client = pytest.importorskip("openenv.core.llm_client")

SYSTEM = {"role": "system", "content": "You fix bugs."}
USER = {"role": "user", "content": "fix the bug"}
SAMPLING = Sampling(max_tokens=8, temperature=0.7, seed=3, stop_token_ids=(2,))


def sampled(codec: TokenCodec, text: str) -> tuple[list[int], list[float]]:
    """A text as if it had been sampled, stop token included."""
    ids = [*codec.tokenizer.encode(text), codec.stop_ids[0]]
    return ids, [fake_logprob(*pair) for pair in enumerate(ids)]


class Trainer:
    """An RFC 005 model step that renders with the model's own template and says what a script tells it."""

    def __init__(self, codec: TokenCodec, lines: list[str], *, bend: Callable[[Any], None] | None = None) -> None:
        self.codec = codec
        self.lines = lines
        self.bend = bend
        self.calls: list[tuple[list[dict[str, Any]], list[Any], dict[str, Any]]] = []

    def __call__(self, messages: list[dict[str, Any]], tools: list[Any], sampling: dict[str, Any]) -> Any:
        self.calls.append((messages, tools, sampling))
        prompt = self.codec.first_prompt(
            [spoken(message) for message in messages],
            [ToolSpec(tool.name, tool.description, tool.input_schema) for tool in tools],
        )
        ids, logprobs = sampled(self.codec, self.lines[len(self.calls) - 1])
        result = harness.ModelStepResult(
            response=llm_client.LLMResponse(content="not read"),
            prompt_ids=prompt,
            completion_ids=ids,
            logprobs=logprobs,
        )
        if self.bend:
            self.bend(result)
        return result


def spoken(message: dict[str, Any]) -> Message:
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    )
    return Message(message["role"], message["content"], "", calls, message.get("tool_call_id", ""))


async def play(client: openai.AsyncOpenAI, turns: int) -> None:
    """A harness that runs what it is told and sends everything back."""
    history: list[Any] = [SYSTEM, USER]
    for turn in range(turns):
        done = await client.chat.completions.create(model="m", messages=history, tools=[BASH])  # type: ignore[list-item]
        message = done.choices[0].message
        calls = message.tool_calls or []
        history.append(
            {
                "role": "assistant",
                "content": message.content,
                "tool_calls": [call.model_dump() for call in calls],
            }
        )
        history += [{"role": "tool", "tool_call_id": call.id, "content": f"output {turn}"} for call in calls]


async def rollout(start_rig: StartRig, engine: Engine, turns: int) -> Session:  # noqa: F811
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    async with client:
        await play(client, turns)
    await rig.gateway.seal_session(session.id)
    return session


def as_rendered(command: str) -> str:
    """A call in the very spelling of the chat template, so that rendering it again gives the sampled tokens."""
    return f'Let me look.\n<tool_call>\n{{"name": "bash", "arguments": {{"command": "{command}"}}}}\n</tool_call>'


LINES = [as_rendered("ls"), as_rendered("cat a.py"), "Fixed."]


async def test_a_model_step_that_renders_what_the_trace_holds_is_trained(
    start_rig: StartRig,  # noqa: F811
    codec: TokenCodec,
) -> None:
    trainer = Trainer(codec, LINES)
    engine = ModelStepEngine(trainer, context_length=4096, policy_version=7)
    assert isinstance(engine, Engine)
    assert isinstance(engine, GeneratesFromMessages)
    session = await rollout(start_rig, engine, 3)
    turns = list(session.graph)
    assert [turn.notes for turn in turns] == [(), (), ()]
    assert [turn.link for turn in turns] == ["root", "linear", "linear"]
    assert [turn.policy_version_end for turn in turns] == [7, 7, 7]
    rows = rows_of(session.graph, reward=1.0)
    assert len(rows) == 1
    assert sum(rows[0].loss_mask) == sum(len(turn.sampled_ids) for turn in turns)
    messages, tools, sampling = trainer.calls[-1]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert [tool.name for tool in tools] == ["bash"]
    assert sampling == step_sampling(
        Sampling(
            max_tokens=sampling["max_tokens"],
            temperature=sampling["temperature"],
            seed=sampling["seed"],
            stop_token_ids=codec.stop_ids,
        )
    )


@pytest.mark.case("A1")
async def test_a_model_step_that_renders_sampled_text_anew_is_found_out(
    start_rig: StartRig,  # noqa: F811
    codec: TokenCodec,
) -> None:
    """The policy wrote a call without a blank; the template writes one. What follows has not seen the row's prompt."""
    trainer = Trainer(codec, [bash_call("ls"), LINES[1], LINES[2]])
    session = await rollout(start_rig, ModelStepEngine(trainer, context_length=4096), 3)
    turns = list(session.graph)
    assert [untrained_reason(turn) for turn in turns] == ["", "prompt_mismatch", "prompt_mismatch"]
    assert [turn.link for turn in turns] == ["root", "linear", "linear"]


async def test_a_turn_sampled_behind_another_prompt_is_kept_counted_and_not_trained(
    start_rig: StartRig,  # noqa: F811
    codec: TokenCodec,
) -> None:
    trainer = Trainer(codec, LINES)

    def drift(result: Any) -> None:
        if len(trainer.calls) == 2:
            result.prompt_ids[5] += 1

    trainer.bend = drift
    session = await rollout(start_rig, ModelStepEngine(trainer, context_length=4096), 3)
    turns = list(session.graph)
    assert [untrained_reason(turn) for turn in turns] == ["", "prompt_mismatch", ""]
    assert session.events["prompt_mismatch"] == 1
    rows = rows_of(session.graph)
    assert [row.metadata["trained_turns"] for row in rows] == [[turns[0].id, turns[2].id]]
    assert rows[0].metadata["masked"] == {"prompt_mismatch": len(turns[1].sampled_ids)}


@pytest.mark.parametrize(
    ("field", "value", "reason"), [("prompt_ids", [], "prompt_mismatch"), ("logprobs", [], "no_logprob")]
)
async def test_missing_evidence_is_served_and_not_trained(
    start_rig: StartRig,  # noqa: F811
    codec: TokenCodec,
    field: str,
    value: Any,
    reason: str,
) -> None:
    trainer = Trainer(codec, LINES, bend=lambda result: setattr(result, field, value))
    session = await rollout(start_rig, ModelStepEngine(trainer, context_length=4096), 1)
    assert [untrained_reason(turn) for turn in session.graph] == [reason]


async def test_a_model_step_without_ids_is_refused(start_rig: StartRig) -> None:  # noqa: F811
    """OpenEnv's adapter around any chat client returns text alone."""

    class Client(llm_client.LLMClient):  # type: ignore[misc]
        async def complete(self, prompt: str, **kwargs: Any) -> str:
            raise NotImplementedError

        async def complete_with_tools(self, messages: Any, tools: Any, **kwargs: Any) -> Any:
            return llm_client.LLMResponse(content="hello")

    from openenv.core.harness.collect import build_model_step

    step = build_model_step(Client("http://127.0.0.1", 9))
    rig = await start_rig(engine=ModelStepEngine(step, context_length=4096))
    _, client = await rig.session()
    async with client:
        with pytest.warns(RuntimeWarning, match="seed"), pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]
    assert "returned no completion ids" in caught.value.message


def test_messages_are_in_openenvs_own_form() -> None:
    call = llm_client.ToolCall(id="c1", name="bash", args={"command": "ls"})
    theirs = llm_client.LLMResponse(content="look", tool_calls=[call]).to_message_dict()
    ours = Message("assistant", "look", "", (ToolCall("c1", "bash", '{"command": "ls"}'),))
    assert openenv_message(ours) == theirs
    decoded = openenv_message(ours, decode_arguments=True)
    assert decoded["tool_calls"][0]["function"]["arguments"] == {"command": "ls"}
    broken = Message("assistant", "", "why", (ToolCall("c1", "bash", "{"),))
    made = openenv_message(broken, decode_arguments=True)
    assert made["tool_calls"][0]["function"]["arguments"] == "{"
    assert made["reasoning_content"] == "why"
    answer = {"role": "tool", "tool_call_id": "c1", "name": "bash", "content": "a.py"}
    assert openenv_message(Message("tool", "a.py", tool_call_id="c1", name="bash")) == answer


async def test_a_step_the_way_trl_makes_one(start_rig: StartRig, codec: TokenCodec, tiny_model: ModelDir) -> None:  # noqa: F811
    """``apply_chat_template`` of transformers over the messages, tools as function schemas: the same prompts."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model.path, local_files_only=True)
    said = iter(LINES)

    def step(messages: list[dict[str, Any]], tools: list[Any], sampling: dict[str, Any]) -> Any:
        schemas = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.input_schema},
            }
            for t in tools
        ]
        prompt = tokenizer.apply_chat_template(
            messages, tools=schemas, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        ids, logprobs = sampled(codec, next(said))
        return harness.ModelStepResult(
            response=llm_client.LLMResponse(content=""), prompt_ids=prompt, completion_ids=ids, logprobs=logprobs
        )

    session = await rollout(start_rig, ModelStepEngine(step, context_length=4096, decode_arguments=True), 3)
    assert [untrained_reason(turn) for turn in session.graph] == ["", "", ""]


async def test_a_token_step_sees_the_stored_ids(start_rig: StartRig, codec: TokenCodec) -> None:  # noqa: F811
    prompts: list[list[int]] = []
    replies: list[list[int]] = []

    def step(prompt_ids: list[int], sampling: dict[str, Any]) -> TokenSample:
        prompts.append(prompt_ids)
        ids, logprobs = sampled(codec, LINES[len(prompts) - 1])
        replies.append(ids)
        return TokenSample(ids, logprobs)

    session = await rollout(start_rig, TokenStepEngine(step, context_length=4096), 3)
    for turn, (prompt, reply) in enumerate(zip(prompts[:-1], replies[:-1], strict=True)):
        assert prompts[turn + 1][: len(prompt) + len(reply)] == prompt + reply
    assert [untrained_reason(turn) for turn in session.graph] == ["", "", ""]


@pytest.mark.case("B4")
async def test_a_token_step_can_be_probed() -> None:
    table = TableEngine()

    async def step(prompt_ids: list[int], sampling: dict[str, Any]) -> TokenSample:
        done = await table.generate(
            prompt_ids,
            Sampling(
                max_tokens=sampling["max_tokens"],
                temperature=sampling["temperature"],
                seed=sampling["seed"],
                stop_token_ids=tuple(sampling["stop_token_ids"]),
            ),
            request_id="step",
        )
        return TokenSample(done.token_ids, done.logprobs)

    report = await probe_engine(TokenStepEngine(step, context_length=table.context_length, at_once=4), CODEC)
    assert {finding.status for finding in report.findings} == {"passed"}, report


async def test_a_model_step_alone_cannot_be_probed() -> None:
    engine = ModelStepEngine(lambda *_: None, context_length=4096)
    report = await probe_engine(engine, CODEC)
    assert "samples from messages, not from token ids" in report.finding("ids_in").what
    with pytest.raises(ConfigError, match="cannot be trained on"):
        report.require_trainable()


class Slow:
    """A token step that holds until it is let go, and counts."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.started = threading.Semaphore(0)
        self.running = 0
        self.peak = 0
        self.ended = 0

    def __call__(self, prompt_ids: list[int], sampling: dict[str, Any]) -> TokenSample:
        self.running += 1
        self.peak = max(self.peak, self.running)
        self.started.release()
        assert self.go.wait(20)
        self.running -= 1
        self.ended += 1
        return TokenSample([1, 2], [-0.5, -0.5])

    async def wait_started(self) -> None:
        assert await asyncio.to_thread(self.started.acquire, timeout=20)


async def ask(engine: TokenStepEngine) -> Any:
    return await engine.generate([1, 2, 3], SAMPLING, request_id="r")


@pytest.mark.parametrize("at_once", [1, 3])
async def test_steps_run_at_most_so_many_at_a_time(at_once: int) -> None:
    slow = Slow()
    engine = TokenStepEngine(slow, context_length=64, at_once=at_once)
    calls = [asyncio.create_task(ask(engine)) for _ in range(6)]
    for _ in range(at_once):
        await slow.wait_started()
    assert slow.running == at_once
    slow.go.set()
    done = await asyncio.gather(*calls)
    assert slow.peak == at_once
    assert [list(completion.token_ids) for completion in done] == [[1, 2]] * 6
    await engine.aclose()


@pytest.mark.case("D6")
async def test_a_cancelled_call_ends_at_once_and_its_step_keeps_the_place() -> None:
    slow = Slow()
    engine = TokenStepEngine(slow, context_length=64)
    gone, waiting, kept = (asyncio.create_task(ask(engine)) for _ in range(3))
    await slow.wait_started()
    gone.cancel()
    waiting.cancel()
    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert time.monotonic() - began < 60  # the step itself still runs
    assert (slow.running, slow.ended) == (1, 0)
    slow.go.set()
    assert list((await kept).token_ids) == [1, 2]
    assert slow.ended == 2  # the cancelled one and the kept one; the one that waited never ran
    assert slow.peak == 1
    await engine.aclose()


async def test_pause_waits_for_every_step_and_holds_new_ones() -> None:
    slow = Slow()
    engine = TokenStepEngine(slow, context_length=64)
    assert isinstance(engine, Pausable)
    assert isinstance(engine, VersionSettable)
    orphan = asyncio.create_task(ask(engine))
    await slow.wait_started()
    orphan.cancel()
    pausing = asyncio.create_task(engine.pause())
    await asyncio.sleep(0.02)
    assert not pausing.done()
    slow.go.set()
    await pausing
    assert slow.running == 0
    held = asyncio.create_task(ask(engine))
    await asyncio.sleep(0.02)
    assert slow.ended == 1
    await engine.set_policy_version(4)
    await engine.resume()
    done = await held
    assert (done.policy_version_start, done.policy_version_end) == (4, 4)
    await engine.aclose()


async def test_a_pause_that_was_cancelled_holds_nobody() -> None:
    slow = Slow()
    engine = TokenStepEngine(slow, context_length=64)
    first = asyncio.create_task(ask(engine))
    await slow.wait_started()
    pausing = asyncio.create_task(engine.pause())
    await asyncio.sleep(0)
    pausing.cancel()
    await asyncio.wait([pausing])
    slow.go.set()
    await first
    await ask(engine)
    await engine.aclose()


@pytest.mark.parametrize(
    ("raised", "retryable_status"), [(ConnectionError("no route"), None), (KeyError("logits"), 500)]
)
async def test_what_a_step_raises(raised: Exception, retryable_status: int | None) -> None:
    def step(prompt_ids: list[int], sampling: dict[str, Any]) -> TokenSample:
        raise raised

    engine = TokenStepEngine(step, context_length=64)
    with pytest.raises(EngineError, match="token_step raised") as caught:
        await ask(engine)
    assert (caught.value.status, caught.value.kind) == (retryable_status, type(raised).__name__)
    with pytest.raises(EngineError, match="token_step raised"):
        await ask(engine)  # the place is free again
    await engine.aclose()


async def test_bad_results_and_bad_arguments() -> None:
    engine = TokenStepEngine(lambda *_: ([1], [-0.5]), context_length=64)  # type: ignore[arg-type,return-value]
    with pytest.raises(EngineMalformed, match="returned a tuple"):
        await ask(engine)
    with pytest.raises(ContextOverflow):
        await engine.generate(list(range(64)), SAMPLING, request_id="r")
    await engine.aclose()
    with pytest.raises(EngineError, match="is closed"):
        await ask(engine)
    with pytest.raises(ConfigError, match="at least 1"):
        TokenStepEngine(lambda *_: TokenSample([], []), context_length=64, at_once=0)


@pytest.mark.parametrize(
    ("ids", "finish"), [([5, 2], "stop"), ([5] * 8, "length"), ([5] * 7 + [2], "stop"), ([5, 6], "stop")]
)
async def test_how_a_step_ended(ids: list[int], finish: str) -> None:
    engine = TokenStepEngine(lambda *_: TokenSample(ids, [-0.1] * len(ids)), context_length=64)
    assert (await ask(engine)).finish_reason == finish
    await engine.aclose()
