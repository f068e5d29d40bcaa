"""OpenCode, unmodified, against the gateway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent import CLIHarness
from swe_rl_agent.last_word import LastWord
from swe_rl_agent.log_opencode import opencode_json
from tests.agent_claims import note

from .conftest import Agents, Boxes
from .gateway_kit import Bench, tool_call

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture
def bench(agent_of: Agents, sandbox_for: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> Bench:
    return Bench(tiny_model, codec, sandbox_for, socket_path.parent, agent_of("opencode"))


def shell(command: str) -> str:
    return tool_call("bash", command=command, description="step é")


LOOK = shell("cat answer.txt")


async def test_a_refused_key_ends_the_run(bench: Bench) -> None:
    """A sealed session's 409 is not tried here: OpenCode repeats that status five times in 75 s."""
    done = await bench.run([], key="dt-agent-this-key-is-not-known")
    assert (done.outcome.stop, done.outcome.infrastructure) == ("model_error", True), done.summary()
    assert done.outcome.detail
    assert len(done.relay.seen) == 1
    assert (len(done.session.graph), done.rows) == (0, [])


@pytest.mark.agent_claim("sub-agents", agents=("opencode",))
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


@pytest.mark.agent_claim("side calls", agents=("opencode",))
async def test_a_title_call_is_labelled_and_not_trained(
    bench: Bench, record_property: Callable[[str, object], None]
) -> None:
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
    note(record_property, "opencode", side_calls="title (off; labelled where it is on)")


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
