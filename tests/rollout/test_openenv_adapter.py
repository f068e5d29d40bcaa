"""OpenEnv's ``CLIHarnessAdapter`` with real agents: both of its methods, in sandboxes without a network."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.server import GatewayServer
from drivetrain.sandboxes import SandboxHandle, SandboxSpec
from drivetrain.tokens.codec import TokenCodec
from tests.engines.test_model_step import Trainer, as_rendered
from tests.swe_rl_agent.gateway_kit import CONTEXT, tool_call

harness = pytest.importorskip("openenv.core.harness")
mcp_types = pytest.importorskip("openenv.core.env_server.mcp_types")

from drivetrain.rollout.openenv import (  # noqa: E402 (needs openenv)
    CLIAgentAdapter,
    Endpoint,
    HarnessRunFailed,
    WorksInSandbox,
)

pytestmark = pytest.mark.real


class Plain(harness.ResourceSession):  # type: ignore[misc]
    """A session without files; ``tools`` decides what it offers."""

    def __init__(self, *, tools: bool = False) -> None:
        self.has_tools = tools
        self.guesses: list[int] = []

    def initial_messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": "Guess the number, or put things right."}]

    def list_tools(self) -> list[Any]:
        schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
        names = ("guess", "reset") if self.has_tools else ()
        return [mcp_types.Tool(name=name, description="Guesses.", input_schema=schema) for name in names]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        self.guesses.append(arguments["number"])
        if arguments["number"] < 0:
            raise ValueError("a number below zero")
        right = arguments["number"] == 7
        return harness.ToolResult(data={"right": right}, done=right, metadata={"reward": float(right)})

    def verify(self, transcript: list[dict[str, Any]], final_state: Any | None = None) -> Any:
        return harness.VerifyResult(env_reward=float(7 in self.guesses), done=True)

    def close(self) -> None:
        pass


class Files(Plain):
    """A session whose work is a file."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = b""

    def sandbox_spec(self) -> SandboxSpec:
        return SandboxSpec(workdir="/job")

    async def enter(self, sandbox: SandboxHandle) -> str:
        await sandbox.write("/job/repo/answer.txt", b"wrong\n")
        return "/job/repo"

    async def leave(self, sandbox: SandboxHandle) -> None:
        self.answer = await sandbox.read("/job/repo/answer.txt")


GUESS = "mcp__environment__guess"


class Watched(Trainer):
    """Remembers which thread its steps ran on."""

    threads: set[int]

    def __call__(self, messages: list[dict[str, Any]], tools: list[Any], sampling: dict[str, Any]) -> Any:
        self.threads = {*getattr(self, "threads", ()), threading.get_ident()}
        return super().__call__(messages, tools, sampling)


def adapter(agent: str, tiny_model: ModelDir, **options: Any) -> CLIAgentAdapter:
    return CLIAgentAdapter(agent, model=tiny_model, context_length=CONTEXT, deadline_s=120, **options)


def test_the_step_samples_on_the_callers_thread_and_the_trace_is_exact(tiny_model: ModelDir, codec: TokenCodec) -> None:
    call = as_rendered("sed -i s/wrong/right/ answer.txt; cat answer.txt")
    step = Watched(codec, [call, "It is right now."])
    session = Files()
    assert isinstance(session, WorksInSandbox)
    result = adapter("pi", tiny_model).run_white_box(step, session)
    assert session.answer == b"right\n"
    assert step.threads == {threading.get_ident()}
    assert (result.done, result.metrics["turns"], result.metrics["forks"]) == (True, 2, 0)
    assert result.outcome is not None and result.outcome.stop == "completed"
    (row,) = result.traces
    sampled = [step.codec.tokenizer.encode(text) for text in step.lines]
    trained = [token for token, mask in zip(row.response_ids, row.loss_mask, strict=True) if mask]
    assert trained == [*sampled[0], codec.stop_ids[0], *sampled[1], codec.stop_ids[0]]
    assert row.reward is None, "nobody has verified yet"
    assert (result.prompt_ids, result.completion_ids) == (row.prompt_ids, row.response_ids)
    assert [message["role"] for message in result.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert "right" in result.messages[3]["content"]
    assert result.messages[4]["content"] == "It is right now."
    assert [event.type for event in result.events] == ["model_response"] * 2


def test_the_tools_of_the_session_are_the_agents(tiny_model: ModelDir, codec: TokenCodec) -> None:
    lines = [tool_call(GUESS, number=number) for number in (-1, 3, 7, 9)]
    session = Plain(tools=True)
    step = Trainer(codec, [*lines, "Done."])
    result = adapter("claude-code", tiny_model).run_white_box(step, session)
    assert session.guesses == [-1, 3, 7], "after the end of the episode nothing is called"
    answers = [message["content"] for message in result.messages if message["role"] == "tool"]
    assert [json.loads(answers[1]), json.loads(answers[2])] == [{"right": False}, {"right": True}]
    assert "ValueError: a number below zero" in answers[0]
    assert "The episode is over" in answers[3]
    assert [entry.arguments["number"] for entry in result.tool_trace] == [-1, 3, 7]
    assert result.tool_trace[2].result.metadata == {"reward": 1.0}
    assert (result.done, result.metrics["tool_calls"], result.metrics["tool_calls_refused"]) == (True, 3, 1)
    offered = {tool.name for tool in step.calls[0][1]}
    assert GUESS in offered
    assert not any("reset" in name for name in offered), "an orchestration control is not the agent's"


def test_limits_are_held(tiny_model: ModelDir, codec: TokenCodec) -> None:
    session = Plain(tools=True)
    lines = [tool_call(GUESS, number=number) for number in range(4)]
    limits = harness.HarnessRunLimits(max_turns=3, max_total_tool_calls=2, sampling={"temperature": 0.5, "seed": 1})
    step = Trainer(codec, lines)
    result = adapter("claude-code", tiny_model).run_white_box(step, session, limits)
    assert session.guesses == [0, 1]
    assert (len(step.calls), result.metrics["turns"], result.metrics["truncated"]) == (3, 3, True)
    assert not result.done
    assert {call[2]["temperature"] for call in step.calls} == {0.5}
    for wrong in ({"top_p": 0.9}, {"stop": ["x"]}):
        with pytest.raises(ConfigError, match=f"sets {next(iter(wrong))}"):
            adapter("pi", tiny_model).run_white_box(step, Plain(), harness.HarnessRunLimits(sampling=wrong))


def test_a_step_that_raises_is_the_trainers_defect(tiny_model: ModelDir, codec: TokenCodec) -> None:
    class Broken(Trainer):
        def __call__(self, messages: list[dict[str, Any]], tools: list[Any], sampling: dict[str, Any]) -> Any:
            raise ZeroDivisionError("in the trainer")

    with pytest.raises(HarnessRunFailed, match="in the trainer") as caught:
        adapter("pi", tiny_model).run_white_box(Broken(codec, []), Files())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.result.traces == []


def test_ctrl_c_in_a_step_ends_the_rollout_and_closes_its_sandbox(tiny_model: ModelDir, codec: TokenCodec) -> None:
    class Interrupted(Trainer):
        def __call__(self, messages: list[dict[str, Any]], tools: list[Any], sampling: dict[str, Any]) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapter("pi", tiny_model).run_white_box(Interrupted(codec, []), Files())
    assert [thread.name for thread in threading.enumerate() if thread.name == "drivetrain-rollout"] == []


async def test_it_may_be_called_where_a_loop_runs(tiny_model: ModelDir, codec: TokenCodec) -> None:
    step = Trainer(codec, ["Nothing to do."])
    result = adapter("pi", tiny_model).run_white_box(step, Files())
    assert result.messages[-1]["content"] == "Nothing to do."


def test_openenvs_own_rollout_func_runs_it(tiny_model: ModelDir, codec: TokenCodec) -> None:
    """Its rows have no mask (OpenEnv 0.10): usable as far as that goes, and the reward is the environment's."""

    class Factory(harness.ResourceSessionFactory):  # type: ignore[misc]
        def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Plain:
            return Plain(tools=True)

    rollout = harness.build_harness_rollout_func(
        session_factory=Factory(),
        harness_adapter=adapter("claude-code", tiny_model),
        model_step_builder=lambda trainer, session: Trainer(codec, [tool_call(GUESS, number=7), "Seven."]),
    )
    made = rollout(["guess"], None)
    assert made["env_reward"] == [1.0]
    assert len(made["completion_ids"][0]) == len(made["logprobs"][0]) > 0


def test_what_is_missing_is_named(tiny_model: ModelDir) -> None:
    with pytest.raises(ConfigError, match="tokenizer and context length"):
        CLIAgentAdapter("pi").run_white_box(lambda *_: None, Plain())
    with pytest.raises(ConfigError, match="model endpoint"):
        CLIAgentAdapter("pi").run_black_box(Plain())
    with pytest.raises(ConfigError, match="pi speaks no MCP"):
        adapter("pi", tiny_model).run_white_box(lambda *_: None, Plain(tools=True))


@pytest.fixture
def endpoint(tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path) -> Iterator[Endpoint]:
    """Somebody's OpenAI- and Anthropic-compatible server, on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[GatewayServer, Endpoint]:
        lines = [tool_call(GUESS, number=7), "Seven."]
        engine = ScriptedEngine.from_lines(lines, tiny_model, then="done", context_length=CONTEXT)
        server = GatewayServer(Gateway(engine, codec, tmp_path / "theirs.sqlite", model="policy"))
        port = await server.listen_tcp(0)
        _, key = await server.gateway.open_session(SessionPolicy(model="policy"))
        url = f"http://127.0.0.1:{port}"
        return server, Endpoint(base_url=url, api_key=key, model="policy", context_length=CONTEXT)

    server, made = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    yield made
    asyncio.run_coroutine_threadsafe(server.aclose(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def test_black_box_intercepts_nothing_and_still_gives_the_tools(endpoint: Endpoint) -> None:
    session = Plain(tools=True)
    result = CLIAgentAdapter("claude-code", endpoint=endpoint, deadline_s=120).run_black_box(session)
    assert session.guesses == [7]
    assert (result.done, result.traces, result.graph) == (True, [], None)
    assert result.outcome is not None
    assert result.outcome.stop == "completed"
    assert [entry.tool_name for entry in result.tool_trace] == ["guess"]


def test_black_box_without_an_endpoint_that_answers_is_no_reward_of_zero(endpoint: Endpoint) -> None:
    bad = Endpoint(base_url=endpoint.base_url, api_key="sk-not-a-key", model="policy", context_length=CONTEXT)
    with pytest.raises(HarnessRunFailed, match="model_error"):
        CLIAgentAdapter("pi", endpoint=bad, deadline_s=120).run_black_box(Plain())
