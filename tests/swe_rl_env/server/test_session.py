"""RFC 005 sessions: OpenEnv's own loop and rollout function, and real agents with and without MCP."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest
from openenv.core.harness import HarnessRunLimits, MCPHarnessAdapter, ModelStepResult, build_harness_rollout_func
from openenv.core.llm_client import LLMResponse, ToolCall

from drivetrain.engines.models import ModelDir
from drivetrain.errors import ConfigError
from drivetrain.rollout.openenv import CLIAgentAdapter, WorksInSandbox
from drivetrain.sandboxes import get_backend
from drivetrain.tokens.codec import TokenCodec
from swe_rl_env import BuiltTask, prompt_for
from swe_rl_env.server.errors import EpisodeError
from swe_rl_env.server.settings import Settings
from swe_rl_env.server.toolbox import NAMES
from swe_rl_env.session import SWESession, SWESessionFactory
from tests.engines.test_model_step import Trainer
from tests.swe_rl_agent.gateway_kit import CONTEXT, tool_call
from tests.swe_rl_env.server.kit import TASK, Watched

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def backend() -> Watched:
    return Watched()


@pytest.fixture(scope="module")
def factory(backend: Watched) -> Iterator[SWESessionFactory]:
    with SWESessionFactory(Settings(max_steps=6), backend=backend) as made:
        yield made
    assert not backend.open


class Says:
    """A model step that makes these tool calls, then talks. It keeps what it was shown."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self.calls = list(calls)
        self.shown: list[dict[str, Any]] = []

    def __call__(self, messages: list[dict[str, Any]], tools: list[Any], sampling: dict[str, Any]) -> ModelStepResult:
        self.shown = messages
        made = [ToolCall(id="c", name=name, args=arguments) for name, arguments in self.calls[:1]]
        del self.calls[:1]
        response = LLMResponse(content="" if made else "I am done.", tool_calls=made)
        return ModelStepResult(response=response, prompt_ids=[1], completion_ids=[2], logprobs=[-0.5])


def test_openenvs_rollout_func(factory: SWESessionFactory, backend: Watched, xmltodict: BuiltTask) -> None:
    right = Says(
        ("bash", {"command": "head -1 xmltodict.py"}),
        ("fly", {}),
        ("bash", {"cmd": "ls"}),
        ("apply_patch", {"patch": xmltodict.gold_patch.decode()}),
        ("submit", {}),
    )
    steps = iter([right, Says()])
    rollout = build_harness_rollout_func(
        session_factory=factory,
        harness_adapter=MCPHarnessAdapter(),
        model_step_builder=lambda trainer, session: next(steps),
    )
    prompt = [{"role": "user", "content": prompt_for(xmltodict.task), "task_id": TASK}]
    made = rollout([prompt, TASK], None)
    assert made["env_reward"] == [1.0, 0.0]
    assert [metrics["status"] for metrics in made["verify_metrics"]] == ["ok", "ok"]
    assert [metrics["reason"] for metrics in made["verify_metrics"]] == ["resolved", "empty_patch"]
    told = [message["content"] for message in right.shown if message["role"] == "tool"]
    assert told[0].startswith("#!/usr/bin/env python")
    assert "There is no tool 'fly'" in told[1], "a call of what is not there is the model's to read"
    assert "called wrongly" in told[2]
    assert told[3] == "(no output)"
    assert not backend.open


def test_a_session_says_how_it_ended(factory: SWESessionFactory, backend: Watched, xmltodict: BuiltTask) -> None:
    limits = HarnessRunLimits(max_turns=1)
    assert [tool.name for tool in factory.create(xmltodict).list_tools()] == list(NAMES)
    session = factory.create({"instance_id": TASK, "other": 1}, seed=3, episode_id="e")
    (message,) = session.initial_messages()
    assert message == {"role": "user", "content": prompt_for(xmltodict.task)}
    step = Says(("apply_patch", {"patch": xmltodict.gold_patch.decode()}))
    rollout = MCPHarnessAdapter().run_white_box(step, session, limits)
    result = session.verify(rollout.messages, {"done": rollout.done})
    assert (result.env_reward, result.metrics["status"]) == (1.0, "truncated"), "graded as it was left"
    assert result.artifacts["patch"] == xmltodict.gold_patch.decode()
    assert session.verify([]) is result
    assert session.call_tool("bash", {"command": "ls"}).error is not None
    session.close()
    session.close()
    assert not backend.open


def test_machinery_that_fails_is_no_zero(factory: SWESessionFactory, backend: Watched) -> None:
    session = factory.create(TASK)
    session.call_tool("bash", {"command": "echo >> xmltodict.py"})
    backend.refuse = "grader"
    try:
        result = session.verify([])
    finally:
        backend.refuse = ""
    assert (result.env_reward, result.metrics["status"]) == (None, "unscorable")
    session.close()
    session = factory.create(TASK)
    session.call_tool("bash", {"command": "true"})
    (box,) = backend.agents()
    factory.host.run(box.close)
    lost = session.call_tool("bash", {"command": "true"})
    assert (lost.done, lost.error is not None) == (True, True)
    assert (session.verify([]).env_reward, session.verify([]).metrics["status"]) == (None, "infra_error")
    session.close()


async def test_an_adapter_that_failed_leaves_nothing_to_grade(
    factory: SWESessionFactory, backend: Watched, xmltodict: BuiltTask
) -> None:
    """Between ``enter`` and ``leave`` the tools act in the adapter's sandbox; without ``leave`` there is no zero."""
    for leaves, reward, status in ((True, 1.0, "ok"), (False, None, "infra_error")):
        session = factory.create(xmltodict)
        adapters = get_backend("local")
        box = await adapters.create(session.sandbox_spec())
        try:
            await session.enter(box)
            patch = {"patch": xmltodict.gold_patch.decode()}
            assert (await asyncio.to_thread(session.call_tool, "apply_patch", patch)).error is None
            if leaves:
                await session.leave(box)
        finally:
            await adapters.aclose()
        result = await asyncio.to_thread(session.verify, [])
        assert (result.env_reward, result.metrics["status"]) == (reward, status)
        late = await asyncio.to_thread(session.call_tool, "bash", {"command": "ls"})
        assert late.done and late.error is not None
        session.close()


def test_the_steps_are_limited(factory: SWESessionFactory) -> None:
    session = factory.create(TASK)
    results = [session.call_tool("bash", {"command": f"echo {n}"}) for n in range(7)]
    assert [result.done for result in results] == [False] * 5 + [True] * 2
    assert results[5].data.startswith("5"), "the last step is still carried out"
    assert session.verify([]).metrics["status"] == "truncated"
    session.close()


def test_what_names_no_task_is_refused(factory: SWESessionFactory) -> None:
    for task in ([{"role": "user", "content": "Fix it."}], {"row": 1}):
        with pytest.raises(EpisodeError, match="names no task"):
            factory.create(task)
    with pytest.raises(EpisodeError, match="unknown_task"):
        factory.create("nothing")


def test_tools_can_be_left_to_the_agent(xmltodict: BuiltTask) -> None:
    with SWESessionFactory(tools=False) as bare:
        assert bare.create(xmltodict).list_tools() == []


def fix(built: BuiltTask) -> str:
    return f"echo {base64.b64encode(built.gold_patch).decode()} | base64 -d | git apply -"


@pytest.mark.parametrize(
    ("agent", "tool"),
    [("claude-code", "mcp__environment__bash"), ("pi", "bash")],
    ids=["over MCP", "with its own tools"],
)
def test_a_real_agent_works_in_its_sandbox(
    factory: SWESessionFactory,
    backend: Watched,
    xmltodict: BuiltTask,
    tiny_model: ModelDir,
    codec: TokenCodec,
    agent: str,
    tool: str,
) -> None:
    session = factory.create(TASK)
    assert isinstance(session, WorksInSandbox)
    adapter = CLIAgentAdapter(agent, model=tiny_model, context_length=CONTEXT, deadline_s=120)
    step = Trainer(codec, [tool_call(tool, command=fix(xmltodict)), "Done."])
    result = adapter.run_white_box(step, session)
    assert result.outcome is not None and result.outcome.stop == "completed"
    assert len(result.tool_trace) == (1 if agent == "claude-code" else 0)
    verified = session.verify(result.messages)
    assert (verified.env_reward, verified.metrics["status"]) == (1.0, "ok"), verified
    assert verified.artifacts["patch"] == xmltodict.gold_patch.decode()
    assert backend.made[-1] == "grader", "the agent's sandbox was the adapter's"
    session.close()


async def test_a_session_is_for_one_rollout(factory: SWESessionFactory) -> None:
    session: SWESession = factory.create(TASK)
    session.call_tool("bash", {"command": "true"})
    with pytest.raises(ConfigError, match="one rollout"):
        await session.enter(None)  # type: ignore[arg-type]
    session.close()
