"""OpenCode, unmodified, against the gateway."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError
from drivetrain.engines.scripted import ScriptedReply
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent import CLIHarness
from swe_rl_agent.last_word import LastWord
from swe_rl_agent.log_opencode import opencode_json

from .conftest import Agents, Boxes
from .gateway_kit import TASK, Bench, tool_call

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
GENERATE = "/v1/chat/completions"


@pytest.fixture
def bench(agent_of: Agents, sandbox_for: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> Bench:
    return Bench(tiny_model, codec, sandbox_for, socket_path.parent, agent_of("opencode"))


def shell(command: str) -> str:
    return tool_call("bash", command=command, description="step é")


LOOK = shell("cat answer.txt")
SCRIPT = (
    shell("cat answer.txt; env; cat /proc/$PPID/cmdline"),
    tool_call("read", filePath="/work/answer.txt"),
    tool_call("edit", filePath="/work/answer.txt", oldString="wrong", newString="right"),
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
    assert {"bash", "read", "edit", "task"} <= done.relay.tools()
    assert first.body["messages"][-1] == {"role": "user", "content": TASK}
    assert (first.body["model"], first.body["max_tokens"]) == ("policy", 2000)
    result = str(second.body["messages"][-1])
    assert "OPENCODE_DISABLE_SHARE" in result and "--format" in result
    assert "dt-agent" not in result


async def test_a_busy_engine_and_a_lost_reply_make_no_extra_turn(bench: Bench) -> None:
    """503 on the first call, then the reply to the third request never arrives."""
    busy = ScriptedReply(error=EngineError("no room", retryable=True))
    done = await bench.run([busy, LOOK, shell("sed -i s/wrong/right/ answer.txt"), "Done."], lose=frozenset({3}))
    assert (done.outcome.stop, done.files["answer.txt"]) == ("completed", b"right\n"), done.summary()
    assert [seen.status for seen in done.relay.seen] == [503, 200, 0, 200, 200], done.summary()
    done.assert_one_exact_chain(3)


async def test_a_refused_key_ends_the_run(bench: Bench) -> None:
    """A sealed session's 409 is not tried here: OpenCode repeats that status five times in 75 s."""
    done = await bench.run([], key="dt-agent-this-key-is-not-known")
    assert (done.outcome.stop, done.outcome.infrastructure) == ("model_error", True), done.summary()
    assert done.outcome.detail
    assert len(done.relay.seen) == 1
    assert (len(done.session.graph), done.rows) == (0, [])


async def test_a_cut_answer_is_a_length_stop(bench: Bench) -> None:
    done = await bench.run(["word " * 100], max_output_tokens=20)
    assert done.outcome.stop == "length", done.summary()
    done.assert_one_exact_chain(1)
    (turn,) = done.session.graph
    assert (turn.finish_reason, len(turn.sampled_ids)) == ("length", 20)


async def test_a_sub_agent_is_a_conversation_of_its_own(bench: Bench) -> None:
    """It has the same system text, other tools and a header that names its parent session."""

    def script(_ids: list[int], text: str, _index: int) -> str:
        if "it says wrong" in text:
            return "The sub-agent knows."
        if "What does answer.txt say?" not in text:
            return tool_call(
                "task", description="look it up", prompt="What does answer.txt say?", subagent_type="general"
            )
        return "it says wrong" if "<tool_response>" in text else LOOK

    done = await bench.run(script)
    assert done.outcome.stop == "completed", done.summary()
    assert done.labels == ["agent", "subagent", "subagent", "agent"], done.summary()
    assert [turn.link for turn in done.session.graph] == ["root", "new_root", "linear", "linear"], done.summary()
    headers = [{name.lower() for name in seen.headers} for seen in done.relay.seen]
    assert ["x-parent-session-id" in names for names in headers] == [False, True, True, False]
    assert len(done.rows) == 2
    assert done.findings == []


async def test_a_title_call_is_labelled_and_not_trained(bench: Bench) -> None:
    """Without a given title it asks for one, at the same time as the first turn."""
    argv = [word for word in bench.agent.preset.argv if word not in ("--title", "rollout")]
    preset = msgspec.structs.replace(bench.agent.preset, argv=tuple(argv))
    bench.agent = CLIHarness(preset, bench.agent.bundle)

    def script(_ids: list[int], text: str, _index: int) -> str:
        return "All is done." if "<tools>" in text else "Fixing a file"

    done = await bench.run(script)
    assert done.outcome.stop == "completed", done.summary()
    assert sorted(done.labels) == ["agent", "title"], done.summary()
    assert len(done.rows) == 1
    assert done.findings == []
    asked = [str(seen.body["messages"][0]["content"]) for seen in done.relay.seen if not seen.body.get("tools")]
    assert len(asked) == 1 and bench.agent.preset.labels[0].system_contains in asked[0]
    (trained,) = (turn for turn in done.session.graph if turn.n_tools)
    assert sum(done.rows[0].loss_mask) == len(trained.sampled_ids)


def test_last_words() -> None:
    def log(*lines: str) -> bytes:
        return "\n".join(lines).encode()

    def step(reason: str) -> str:
        return f'{{"type":"step_finish","part":{{"reason":"{reason}"}}}}'

    failed = '{"type":"error","error":{"name":"APIError","data":{"message":"no"}}}'
    assert opencode_json(log(step("tool-calls"), step("stop")), b"") == LastWord("stop")
    assert opencode_json(log(step("stop"), failed), b"") == LastWord("error", "APIError: no")
    assert opencode_json(log(failed, step("stop")), b"") == LastWord("stop")
    assert opencode_json(b"", b"") == LastWord("")
