"""Qwen Code, unmodified, against the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError
from drivetrain.engines.scripted import ScriptedReply
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent.last_word import LastWord
from swe_rl_agent.log_qwen import qwen_json

from .conftest import Agents, Boxes
from .gateway_kit import TASK, Bench, tool_call

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
GENERATE = "/v1/chat/completions"


@pytest.fixture
def bench(agent_of: Agents, sandbox_for: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> Bench:
    return Bench(tiny_model, codec, sandbox_for, socket_path.parent, agent_of("qwen-code"))


def shell(command: str) -> str:
    return tool_call("run_shell_command", command=command, description="step é", is_background=False)


LOOK = shell("cat answer.txt")
READ = tool_call("read_file", file_path="/work/answer.txt")
SCRIPT = (
    shell("cat answer.txt; env"),
    READ,
    tool_call("edit", file_path="/work/answer.txt", old_string="wrong", new_string="right"),
    shell("cat answer.txt && false"),
    "It is done.",
)


async def test_a_task_is_one_exact_chain(bench: Bench) -> None:
    """The agent's own commands see neither key nor endpoint."""
    done = await bench.run(SCRIPT)
    assert (done.outcome.stop, done.outcome.exit_code) == ("completed", 0), done.summary()
    assert done.files["answer.txt"] == b"right\n"
    assert [(seen.path, seen.status) for seen in done.relay.seen] == [(GENERATE, 200)] * 5
    done.assert_one_exact_chain(5)
    first, second = done.relay.seen[:2]
    assert {"run_shell_command", "read_file", "edit", "agent"} <= done.relay.tools()
    assert first.body["messages"][-1]["content"][-1]["text"] == f"{TASK}\n\n"  # its way to read standard input
    assert first.body["max_tokens"] == 2000
    result = str(second.body["messages"][-1])
    assert "QWEN_CODE_NO_RELAUNCH" in result
    assert not any(word in result for word in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "dt-agent"))


async def test_a_busy_engine_and_a_lost_reply_make_no_extra_turn(bench: Bench) -> None:
    """503 on the first call, then the reply to the third request never arrives."""
    busy = ScriptedReply(error=EngineError("no room", retryable=True))
    edit = shell("sed -i s/wrong/right/ answer.txt")  # refused for a file that was not read
    done = await bench.run([busy, READ, edit, "Done."], lose=frozenset({3}))
    assert (done.outcome.stop, done.files["answer.txt"]) == ("completed", b"right\n"), done.summary()
    assert [seen.status for seen in done.relay.seen] == [503, 200, 0, 200, 200], done.summary()
    done.assert_one_exact_chain(3)


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_refused_key_ends_the_run(bench: Bench, sealed: bool) -> None:
    done = await bench.run([], sealed=sealed, key="" if sealed else "dt-agent-this-key-is-not-known")
    assert (done.outcome.stop, done.outcome.infrastructure) == ("model_error", True), done.summary()
    assert done.outcome.exit_code != 0 and done.outcome.detail
    assert len(done.relay.seen) == 1
    assert (len(done.session.graph), done.rows) == (0, [])


async def test_a_cut_answer_is_a_turn_with_finish_length(bench: Bench) -> None:
    """With a token limit of the preset it is not asked again."""
    done = await bench.run(["word " * 100], max_output_tokens=20)
    assert done.outcome.stop == "completed", done.summary()
    done.assert_one_exact_chain(1)
    (turn,) = done.session.graph
    assert (turn.finish_reason, len(turn.sampled_ids)) == ("length", 20)


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
