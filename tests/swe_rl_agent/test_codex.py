"""Codex, unmodified, against the gateway: no network, a scripted policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedReply
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent import CLIHarness
from swe_rl_agent.last_word import LastWord
from swe_rl_agent.log_codex import codex_json
from swe_rl_agent.preset import ConfigFile, Variant

from .conftest import Boxes
from .gateway_kit import TASK, tool_call
from .native_kit import (
    BUSY,
    SECRETS,
    NetBench,
    attempts_elsewhere,
    impatient,
    make_bench,
    said,
    statuses,
    tool_names,
)

PATH = "/v1/responses"
BenchOf = Callable[[str | None], NetBench]


@pytest.fixture
def bench_of(sandbox_for: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> BenchOf:
    return lambda variant: make_bench("codex", variant, sandbox_for, socket_path.parent, tiny_model, codec)


@pytest.fixture
def bench(bench_of: BenchOf) -> NetBench:
    return bench_of("small")


def shell(command: str) -> str:
    return tool_call("exec_command", cmd=command, yield_time_ms=5000)


SCRIPT = (
    shell(SECRETS),
    shell("cat answer.txt; printf 'é\\n'"),
    shell("sed -i s/wrong/right/ answer.txt"),
    shell("sh check.sh; cat answer.txt; false"),
    "It is done.",
)


@pytest.mark.real
@pytest.mark.timeout(300)
async def test_a_task_with_the_short_prompt_is_one_exact_chain(bench: NetBench) -> None:
    done = await bench.run(SCRIPT)
    assert (done.outcome.stop, done.outcome.exit_code) == ("completed", 0), done.summary()
    assert done.files["answer.txt"] == b"right\n"
    assert [(seen.path, seen.status) for seen in done.relay.seen] == [(PATH, 200)] * 5
    done.assert_one_exact_chain(5)
    assert [turn.soft_mismatches for turn in done.session.graph] == [0] * 5  # it returns the exact text of every call
    first = done.relay.seen[0]
    assert "view_image" not in tool_names(first)
    assert len(said(first, "input")) < 4000
    assert attempts_elsewhere(bench.network) == {}


@pytest.mark.real
@pytest.mark.timeout(300)
async def test_a_slow_engine_that_then_fails_is_asked_again(bench: NetBench) -> None:
    """Keep-alives, then a failed response, then keep-alives and a reply: one turn."""
    bench.agent = impatient(bench.agent)
    late = msgspec.structs.replace(BUSY, delay_s=0.7)
    done = await bench.run((late, ScriptedReply(text=SCRIPT[0], delay_s=0.7), *SCRIPT[1:]))
    assert done.outcome.stop == "completed", done.summary()
    assert statuses(done) == [200] * 6  # the failure came after the headers
    done.assert_one_exact_chain(5)
    assert all(seen.body["stream"] for seen in done.relay.seen)


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("how", "status"), [("key", 401), ("sealed", 409)])
async def test_a_refused_session_ends_the_run(how: str, status: int, bench: NetBench) -> None:
    """Codex does not know ``x-should-retry``: it asks as often as the preset allows, within seconds."""
    done = await bench.run(SCRIPT, sealed=how == "sealed", key="dt-agent-wrong-0123456789" if how == "key" else "")
    assert (done.outcome.stop, done.outcome.infrastructure) == ("model_error", True), done.summary()
    assert str(status) in done.outcome.detail
    assert statuses(done) == [status] * 3
    assert len(done.session.graph) == 0


@pytest.mark.real
@pytest.mark.timeout(300)
async def test_an_engine_that_stays_dead_ends_the_run(bench: NetBench) -> None:
    """Each of Codex's two loops is bounded by the preset; with one retry that makes four requests, not thirty."""
    bench.agent = CLIHarness(msgspec.structs.replace(bench.agent.preset, max_retries=1), bench.agent.bundle)
    done = await bench.run([BUSY] * 20)
    assert (done.outcome.stop, done.outcome.infrastructure) == ("model_error", True), done.summary()
    assert "no room" in done.outcome.detail
    assert statuses(done) == [503] * 4


@pytest.mark.real
@pytest.mark.timeout(300)
async def test_a_cut_answer_is_a_length_stop(bench: NetBench) -> None:
    """Codex ends the run there; the turn is kept and trained."""
    done = await bench.run((SCRIPT[0], "word " * 3000), max_output_tokens=400)
    assert (done.outcome.stop, done.outcome.infrastructure) == ("length", False), done.summary()
    done.assert_one_exact_chain(2)
    assert len(done.session.graph[1].sampled_ids) == 400


@pytest.mark.real
@pytest.mark.timeout(300)
async def test_a_context_that_is_full_is_said_so(bench: NetBench) -> None:
    """The gateway's exact count ends the run, not Codex's estimate; it neither compacts nor asks again."""
    flood = tool_call("exec_command", cmd="head -c 30000 /dev/urandom | base64 -w0", max_output_tokens=10000)
    done = await bench.run([flood] * 60, task=TASK + "é" * 85_000)
    assert (done.outcome.stop, done.outcome.infrastructure) == ("context_overflow", False), done.summary()
    assert statuses(done)[:-1] == [200] * len(done.session.graph) and statuses(done)[-1] == 400
    done.assert_one_exact_chain(len(done.session.graph))


@pytest.mark.real
@pytest.mark.agent_claim("compaction", agents=("codex",))
@pytest.mark.timeout(300)
async def test_compaction_is_labelled_and_what_follows_carries_on(bench: NetBench) -> None:
    """With a limit that is reached: the summary is a call of its own without tools, then a fresh conversation."""
    bench.agent = compacting(bench.agent, 20_000)

    def policy(_ids: list[int], text: str, _index: int) -> str:
        if "<tools>" not in text:
            return "SUMMARY: answer.txt still has to be mended."
        if "SUMMARY: answer.txt" not in text:
            return shell("head -c 25000 /dev/urandom | base64 -w0")
        return "It is done." if text.count("<tool_response>") else SCRIPT[2]

    done = await bench.run(policy)
    assert done.outcome.stop == "completed", done.summary()
    assert done.files["answer.txt"] == b"right\n"
    assert done.labels == ["agent"] * 3 + ["compaction"] + ["agent"] * 2, done.summary()
    trained = sorted(sorted(row.metadata["trained_turns"]) for row in done.rows)
    assert trained == [[0, 1, 2], [4, 5]]
    assert done.findings == []


def compacting(agent: CLIHarness, limit: int) -> CLIHarness:
    """The agent with Codex's own limit set to so many tokens."""
    preset = agent.preset
    extra = Variant(files=(ConfigFile(".codex/config.toml", {"model_auto_compact_token_limit": limit}),))
    changed = msgspec.structs.replace(preset, variants={"compacting": extra}).with_variant("compacting")
    return CLIHarness(changed, agent.bundle)


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize("task", ["--help is wrong and @nothing", "resume"])
async def test_a_task_is_text_whatever_it_looks_like(task: str, bench: NetBench) -> None:
    done = await bench.run(["Seen."], task=task)
    assert done.outcome.stop == "completed", done.summary()
    assert done.relay.seen[0].body["input"][-1]["content"][0]["text"] == task


def test_the_last_word_is_the_last_turn_event() -> None:
    def lines(*events: dict[str, object]) -> bytes:
        return b"\n".join(msgspec.json.encode(event) for event in events)

    done, failed = {"type": "turn.completed", "usage": {}}, {"type": "turn.failed", "error": {"message": "503"}}
    retry = {"type": "error", "message": "Reconnecting... 1/2"}
    quoted = {"type": "item.completed", "item": {"text": '"turn.failed"'}}
    assert codex_json(lines(retry, done, quoted), b"") == LastWord("completed")
    assert codex_json(lines(done, failed), b"") == LastWord("failed", "503")
    cut = "Incomplete response returned, reason: max_output_tokens"
    assert codex_json(lines({"type": "turn.failed", "error": {"message": cut}}), b"").word == "max_output_tokens"
    assert codex_json(lines(done)[:-3], b"") == LastWord("")
