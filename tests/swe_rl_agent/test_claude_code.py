"""Claude Code, unmodified, against the gateway: no network, a scripted policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedReply
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent.last_word import LastWord
from swe_rl_agent.log_claude import claude_stream_json

from .conftest import Boxes
from .gateway_kit import TASK, tool_call
from .native_kit import (
    BUSY,
    SECRETS,
    NetBench,
    attempts_elsewhere,
    counters,
    impatient,
    make_bench,
    of_engine,
    said,
    statuses,
    tool_names,
)

PATH = "/v1/messages"


@pytest.fixture
def bench_of(
    sandbox_for: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec
) -> Callable[[str | None], NetBench]:
    return lambda variant: make_bench("claude-code", variant, sandbox_for, socket_path.parent, tiny_model, codec)


@pytest.fixture
def bench(bench_of: Callable[[str | None], NetBench]) -> NetBench:
    return bench_of("small")


def bash(command: str) -> str:
    return tool_call("Bash", description="step é", command=command)  # not in the order of the tool's schema


SCRIPT = (
    bash(SECRETS),
    tool_call("Read", file_path="/work/answer.txt"),
    tool_call("Edit", file_path="/work/answer.txt", old_string="wrong", new_string="right"),
    bash("sh check.sh; cat answer.txt; false"),
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
    # Edit comes back with the schema's default for replace_all: recognised by its call id, what was sampled stays
    assert [turn.soft_mismatches for turn in done.session.graph] == [0, 0, 0, 1, 1]
    assert tool_names(done.relay.seen[0]) == ["Bash", "Edit", "Read"]
    first = done.relay.seen[0]
    assert TASK in said(first, "messages") and "x-anthropic-billing-header" not in said(first, "system")
    assert attempts_elsewhere(bench.network) == {}


@pytest.mark.real
async def test_the_counters_see_an_attempt(bench: NetBench, sandbox_for: Boxes, socket_path: Path) -> None:
    async with sandbox_for(bench.agent, _made(socket_path)) as box:
        assert attempts_elsewhere(await counters(box)) == {}
        await box.exec(["bash", "-c", "echo > /dev/tcp/192.0.2.1/443"])
        assert attempts_elsewhere(await counters(box)) != {}


@pytest.mark.real
@pytest.mark.timeout(300)
async def test_a_slow_engine_that_then_fails_is_asked_again(bench: NetBench) -> None:
    """Keep-alives, then an error event, then keep-alives and a reply: one turn."""
    bench.agent = impatient(bench.agent)
    late = msgspec.structs.replace(BUSY, delay_s=0.7)
    done = await bench.run((late, ScriptedReply(text=SCRIPT[0], delay_s=0.7), *SCRIPT[1:]))
    assert done.outcome.stop == "completed", done.summary()
    assert statuses(done) == [200] * 6  # the failure came after the headers
    done.assert_one_exact_chain(5)
    assert all(seen.body["stream"] for seen in done.relay.seen)


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("how", "status", "most"), [("key", 401, 6), ("sealed", 409, 1)])
async def test_a_refused_session_ends_the_run(how: str, status: int, most: int, bench: NetBench) -> None:
    """409 is not repeated, as ``x-should-retry: false`` says; 401 is all the same, with the key read anew."""
    done = await bench.run(SCRIPT, sealed=how == "sealed", key="dt-agent-wrong-0123456789" if how == "key" else "")
    assert (done.outcome.stop, done.outcome.infrastructure) == ("model_error", True), done.summary()
    assert str(status) in done.outcome.detail
    assert set(statuses(done)) == {status} and len(statuses(done)) <= most
    assert len(done.session.graph) == 0


@pytest.mark.real
@pytest.mark.timeout(300)
async def test_a_cut_answer_is_continued_in_the_same_chain(bench: NetBench) -> None:
    done = await bench.run((SCRIPT[0], "word " * 3000, *SCRIPT[1:]), max_output_tokens=400)
    assert done.outcome.stop == "completed", done.summary()
    done.assert_one_exact_chain(6)
    assert [turn.reply.finish_reason for turn in done.session.graph][1] == "length"
    assert len(done.session.graph[1].sampled_ids) == 400


@pytest.mark.real
@pytest.mark.agent_claim("sub-agents", agents=("claude-code",))
@pytest.mark.timeout(300)
async def test_a_sub_agent_has_a_root_of_its_own(bench_of: Callable[[str | None], NetBench]) -> None:
    """Its conversation is labelled by the header it sends; both chains are trained, each sampled id once."""
    ask = tool_call(
        "Agent", description="look", prompt="SUBTASK: what does answer.txt hold?", subagent_type="general-purpose"
    )

    def policy(_ids: list[int], text: str, _index: int) -> str:
        answered = text.count("<|im_start|>assistant\n") - 1
        if TASK in text:
            return (ask, SCRIPT[1], SCRIPT[2], "It is done.")[answered]
        return (bash("cat answer.txt"), "It holds wrong.")[answered]

    done = await bench_of(None).run(policy)
    assert done.outcome.stop == "completed", done.summary()
    assert done.files["answer.txt"] == b"right\n"
    graph = done.session.graph
    assert done.labels == ["agent", "subagent", "subagent", "agent", "agent", "agent"], done.summary()
    assert [turn.parent for turn in graph] == [None, None, 1, 0, 3, 4]
    assert all("x-claude-code-agent-id" in turn.origin for turn in list(graph)[1:3])
    trained = [sorted(row.metadata["trained_turns"]) for row in done.rows]
    assert sorted(trained) == [[0, 3, 4, 5], [1, 2]]
    assert sum(sum(row.loss_mask) for row in done.rows) == sum(len(turn.sampled_ids) for turn in graph)
    assert done.findings == [] and len(of_engine(done)) == 6


@pytest.mark.real
@pytest.mark.timeout(300)
async def test_a_context_that_is_full_is_said_so(bench: NetBench) -> None:
    """The gateway's exact count ends the run, not Claude Code's estimate; it neither compacts nor asks again."""
    flood = bash("head -c 30000 /dev/urandom | base64 -w0 | head -c 29000")
    done = await bench.run([flood] * 60, task=TASK + "é" * 85_000)
    assert done.outcome.stop == "context_overflow", done.summary()
    assert not done.outcome.infrastructure
    assert statuses(done)[:-1] == [200] * len(done.session.graph) and statuses(done)[-1] == 400
    done.assert_one_exact_chain(len(done.session.graph))


@pytest.mark.real
@pytest.mark.timeout(300)
async def test_a_task_is_text_whatever_it_looks_like(bench: NetBench) -> None:
    for task in ("/help is wrong", "--version and @nothing", "-"):
        done = await bench.run(["Seen."], task=task)
        assert done.outcome.stop == "completed", done.summary()
        last = done.relay.seen[0].body["messages"][-1]["content"]
        assert json.dumps(last).count(json.dumps(task)[1:-1]) == 1


def test_the_last_word_is_the_result_event() -> None:
    def lines(*events: dict[str, object]) -> bytes:
        return b"\n".join(msgspec.json.encode(event) for event in events)

    done = {"type": "result", "subtype": "success", "is_error": False, "result": "ok", "stop_reason": "end_turn"}
    assert claude_stream_json(lines({"type": "user", "result": 3}, done), b"") == LastWord("success", "ok")
    failed = {**done, "is_error": True, "result": "API Error: 503"}
    assert claude_stream_json(lines(done, failed), b"") == LastWord("error", "API Error: 503")
    cut = {**done, "stop_reason": "max_tokens"}
    assert claude_stream_json(lines(cut), b"") == LastWord("max_tokens", "ok")
    limit = {"type": "result", "subtype": "error_max_turns", "is_error": True, "errors": ["5 turns"]}
    assert claude_stream_json(lines(limit), b"") == LastWord("error_max_turns", "5 turns")
    assert claude_stream_json(lines(done)[:-5], b"") == LastWord("")


def _made(path: Path) -> Path:
    folder = path.parent / "own"
    folder.mkdir()
    (folder / path.name).touch()
    return folder / path.name
