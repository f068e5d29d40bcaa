"""Qwen Code, unmodified, against the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent.last_word import LastWord
from swe_rl_agent.log_qwen import qwen_json

from .conftest import Agents, Boxes
from .gateway_kit import Bench, tool_call

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture
def bench(agent_of: Agents, sandbox_for: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> Bench:
    return Bench(tiny_model, codec, sandbox_for, socket_path.parent, agent_of("qwen-code"))


def shell(command: str) -> str:
    return tool_call("run_shell_command", command=command, description="step é", is_background=False)


LOOK = shell("cat answer.txt")


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_refused_key_ends_the_run(bench: Bench, sealed: bool) -> None:
    done = await bench.run([], sealed=sealed, key="" if sealed else "dt-agent-this-key-is-not-known")
    assert (done.outcome.stop, done.outcome.infrastructure) == ("model_error", True), done.summary()
    assert done.outcome.exit_code != 0 and done.outcome.detail
    assert len(done.relay.seen) == 1
    assert (len(done.session.graph), done.rows) == (0, [])


@pytest.mark.agent_claim("sub-agents", agents=("qwen-code",))
async def test_a_sub_agent_is_a_conversation_of_its_own(bench: Bench) -> None:
    def script(_ids: list[int], text: str, _index: int) -> str:
        if "it says wrong" in text:
            return "The sub-agent knows."
        if "What does answer.txt say?" not in text:
            return tool_call(
                "agent",
                description="look it up",
                prompt="What does answer.txt say?",
                subagent_type="general-purpose",
                run_in_background=False,
            )
        return "it says wrong" if "Output: wrong" in text else LOOK

    done = await bench.run(script)
    assert done.outcome.stop == "completed", done.summary()
    assert done.labels == ["agent", "subagent", "subagent", "agent"], done.summary()
    assert [turn.link for turn in done.session.graph] == ["root", "new_root", "linear", "linear"], done.summary()
    assert len(done.rows) == 2
    assert done.findings == []


async def test_auto_memory_is_off(bench: Bench) -> None:
    """An answer without any tool call would be followed by a call about what to remember."""
    done = await bench.run(["Nothing to do."])
    assert done.outcome.stop == "completed", done.summary()
    done.assert_one_exact_chain(1)


def test_last_words() -> None:
    ok, own = '{"type":"result","subtype":"success","result":"x"}', ',"parent_tool_use_id":"call_1"}'
    failed = '{"type":"result","subtype":"error_during_execution","is_error":true,"error":{"message":"401"}}'
    assert qwen_json(ok.encode(), b"") == LastWord("success")
    assert qwen_json(f"{ok}\n{failed}".encode(), b"") == LastWord("error_during_execution", "401")
    assert qwen_json(f"{ok}\n{failed[:-1]}{own}".encode(), b"") == LastWord("success")
    assert qwen_json(b"", b"") == LastWord("")
