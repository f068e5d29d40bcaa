"""What a harness does when it replays history, and what becomes of the chain: 12 turns, reasoning and one call each.

*Linear*: one chain, no break, every prompt is the stored tokens and a delta. Every other row forks exactly where it is
said here, with its reason, and keeps the tokens before the message that differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError
from drivetrain.engines.scripted import ScriptedCall, ScriptedEngine, ScriptedReply
from drivetrain.gateway.delivery import Served
from drivetrain.gateway.dialects.base import Dialect
from drivetrain.gateway.respond import respond_json
from drivetrain.gateway.sessions import Session
from drivetrain.journal.reader import JournalReader
from drivetrain.messages import Call
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.labels import infer_labels
from drivetrain.trace.sample import rows_of
from drivetrain.trace.turn import ForkReason, Link
from drivetrain.trace.validate import check_graph, check_rows
from tests.cases import harness as h
from tests.gateway.conftest import Rig, StartRig
from tests.gateway.raw import eventually

LINEAR = ["root"] + ["linear"] * (h.TURNS - 1)


@pytest.fixture(scope="session")
def codec(codec: TokenCodec) -> TokenCodec:
    """Replies are ``<think>`` blocks, text and calls; the template leaves reasoning out when it renders anew."""
    return TokenCodec(codec.tokenizer, codec.template, stop_ids=codec.stop_ids, parser="think+hermes")


def sampled(rig: Rig) -> list[ScriptedCall]:
    """The calls that the engine answered."""
    assert isinstance(rig.gateway.engine, ScriptedEngine)
    return [call for call in rig.gateway.engine.calls if call.outcome == "stop"]


async def stored(rig: Rig, session: Session) -> TraceGraph:
    """What the journal holds, once it knows that the last reply arrived."""

    def read() -> TraceGraph:
        return JournalReader(rig.journal).graph(session.id, session.graph.session_tag)

    await eventually(lambda: all(turn.delivered for turn in read()))
    return read()


async def assert_sound(rig: Rig, session: Session) -> None:
    """The journal alone rebuilds each prompt that the engine got; rows hold stored ids, each sampled token once."""
    graph = await stored(rig, session)
    assert check_graph(graph, vocab_size=rig.gateway.codec.tokenizer.vocab_size) == []
    rows = rows_of(graph)
    assert check_rows(graph, rows) == []
    sent = {turn.id: call.prompt_ids for turn, call in zip(graph, sampled(rig), strict=True)}
    for turn in graph:
        assert graph.prompt_ids(turn).tolist() == sent[turn.id]
    for row in rows:
        whole = [*row.prompt_ids, *row.response_ids]
        assert all(whole[: len(sent[turn])] == sent[turn] for turn in row.metadata["turns"])
    assert sum(sum(row.loss_mask) for row in rows) == sum(len(turn.sampled_ids) for turn in graph)


async def assert_linear(rig: Rig, session: Session) -> None:
    turns = list(session.graph)
    assert [(turn.link, turn.fork_reason) for turn in turns] == [(link, "") for link in LINEAR]
    calls = sampled(rig)
    assert len(calls) == h.TURNS
    for before, after, turn in zip(calls[:-1], calls[1:], turns[:-1], strict=True):
        start = [*before.prompt_ids, *turn.sampled_ids.tolist()]
        assert after.prompt_ids[: len(start)] == start, f"turn {turn.id} does not continue"
    (row,) = rows_of(await stored(rig, session))
    assert row.metadata["trained_turns"] == [turn.id for turn in turns]
    await assert_sound(rig, session)


def shuffled(turn: int) -> list[dict[str, Any]]:
    listed = [h.BASH, h.EDIT, h.READ]
    return listed[turn % 3 :] + listed[: turn % 3]


A4 = pytest.mark.case("A4")
A9 = pytest.mark.case("A9")
A10 = pytest.mark.case("A9", "A10")


@pytest.mark.parametrize(
    "replay",
    [
        pytest.param(h.as_is, id="verbatim"),
        pytest.param(h.answers(h.empty_for_null), id="null becomes empty"),
        pytest.param(h.arguments(lambda text: h.reserialised(text, indent=2)), id="arguments: spacing", marks=A4),
        pytest.param(h.arguments(h.key_order), id="arguments: key order", marks=A4),
        pytest.param(h.arguments(lambda text: h.reserialised(text, ensure_ascii=True)), id="arguments: escapes"),
        pytest.param(h.arguments(h.whole_numbers), id="arguments: 5000.0 becomes 5000"),
        pytest.param(h.arguments(h.rounded), id="arguments: large integers are rounded"),
        pytest.param(h.javascript_without_ids, id="arguments as JavaScript writes them, ids renamed", marks=A4),
        pytest.param(h.answers(h.renamed_reasoning), id="reasoning under another name", marks=A9),
        pytest.param(h.answers(h.without_reasoning), id="reasoning dropped", marks=A10),
        pytest.param(h.answers(h.newline_added), id="newline added"),
        pytest.param(h.renamed_ids, id="tool-call ids renamed"),
        pytest.param(h.text_parts, id="one-element text lists"),
        pytest.param(h.cache_marks, id="cache markers that move"),
        pytest.param(h.text_and_call_apart, id="text and call as two messages"),
        pytest.param(h.two_users_after_results, id="two user messages after each result"),
    ],
)
async def test_linear(start_rig: StartRig, replay: h.Replay) -> None:
    rig = await start_rig([h.reply(i) for i in range(h.TURNS)])
    session, client = await rig.session()
    await h.roll(client, replay)
    await assert_linear(rig, session)


async def test_linear_newline_stripped(start_rig: StartRig) -> None:
    """Text that ends a reply keeps its newline as sampled; the harness sends it without."""
    rig = await start_rig([h.only_text(i) for i in range(h.TURNS)])
    session, client = await rig.session()
    await h.roll(client, h.answers(h.newline_stripped))
    await assert_linear(rig, session)


async def test_linear_tools_in_another_order(start_rig: StartRig) -> None:
    """The stored order is what the model goes on seeing."""
    rig = await start_rig([h.reply(i) for i in range(h.TURNS)])
    session, client = await rig.session()
    await h.roll(client, tools=shuffled)
    await assert_linear(rig, session)


@pytest.mark.case("C7")
async def test_linear_clock_that_is_declared_volatile(start_rig: StartRig) -> None:
    rig = await start_rig([h.reply(i) for i in range(h.TURNS)])
    session, client = await rig.session(volatile_lines=("o'clock",))
    await h.roll(client, h.clock)
    await assert_linear(rig, session)
    shown = rig.gateway.codec.tokenizer.decode(sampled(rig)[-1].prompt_ids)
    assert "o'clock" not in shown and "Be brief." in shown


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK repeats at once."""
    monkeypatch.setattr("openai._base_client.BaseClient._calculate_retry_timeout", lambda *_, **__: 0.001)


@pytest.mark.case("D1")
async def test_linear_engine_failure_and_sdk_retry(start_rig: StartRig, tiny_model: ModelDir, no_wait: None) -> None:
    """503 in every turn, then the SDK's retry: one turn each."""
    said = iter([reply for i in range(h.TURNS) for reply in (None, h.reply(i))])

    def script(_ids: list[int], _text: str, _index: int) -> ScriptedReply:
        text = next(said)
        return ScriptedReply(error=EngineError("overloaded")) if text is None else ScriptedReply(text=text)

    rig = await start_rig(engine=ScriptedEngine(tiny_model, script))
    session, client = await rig.session()
    await h.roll(client.with_options(max_retries=1))
    await assert_linear(rig, session)
    assert session.events["refused"] == h.TURNS


async def test_linear_reply_lost_and_retried_blindly(
    start_rig: StartRig, monkeypatch: pytest.MonkeyPatch, no_wait: None
) -> None:
    """Every first reply is lost on its way: twelve turns, and each retry gets the same bytes."""
    sent: list[bytes] = []

    async def lose_first(request: web.Request, dialect: Dialect, call: Call, served: Served) -> web.StreamResponse:
        sent.append(dialect.encode(served.reply, call))
        if len(sent) % 2:
            raise ConnectionResetError
        return await respond_json(request, dialect, call, served)

    monkeypatch.setattr("drivetrain.gateway.app.respond_json", lose_first)
    rig = await start_rig([h.reply(i) for i in range(h.TURNS)])
    session, client = await rig.session()
    await h.roll(client.with_options(max_retries=1))
    await assert_linear(rig, session)
    assert len(sent) == 2 * h.TURNS
    assert sent[::2] == sent[1::2]


class Forks(msgspec.Struct):
    """A row that is not linear: at which turns it forks, and how.

    ``kept`` are the messages and ``until`` text of the last thing that is kept, by turn; ``gone`` is text that must not
    be in the shared beginning.
    """

    turns: range | list[int]
    link: Link
    reason: ForkReason
    chains: int
    detail: Callable[[int], str]
    kept: Callable[[int], int] = lambda _: 0
    until: Callable[[int], str] = lambda _: ""
    gone: Callable[[int], str] = lambda _: "Please fix the bug"
    replay: h.Replay = h.as_is
    tools: h.Tools = h.two_tools


def growing_tools(turn: int) -> list[dict[str, Any]]:
    return [h.BASH, h.EDIT, h.READ][: 1 + (turn >= 4) + (turn >= 8)]


FORKS = {
    "adds a tool, twice": Forks(
        [4, 8],
        "new_root",
        "tools_changed",
        chains=3,
        detail=lambda _: "the tool list differs",
        tools=growing_tools,
    ),
    "clock in the system prompt": Forks(
        range(1, 12),
        "new_root",
        "system_changed",
        chains=12,
        detail=lambda _: "message 0 differs",
        until=lambda _: "It is",
        gone=lambda _: "o'clock",
        replay=h.clock,
    ),
    "reminder at the end, gone in the next turn": Forks(
        range(1, 12),
        "fork",
        "message_removed",
        chains=12,
        detail=lambda turn: f"stored message {2 * turn} is missing",
        kept=lambda turn: 2 * turn,
        until=lambda turn: f"output {turn - 2} é" if turn > 1 else "Please fix the bug in the parser.",
        gone=lambda turn: f"{2 * turn} messages so far",
        replay=h.reminder,
    ),
    "old tool results blanked, the last 3 kept": Forks(
        range(4, 12),
        "fork",
        "message_changed",
        chains=9,
        detail=lambda turn: f"message {2 * turn - 5} (tool) differs",
        kept=lambda turn: 2 * turn - 5,
        until=lambda turn: f"ls é{turn - 4}",
        gone=lambda turn: f"output {turn - 4} é",
        replay=h.blanked,
    ),
}


@pytest.mark.parametrize("row", FORKS.values(), ids=FORKS.keys())
async def test_forks(start_rig: StartRig, row: Forks) -> None:
    rig = await start_rig([h.reply(i) for i in range(h.TURNS)])
    session, client = await rig.session()
    await h.roll(client, row.replay, row.tools)
    graph = await stored(rig, session)
    forks = {turn.id: (turn.link, turn.fork_reason) for turn in graph if turn.fork_reason}
    assert forks == dict.fromkeys(row.turns, (row.link, row.reason))
    assert [turn.link for turn in graph if turn.id not in forks] == LINEAR[: h.TURNS - len(forks)]
    assert sum(not graph.children(turn.id) for turn in graph) == len(rows_of(graph)) == row.chains
    decode = rig.gateway.codec.tokenizer.decode
    for turn in map(graph.__getitem__, row.turns):
        assert row.detail(turn.id) in turn.fork_detail
        if row.reason == "tools_changed":
            assert turn.base is None
            continue
        # A first blanked result is behind a reply that is continued verbatim; later ones share with the last prompt.
        parent = turn.parent if turn.base is None else turn.base
        assert parent is not None
        before, prompt = graph.ids_through(graph[parent]), graph.prompt_ids(turn)
        keep = len(prompt) - len(turn.delta_ids)
        assert keep > 0 and np.array_equal(before[:keep], prompt[:keep])
        beginning = decode(prompt[:keep].tolist())
        assert row.until(turn.id) in beginning
        assert row.gone(turn.id) not in beginning
        shared = turn.keep_messages if turn.base is not None else graph.length_through(graph[parent])[1]
        assert shared == row.kept(turn.id)
    await assert_sound(rig, session)


@pytest.mark.case("C6")
async def test_compaction(start_rig: StartRig) -> None:
    """The summary is a turn of the old chain; what carries on with it is a new root, labelled as its continuation."""
    summary = "So far the parser was read; the fault is in strip_whitespace, line 40."
    said = [h.reply(i) for i in range(h.TURNS)]
    said[6] = f"<think>\nI sum up.\n</think>\n\n<summary>\n{summary}\n</summary>"
    rig = await start_rig(said)
    session, client = await rig.session()
    history = await h.roll(client, turns=6)
    await h.step(client, [*history, {"role": "user", "content": "Summarise what happened."}], [h.BASH, h.EDIT], 6)
    history = [h.SYSTEM, {"role": "user", "content": f"Earlier work:\n{summary}\nGo on."}]
    for turn in range(7, h.TURNS):
        history += await h.step(client, history, [h.BASH, h.EDIT], turn)
    graph = await stored(rig, session)
    assert [turn.link for turn in graph] == [*LINEAR[:7], "new_root", *LINEAR[1:5]]
    assert (graph[7].parent, graph[7].fork_reason) == (None, "new_conversation")
    labels = infer_labels(graph)
    assert (labels[6].label, labels[6].continues) == ("compaction", 0)
    assert {(labels[turn].label, labels[turn].continues) for turn in range(7, 12)} == {("agent", 0)}
    assert {labels[turn].label for turn in range(6)} == {"agent"}
    first, second = rows_of(graph, reward=1.0)
    assert (first.metadata["trained_turns"], second.metadata["trained_turns"]) == ([*range(7)], [*range(7, 12)])
    assert (second.metadata["continues"], first.reward, second.reward) == (0, 1.0, 1.0)
    await assert_sound(rig, session)


async def test_a_reminder_costs_what_is_new(start_rig: StartRig) -> None:
    """Kept ids grow with what was said, not with its square."""
    rig = await start_rig([h.reply(i) for i in range(h.TURNS)])
    session, client = await rig.session()
    await h.roll(client, h.reminder)
    own = [len(turn.delta_ids) for turn in session.graph]
    assert max(own[1:]) < 2 * min(own[2:])
    assert sum(own) < sum(turn.prompt_len for turn in session.graph) / 3
