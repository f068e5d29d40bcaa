"""Properties of the turn graph under random harness behaviour."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drivetrain.messages import Message, Reply, RequestedSampling, ToolSpec, Usage
from drivetrain.trace.forks import link_of
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.hashes import prompt_digest
from drivetrain.trace.keys import extend, message_key
from drivetrain.trace.labels import infer_labels
from drivetrain.trace.row_check import check_row
from drivetrain.trace.sample import rows_of, untrained_reason
from drivetrain.trace.sharing import share_prompt
from drivetrain.trace.turn import Label, Turn, pack_ids, pack_logprobs
from drivetrain.trace.validate import check_graph, check_rows

TAG = "0123abcd"


class Harness:
    """Plays a session straight on the graph: the part of the gateway that is not HTTP, engine or template.

    A message has the same three tokens wherever it is rendered; what was sampled has others than its rendering.
    """

    def __init__(self) -> None:
        self.graph = TraceGraph(TAG)
        self.histories: list[list[Message]] = [[Message("system", "s"), Message("user", "task")]]
        self.sent: dict[int, list[int]] = {}
        self.asked: dict[int, list[Message]] = {}
        self.foreign: dict[int, bool] = {}

    def ask(self, history: list[Message], *, delivered: bool, label: Label, tools: tuple[ToolSpec, ...] = ()) -> Turn:
        graph = self.graph
        match = graph.match(history, tools)
        turn_id = graph.reserve_id()
        delta = [token for message in match.tail for token in _ids(message.role, message.content, 3)] + [256]
        start = graph.ids_through(match.parent).tolist() if match.parent else []
        prompt = [*start, *delta]
        reply = Reply("r", "m", 0, f"answer {turn_id}", "", (), "stop", Usage(len(prompt), 3))
        spoken = message_key(Message("assistant", reply.content))
        sampled = _ids("sampled", str(turn_id), 1 + turn_id % 4)
        link, reason, detail = link_of(graph, match, history, tools)
        turn = Turn(
            id=turn_id,
            parent=match.parent.id if match.parent else None,
            link=link,
            fork_reason=reason,
            fork_detail=detail,
            delta_ids=pack_ids(delta),
            sampled_ids=pack_ids(sampled),
            logprobs=pack_logprobs([-0.5 - i for i in range(len(sampled))]),
            prompt_len=len(prompt),
            prompt_sha256=prompt_digest(pack_ids(prompt)),
            tail_keys=match.tail_keys,
            prompt_chain=match.chain,
            reply_key=spoken,
            reply_chain=extend(match.chain, spoken),
            label=label,
            finish_reason="stop",
            policy_version_start=0,
            policy_version_end=0,
            dialect="test",
            requested=RequestedSampling(),
            effective={},
            engine="test",
            reply=reply,
            messages=match.tail,
            tools=tools if match.parent is None else None,
            started_at=0,
            dispatched_at=0,
            completed_at=0,
            delivered=delivered,
        )
        share_prompt(graph, turn)
        graph.add(turn)
        self.sent[turn_id] = prompt
        self.asked[turn_id] = list(history)
        self.foreign[turn_id] = any(message.role == "assistant" for message in match.tail)
        return turn


def _ids(kind: str, text: str, count: int) -> list[int]:
    digest = hashlib.sha256(f"{kind} {text}".encode()).digest()
    return [int(byte) for byte in digest[:count]]


step = st.fixed_dictionaries(
    {
        "history": st.integers(0, 5),
        "action": st.sampled_from(
            ["continue", "continue", "repeat", "branch", "drop", "rewrite", "remind", "blank", "new", "subagent"]
        ),
        "delivered": st.booleans(),
        "label": st.sampled_from(["agent", "agent", "subagent", "title"]),
        "tool": st.booleans(),
    }
)


def play(steps: list[dict[str, Any]]) -> Harness:
    harness = Harness()
    tool = (ToolSpec("bash"),)
    for number, move in enumerate(steps):
        history = harness.histories[move["history"] % len(harness.histories)]
        asked = list(history)
        if move["action"] == "drop" and len(asked) > 2:
            del asked[len(asked) // 2]
        elif move["action"] == "rewrite":
            asked[-1] = Message(asked[-1].role, asked[-1].content + "!")
        elif move["action"] == "remind":  # at the end of this prompt, gone from the next
            asked.append(Message("user", f"reminder {number}"))
        elif move["action"] == "blank":  # all but the last two results
            results = [i for i, message in enumerate(asked) if message.content.startswith("result")]
            asked = [Message(m.role, "" if i in results[:-2] else m.content) for i, m in enumerate(asked)]
        elif move["action"] == "new":
            asked = [Message("system", "other"), Message("user", f"task {number}")]
        elif move["action"] == "subagent":
            asked = [asked[0], Message("user", f"task {number}")]
        turn = harness.ask(asked, delivered=move["delivered"], label=move["label"], tools=tool if move["tool"] else ())
        if move["action"] != "repeat":
            kept = history if move["action"] == "remind" else asked
            grown = [*kept, Message("assistant", turn.reply.content), Message("user", f"result {number}")]
            if move["action"] in ("continue", "remind", "blank"):
                history[:] = grown
            else:
                harness.histories.append(grown)
    return harness


@settings(max_examples=80, deadline=None)
@given(st.lists(step, min_size=1, max_size=25))
def test_prompts_rebuild_and_tokens_are_trained_once(steps: list[dict[str, Any]]) -> None:
    harness = play(steps)
    graph = harness.graph
    for turn in graph:
        assert graph.prompt_ids(turn).tolist() == harness.sent[turn.id]
        assert graph.request(turn) == harness.asked[turn.id]
        if turn.parent is not None:
            stored = graph.ids_through(graph[turn.parent])
            assert np.array_equal(graph.prompt_ids(turn)[: len(stored)], stored)
    rows = rows_of(graph)
    for row in rows:
        whole = [*row.prompt_ids, *row.response_ids]
        for turn_id in row.metadata["turns"]:
            assert whole[: len(harness.sent[turn_id])] == harness.sent[turn_id]
    assert check_graph(graph) == []
    assert check_rows(graph, rows) == []
    labels = infer_labels(graph)
    chosen = [turn for turn in graph if not untrained_reason(turn, label=labels[turn.id].label)]
    trainable = sum(len(turn.sampled_ids) for turn in chosen)
    assert sum(sum(row.loss_mask) for row in rows) == trainable
    seen = [turn for row in rows for turn in row.metadata["trained_turns"]]
    assert len(seen) == len(set(seen))
    for row in rows:
        assert check_row(row) == []
        assert row.loss_mask[-1] == 1
        for turn_id in row.metadata["turns"]:
            parent = graph[turn_id].parent
            assert parent is None or parent in row.metadata["turns"]


@settings(max_examples=50, deadline=None)
@given(st.lists(step, min_size=1, max_size=15))
def test_every_branch_has_a_reason(steps: list[dict[str, Any]]) -> None:
    """Whatever does not simply extend the newest turn says why (design invariant 2)."""
    harness = play(steps)
    for turn in harness.graph:
        siblings = [other for other in harness.graph if other.parent == turn.parent and other.id < turn.id]
        assert bool(turn.fork_reason) == (bool(siblings) or harness.foreign[turn.id]), turn


@given(
    st.lists(step, min_size=1, max_size=10), st.integers(0, 10_000), st.sampled_from(["id", "mask", "logprob", "row"])
)
def test_checks_can_fail(steps: list[dict[str, Any]], where: int, kind: str) -> None:
    """Every kind of damage to a row is found: a check that cannot fail proves nothing."""
    graph = play([{**move, "delivered": True, "label": "agent"} for move in steps]).graph
    rows = rows_of(graph)
    row = rows[where % len(rows)]
    at = where % len(row.response_ids)
    if kind == "id":
        row.response_ids[at] += 1
    elif kind == "mask":
        row.loss_mask[at] ^= 1
        row.response_logprobs[at] = -1.0 if row.loss_mask[at] else 0.0
    elif kind == "logprob":
        row.response_logprobs[at] -= 0.25
    else:
        rows.remove(row)
    assert check_rows(graph, rows) != []


def _steps(*actions: str) -> list[dict[str, Any]]:
    """Steps on the first history, the second with a tool."""
    return [
        {"history": 0, "action": action, "delivered": True, "label": "agent", "tool": number == 1}
        for number, action in enumerate(actions)
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(step, min_size=1, max_size=25))
@example(_steps("continue", "continue", "rewrite", "continue", "repeat", "drop"))  # a twin names a base
def test_what_is_shared_is_stored_once(steps: list[dict[str, Any]]) -> None:
    """A base changes how a prompt is stored and nothing else: with and without, the same rows, labels and requests."""
    shared = play(steps).graph
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.trace.test_graph_properties.share_prompt", lambda *_: None)
        whole = play(steps).graph
    assert rows_of(shared) == rows_of(whole)
    assert infer_labels(shared) == infer_labels(whole)
    for turn, other in zip(shared, whole, strict=True):
        assert (turn.parent, turn.link, turn.fork_reason) == (other.parent, other.link, other.fork_reason)
        assert shared.request(turn) == whole.request(other)
        assert shared.tools_of(turn) == whole.tools_of(other)
        if turn.base is not None:
            base = shared[turn.base]
            assert 0 < turn.keep <= base.prompt_len
            assert len(turn.delta_ids) < len(other.delta_ids)
            assert shared.request(base)[: turn.keep_messages] == shared.request(turn)[: turn.keep_messages]
