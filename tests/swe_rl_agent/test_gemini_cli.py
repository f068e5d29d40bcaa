"""Gemini CLI, unmodified, against the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent.last_word import LastWord
from swe_rl_agent.log_gemini import gemini_json

from .conftest import Agents, Boxes
from .gateway_kit import Bench, tool_call

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture
def bench(agent_of: Agents, sandbox_for: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> Bench:
    return Bench(tiny_model, codec, sandbox_for, socket_path.parent, agent_of("gemini-cli"))


def shell(command: str) -> str:
    return tool_call("run_shell_command", command=command, description="step é")


LOOK = shell("cat answer.txt")


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_refused_key_ends_the_run(bench: Bench, sealed: bool) -> None:
    done = await bench.run([], sealed=sealed, key="" if sealed else "dt-agent-this-key-is-not-known")
    assert (done.outcome.stop, done.outcome.infrastructure) == ("model_error", True), done.summary()
    assert done.outcome.exit_code != 0 and done.outcome.detail
    assert len(done.relay.seen) == 1
    assert (len(done.session.graph), done.rows) == (0, [])


@pytest.mark.agent_claim("sub-agents", agents=("gemini-cli",))
async def test_a_sub_agent_is_a_conversation_of_its_own(bench: Bench) -> None:
    """It has its own system text and a tool ``complete_task``, which it must call."""
    asked = 0

    def script(_ids: list[int], text: str, _index: int) -> str:
        nonlocal asked
        if '"complete_task"' in text:
            asked += 1
            return LOOK if asked == 1 else tool_call("complete_task", result={"response": "it says wrong"})
        if "it says wrong" not in text:
            return tool_call("invoke_agent", agent_name="generalist", prompt="What does answer.txt say?")
        return "The sub-agent knows."

    done = await bench.run(script)
    assert done.outcome.stop == "completed", done.summary()
    assert done.labels == ["agent", "subagent", "subagent", "agent"], done.summary()
    assert [turn.link for turn in done.session.graph] == ["root", "new_root", "linear", "linear"], done.summary()
    assert [sum(row.loss_mask) for row in done.rows] and len(done.rows) == 2
    assert done.findings == []


def test_last_words() -> None:
    def log(*lines: str) -> bytes:
        return "\n".join(lines).encode()

    ok, failed = '{"type":"result","status":"success"}', '{"type":"result","status":"error","error":{"message":"no"}}'
    assert gemini_json(log('{"type":"init"}', ok), b"") == LastWord("success")
    assert gemini_json(log(failed), b"") == LastWord("error", "no")
    turns = '{"type":"error","severity":"error","message":"Maximum session turns exceeded"}'
    assert gemini_json(log(turns, ok), b"").word == "max_turns"
    loop = '{"type":"error","severity":"warning","message":"Loop detected, stopping execution"}'
    assert gemini_json(log(loop, ok), b"").word == "loop"
    assert gemini_json(ok.encode()[:-3], b"") == LastWord("")
