"""OpenEnv traces: exact ids, branch order, each token trained once, and faults that mask instead of raising."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.errors import MissingDependency
from drivetrain.messages import Message
from drivetrain.trace.export.chains import branch_order, chains_of
from drivetrain.trace.export.openenv import node_id, trace_dict, training_trace
from drivetrain.trace.export.selection import trained_turns
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.sample import rows_of
from drivetrain.trace.turn import Turn, pack_ids, pack_logprobs
from tests.trace.test_graph_properties import Harness, play, step

needs_openenv = pytest.mark.skipif(importlib.util.find_spec("openenv") is None, reason="openenv is not installed")


class Talk(Harness):
    """A harness of named agents; turns keep their messages."""

    def __init__(self) -> None:
        super().__init__()
        self.talks: dict[str, list[Message]] = {}

    def say(self, name: str, *, delivered: bool = True, then: bool = True, **changes: Any) -> Turn:
        """One call of agent ``name``; with ``then`` off its history does not grow (the reply was lost)."""
        history = self.talks.setdefault(name, [Message("system", f"you are {name}"), Message("user", "go")])
        turn = self.ask(history, delivered=delivered, label="agent")
        for field, value in changes.items():
            setattr(turn, field, value)
        if then:
            history += [Message("assistant", turn.reply.content), Message("user", f"result {turn.id}")]
        return turn

    def play(self, names: str) -> TraceGraph:
        for name in names.split():
            self.say(name[0])
        return self.graph


def rows_by_trl(turns: list[dict[str, Any]]) -> list[list[tuple[int, int, float]]]:
    """TRL 1.16 ``_chain_to_sequences`` without realignment (lossless capture): a turn extends the last row if and only
    if its prompt starts with the row's ids; rows that train nothing are dropped."""
    rows: list[list[tuple[int, int, float]]] = []
    for turn in turns:
        held = [token for token, _, _ in rows[-1]] if rows else []
        if not rows or turn["prompt_token_ids"][: len(held)] != held:
            rows.append([])
            held = []
        size = len(turn["prompt_token_ids"])
        rows[-1] += [(token, 0, 0.0) for token in turn["prompt_token_ids"][len(held) :]]
        rows[-1] += zip(turn["completion_token_ids"], turn["loss_mask"][size:], turn["per_token_logps"], strict=True)
    return [row for row in rows if any(mask for _, mask, _ in row)]


def trained(rows: list[list[tuple[int, int, float]]]) -> list[tuple[int, float]]:
    return sorted((token, logprob) for row in rows for token, mask, logprob in row if mask)


@settings(max_examples=60, deadline=None)
@given(st.lists(step, min_size=1, max_size=20))
def test_every_turn_once_exactly_as_stored(steps: list[dict[str, Any]]) -> None:
    graph = play(steps).graph
    trace, findings = trace_dict(graph)
    assert findings == []
    assert sorted(turn["metadata"]["turn"] for turn in trace["turns"]) == [turn.id for turn in graph]
    chosen = trained_turns(graph, None)
    seen: set[str] = set()
    for entry in trace["turns"]:
        turn = graph[entry["metadata"]["turn"]]
        assert entry["prompt_token_ids"] == graph.prompt_ids(turn).tolist()
        assert entry["completion_token_ids"] == turn.sampled_ids.tolist()
        assert np.asarray(entry["per_token_logps"], dtype=np.float32).tobytes() == turn.logprobs.tobytes()
        mask = int(turn.id in chosen)
        assert entry["loss_mask"] == [0] * len(entry["prompt_token_ids"]) + [mask] * len(turn.sampled_ids)
        assert bool(entry["metadata"]["untrained"]) == (not mask)
        assert entry["metadata"]["parent"] is None or entry["metadata"]["parent"] in seen
        assert entry["metadata"]["fork_reason"] == turn.fork_reason
        seen.add(entry["node_id"])
    json.dumps(trace, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(st.lists(step, min_size=1, max_size=20), st.booleans())
def test_trl_trains_the_same_tokens_in_no_more_rows(steps: list[dict[str, Any]], only_trainable: bool) -> None:
    graph = play(steps).graph
    ours = rows_of(graph)
    theirs = rows_by_trl(trace_dict(graph, only_trainable=only_trainable)[0]["turns"])
    assert len(theirs) <= len(ours)
    expected = [
        (token, logprob)
        for row in ours
        for token, mask, logprob in zip(row.response_ids, row.loss_mask, row.response_logprobs, strict=True)
        if mask
    ]
    assert trained(theirs) == sorted(expected)


def test_interleaved_agents_come_out_as_chains() -> None:
    graph = Talk().play("A1 B1 A2 B2 A3")
    entries = trace_dict(graph)[0]["turns"]
    assert [entry["metadata"]["turn"] for entry in entries] == [1, 3, 0, 2, 4]
    assert [entry["metadata"]["chain"] for entry in entries] == [1, 1, 0, 0, 0]
    assert len(rows_by_trl(entries)) == 2
    by_arrival = sorted(entries, key=lambda entry: entry["metadata"]["turn"])
    assert len(rows_by_trl(by_arrival)) == 5
    assert trained(rows_by_trl(by_arrival)) == trained(rows_by_trl(entries))


def test_an_undelivered_twin_costs_no_row() -> None:
    talk = Talk()
    talk.say("A")
    talk.say("A", delivered=False, then=False)
    talk.say("A")
    talk.say("A")
    trace, findings = trace_dict(talk.graph)
    assert findings == []
    assert [entry["metadata"]["turn"] for entry in trace["turns"]] == [0, 2, 3, 1]
    assert trace["turns"][-1]["metadata"]["untrained"] == "undelivered"
    assert sum(trace["turns"][-1]["loss_mask"]) == 0
    assert len(rows_by_trl(trace["turns"])) == 1
    kept, _ = trace_dict(talk.graph, only_trainable=True)
    assert [entry["metadata"]["turn"] for entry in kept["turns"]] == [0, 2, 3]


def test_main_chain_is_the_one_with_most_trained_turns() -> None:
    """Neither the oldest root (a title call) nor the oldest branch."""
    talk = Talk()
    talk.play("T A")
    talk.talks["B"] = list(talk.talks["A"])
    graph = talk.play("A B B")
    chains = chains_of(graph, trained_turns(graph, None))
    assert [[turn.id for turn in chain.turns] for chain in chains] == [[1, 3, 4], [1, 2], [0]]
    assert [chain.shared for chain in chains] == [0, 1, 0]
    assert [entry["metadata"]["turn"] for entry in trace_dict(graph)[0]["turns"]] == [0, 1, 3, 4, 2]


def test_a_side_chain_continues_past_its_undelivered_twin() -> None:
    talk = Talk()
    talk.play("A A A S")
    talk.say("S", delivered=False, then=False)
    talk.say("S")
    entries = trace_dict(talk.graph)[0]["turns"]
    assert [entry["metadata"]["turn"] for entry in entries] == [3, 5, 4, 0, 1, 2]
    assert len(rows_by_trl(entries)) == 2


def test_fork_is_one_row_more_and_keeps_its_reason() -> None:
    talk = Talk()
    talk.say("A")
    talk.talks["B"] = list(talk.talks["A"])
    talk.play("A A B")
    entries = trace_dict(talk.graph)[0]["turns"]
    assert [entry["metadata"]["turn"] for entry in entries] == [0, 1, 2, 3]
    assert entries[3]["metadata"]["fork_reason"] == "same_prompt"
    assert entries[3]["metadata"]["parent"] == node_id(talk.graph, 0)
    rows = rows_by_trl(entries)
    assert [sum(mask for _, mask, _ in row) for row in rows] == [1 + 2 + 3, 4]


def test_messages_are_the_conversation() -> None:
    graph = Talk().play("A A")
    entry = trace_dict(graph)[0]["turns"][1]
    assert entry["request"] == {
        "messages": [
            {"role": "system", "content": "you are A"},
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "answer 0"},
            {"role": "user", "content": "result 0"},
        ],
        "tools": [],
    }
    message = {"role": "assistant", "content": "answer 1"}
    assert entry["response"] == {"choices": [{"message": message, "finish_reason": "stop"}]}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "logprob_count": ({"logprobs": pack_logprobs([])}, "masked"),
    "logprob_not_finite": ({"logprobs": pack_logprobs([np.nan, -1.0])}, "masked"),
    "logprob_positive": ({"logprobs": pack_logprobs([0.5, -1.0])}, "masked"),
    "empty_sample": ({"sampled_ids": pack_ids([]), "logprobs": pack_logprobs([])}, "masked"),
    "prompt_mismatch": ({"prompt_sha256": b"x" * 32}, "masked"),
    "prompt_length": ({"prompt_len": 1}, "masked"),
    "token_out_of_range": ({"sampled_ids": pack_ids([-1, 5])}, "left_out"),
}


@pytest.mark.parametrize("code", FAULTS)
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=needs_openenv)])
def test_a_faulty_turn_never_raises_and_is_named(code: str, strict: bool) -> None:
    changes, effect = FAULTS[code]
    talk = Talk()
    talk.say("B")
    talk.say("A", **changes)
    talk.say("B")
    if strict:
        model, findings = training_trace(talk.graph)
        trace = model.model_dump()
    else:
        trace, findings = trace_dict(talk.graph)
    assert [(finding.code, finding.turn, finding.effect) for finding in findings] == [(code, 1, effect)]
    by_turn = {entry["metadata"]["turn"]: entry for entry in trace["turns"]}
    assert (1 in by_turn) == (effect == "masked")
    if effect == "masked":
        assert sum(by_turn[1]["loss_mask"]) == 0
        assert by_turn[1]["metadata"]["untrained"]
        assert all(np.isfinite(value) and value <= 0 for value in by_turn[1]["per_token_logps"])
    assert sum(by_turn[0]["loss_mask"]) and sum(by_turn[2]["loss_mask"])


def test_turns_after_one_that_is_left_out_are_left_out_too() -> None:
    talk = Talk()
    talk.say("A", sampled_ids=pack_ids([-1, 5]), logprobs=pack_logprobs([-1, -1]))
    talk.say("A")
    trace, findings = trace_dict(talk.graph)
    assert trace["turns"] == []
    assert {finding.turn for finding in findings if finding.effect == "left_out"} == {0, 1}


def test_empty_graph() -> None:
    assert trace_dict(TraceGraph("0123abcd")) == ({"schema_version": 1, "turns": []}, [])


@needs_openenv
@settings(max_examples=25, deadline=None)
@given(st.lists(step, min_size=1, max_size=12))
def test_openenv_accepts_it_strictly(steps: list[dict[str, Any]]) -> None:
    from openenv.core.harness.training import TrainingTrace

    graph = play(steps).graph
    plain, _ = trace_dict(graph)
    model, findings = training_trace(graph)
    assert findings == []
    assert model.model_dump() == plain
    assert TrainingTrace.model_validate_json(json.dumps(plain)) == model
    assert TrainingTrace.from_entries(model.to_trace_entries()) == model


@needs_openenv
def test_what_openenv_refuses_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of OpenEnv's that we do not know must not stop TRL's worker."""
    from openenv.core.harness.capture import validate

    first = 7  # two messages of three tokens, and the one that opens the answer

    def no_long_prompts(prompt: list[int], *rest: Any) -> None:
        if len(prompt) > first:
            raise ValueError("too long")

    monkeypatch.setattr(validate, "validate_training_turn", no_long_prompts)
    model, findings = training_trace(Talk().play("A A"))
    assert [turn.metadata["turn"] for turn in model.turns] == [0]
    assert [(f.code, f.turn, f.effect) for f in findings] == [("refused_by_openenv", 1, "left_out")]


@settings(max_examples=60, deadline=None)
@given(st.lists(step, min_size=1, max_size=20))
def test_chains_cover_every_turn_once(steps: list[dict[str, Any]]) -> None:
    graph = play(steps).graph
    trained_ids = trained_turns(graph, rows_of(graph))
    chains = chains_of(graph, trained_ids)
    owned = [turn.id for chain in chains for turn in chain.own]
    assert sorted(owned) == [turn.id for turn in graph]
    for chain in chains:
        assert list(chain.turns) == graph.path(chain.turns[-1])
    counts = [sum(turn.id in trained_ids for turn in chain.turns) for chain in chains]
    assert counts[0] == max(counts)
    assert sorted(turn.id for _, turn in branch_order(graph, trained_ids)) == sorted(owned)
    kept = chains_of(graph, trained_ids, only_trainable=True)
    assert {turn.id for chain in kept for turn in chain.own} >= trained_ids
    assert all(chain.own[-1].id in trained_ids for chain in kept)


def test_the_rows_decide_what_is_trained() -> None:
    graph = Talk().play("A B")
    (only_a, _) = rows_of(graph)
    trace, _ = trace_dict(graph, [only_a])
    reasons = {entry["metadata"]["turn"]: entry["metadata"]["untrained"] for entry in trace["turns"]}
    assert reasons == {0: "", 1: "not_selected"}
    assert sum(sum(entry["loss_mask"]) for entry in trace["turns"]) == len(graph[0].sampled_ids)


def test_missing_openenv_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openenv.core.harness.training", None)
    monkeypatch.setitem(sys.modules, "openenv", None)
    with pytest.raises(MissingDependency, match=r"drivetrain\[openenv\]"):
        training_trace(TraceGraph("0123abcd"))
