"""Unmodified Pi and mini-swe-agent on a real task, their policy scripted: they solve it, and the trace is exact."""

from __future__ import annotations

import numpy as np
import pytest

from drivetrain.engines.protocol import EngineError
from drivetrain.engines.scripted import ScriptedReply
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader
from drivetrain.rollout.audit import audit_run
from swe_rl_env.building.build import build_task
from swe_rl_env.tasks.catalog import get_task

from .conftest import TASK, RunWith, tool_call

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
FINISH = {
    "pi": "I fixed it.",
    "mini-swe-agent": tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
}


def solving_script(agent: str) -> list[str]:
    """Four turns that look, write the reference fix as a patch file, apply it, and finish."""
    gold = build_task(get_task(TASK)).gold_patch.decode()
    write = f"cat > ../fix.patch <<'END_OF_PATCH'\n{gold}END_OF_PATCH\necho written é"
    commands = ["ls && git log --oneline", write, "git apply ../fix.patch && git diff --stat"]
    return [*(tool_call("bash", command=command) for command in commands), FINISH[agent]]


@pytest.mark.parametrize("agent", ["pi", "mini-swe-agent"])
async def test_agent_solves_the_task_and_the_trace_is_one_exact_chain(run_with: RunWith, agent: str) -> None:
    done = await run_with(agent, solving_script(agent), n=2, max_tokens=2000)
    for result in done.results:
        assert (result.status, result.reward) == ("ok", 1.0), result
        assert result.harness["stop"] == "completed"
        assert (result.turns, len(result.rows), result.fork_reasons) == (4, 1, {})
        assert result.grade["f2p_passed"] == result.grade["f2p_total"] == 2
    assert [audit.problems for audit in audit_run(done.run)] == [[], []]
    reader = JournalReader(done.run.journal)
    for result in done.results:
        graph = reader.graph(result.session_id, session_tag(result.session_id))
        calls = [call for call in done.engine.calls if call.session_id == result.session_id]
        for previous, sent in zip(graph, calls[1:], strict=False):
            stored = graph.ids_through(previous)
            assert np.array_equal(sent.prompt_ids[: len(stored)], stored)
        assert all(turn.delivered for turn in graph)
        sampled = sum(len(turn.sampled_ids) for turn in graph)
        assert sum(result.rows[0].loss_mask) == sampled


async def test_budget_stop_ends_pi_by_itself_and_is_no_turn(run_with: RunWith) -> None:
    done = await run_with("pi", [], then=tool_call("bash", command="true"), max_turns=3)
    (result,) = done.results
    assert (result.status, result.reward, result.turns) == ("truncated", 0.0, 3)
    assert result.harness["stop"] == "completed"
    events = JournalReader(done.run.journal).events(result.session_id)
    kinds = [event.kind for event in events]
    assert kinds.count("budget_stop") == 1
    assert set(kinds) == {"provenance", "config_hashes", "budget_stop"}


async def test_mini_stops_at_its_own_step_limit(run_with: RunWith) -> None:
    done = await run_with("mini-swe-agent", [], then=tool_call("bash", command="true"), max_turns=2)
    (result,) = done.results
    assert (result.status, result.reward, result.turns) == ("truncated", 0.0, 2)


async def test_mini_forks_where_it_drops_a_reply(run_with: RunWith) -> None:
    script = ["no call at all", tool_call("bash", command="ls"), FINISH["mini-swe-agent"]]
    done = await run_with("mini-swe-agent", script)
    (result,) = done.results
    assert result.fork_reasons == {"assistant_removed": 1}
    assert [len(row.metadata["trained_turns"]) for row in result.rows] == [1, 2]
    assert audit_run(done.run)[0].problems == []


async def test_failing_engine_leaves_the_rollout_ungraded(run_with: RunWith) -> None:
    done = await run_with("pi", [], then=ScriptedReply(error=EngineError("no weights")))
    (result,) = done.results
    assert (result.status, result.reward, result.rows) == ("infra_error", None, [])
    assert "no weights" in result.error


async def test_cheating_agent_gets_nothing(run_with: RunWith) -> None:
    """It rewrites the tests and plants a conftest.py that reports every test as passed (case row G2)."""
    hook = (
        "import pytest\\n@pytest.hookimpl(hookwrapper=True)\\ndef pytest_runtest_makereport(item, call):\\n"
        "    out = yield\\n    out.get_result().outcome = 'passed'\\n"
    )
    command = (
        f"printf \"{hook}\" > conftest.py; for f in tests/*.py; do echo 'def test_ok(): pass' > $f; done; ls tests"
    )
    done = await run_with("pi", [tool_call("bash", command=command)])
    (result,) = done.results
    assert (result.status, result.reward) == ("ok", 0.0)
    assert "conftest.py" in result.grade["dropped_paths"]


async def test_agent_sees_neither_tests_nor_fix_nor_network(run_with: RunWith) -> None:
    look = (
        "env; cat ~/.pi/agent/models.json | head -c 300; git log --all --oneline; "
        "grep -rl test_skip_whitespace / --include=*.py --include=*.jsonl 2>/dev/null; "
        "getent hosts pypi.org; cat /proc/net/route; ls /root /home /work 2>&1"
    )
    done = await run_with("pi", [tool_call("bash", command=look)], max_tokens=2000)
    (result,) = done.results
    graph = JournalReader(done.run.journal).graph(result.session_id, session_tag(result.session_id))
    seen = next(message.content for turn in graph for message in turn.messages if message.role == "tool")
    hidden = build_task(get_task(TASK)).task.private
    assert "base" in seen
    for secret in (*hidden.fail_to_pass, "0.14.2", str(done.run.path)):
        assert secret not in seen
    routes = [line for line in seen.splitlines() if line.startswith(("eth", "en", "wl"))]
    assert routes == []
