"""SFT lines and ATIF trajectories: their exact structure for one session with tools, a fork and a stray result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.messages import Message, ToolCall, ToolSpec
from drivetrain.trace.export.atif import trajectories
from drivetrain.trace.export.info import RolloutInfo
from drivetrain.trace.export.sft import sft_lines
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.provenance import turn_provenance
from drivetrain.trace.sample import rows_of
from drivetrain.trace.turn import pack_logprobs
from tests.trace.test_graph_properties import Harness, play, step

INFO = RolloutInfo(
    rollout_id="t.pi.0", session_id="s-1", task_id="t", agent="pi", agent_version="1.6.0", status="ok", reward=1.0
)
BASH = ToolSpec("bash", "Run a command.", {"type": "object", "properties": {"command": {"type": "string"}}})


def session(calls: tuple[ToolCall, ...] = (ToolCall("c0", "bash", '{"command": "ls"}'),)) -> TraceGraph:
    """Turn 0 calls a tool, turn 1 reads its result, turn 2 is a second continuation of turn 0."""
    harness = Harness()
    history = [Message("system", "be brief"), Message("user", "list files")]

    def ask(messages: list[Message], parent: int) -> None:
        tail = tuple(messages[parent:])
        harness.ask(messages, delivered=True, label="agent", tools=(BASH,)).messages = tail

    ask(history, 0)
    graph = harness.graph
    graph[0].reply = msgspec.structs.replace(
        graph[0].reply, content="", reasoning="I look.", tool_calls=calls, finish_reason="tool_calls"
    )
    graph[0].finish_reason = "tool_calls"
    history.append(Message("assistant", "answer 0"))  # how the harness sends turn 0's reply is not what is exported
    result = Message("tool", "a.py", tool_call_id="c0")
    ask([*history, result], 3)
    ask([*history, Message("tool", "none", tool_call_id="c9"), Message("user", "again")], 3)
    return graph


TURN_0 = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "I look.",
    "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}],
}
OPENING = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "list files"}]


def test_sft_golden() -> None:
    graph = session()
    first, second = sft_lines(graph, INFO)
    assert first["messages"] == [
        *OPENING,
        TURN_0,
        {"role": "tool", "content": "a.py", "tool_call_id": "c0"},
        {"role": "assistant", "content": "answer 1"},
    ]
    function = {"name": "bash", "description": "Run a command.", "parameters": BASH.parameters}
    assert json.loads(first["tools"]) == [{"type": "function", "function": function}]
    assert first["reward"] == 1.0
    assert first["metadata"] == {
        "rollout_id": "t.pi.0",
        "session_id": "s-1",
        "task_id": "t",
        "agent": "pi",
        "group": 0,
        "status": "ok",
        "chain": 0,
        "turns": [0, 1],
        "trained_turns": [0, 1],
        "shared_messages": 0,
        "fork_reason": "",
        "label": "agent",
        "model": "m",
    }
    assert second["messages"][:3] == [*OPENING, TURN_0]
    assert second["metadata"]["shared_messages"] == 3
    assert second["metadata"]["trained_turns"] == [2]
    assert second["metadata"]["fork_reason"] == "branch"


def test_sft_only_trainable_ends_with_the_last_trained_turn() -> None:
    graph = session()
    graph[2].delivered = False
    (line,) = sft_lines(graph, INFO, only_trainable=True)
    assert line["metadata"]["turns"] == [0, 1]
    graph[1].delivered = False
    (line,) = sft_lines(graph, INFO, only_trainable=True)
    assert line["metadata"]["turns"] == [0]
    assert line["messages"][-1]["role"] == "assistant"


def test_datasets_reads_sft(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = tmp_path / "sft.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in sft_lines(session(), INFO)))
    table = datasets.load_dataset("json", data_files=str(path), cache_dir=str(tmp_path / "cache"), split="train")
    assert table[0]["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"command": "ls"}'
    assert table[0]["messages"][3]["tool_call_id"] == "c0"
    assert isinstance(table[0]["tools"], str)


def test_atif_golden() -> None:
    graph = session()
    first, second = trajectories(graph, INFO)
    epoch = "1970-01-01T00:00:00Z"
    assert first == {
        "schema_version": "ATIF-v1.7",
        "session_id": "s-1",
        "trajectory_id": "s-1-0",
        "agent": {
            "name": "pi",
            "version": "1.6.0",
            "model_name": "m",
            "tool_definitions": json.loads(sft_lines(graph, INFO)[0]["tools"]),
        },
        "steps": [
            {"step_id": 1, "timestamp": epoch, "source": "system", "message": "be brief", "extra": {"role": "system"}},
            {"step_id": 2, "timestamp": epoch, "source": "user", "message": "list files", "extra": {"role": "user"}},
            {
                "step_id": 3,
                "timestamp": epoch,
                "source": "agent",
                "message": "",
                "reasoning_content": "I look.",
                "tool_calls": [{"tool_call_id": "c0", "function_name": "bash", "arguments": {"command": "ls"}}],
                "model_name": "m",
                "llm_call_count": 1,
                "extra": {"turn": 0, "link": "root", "label": "agent", "finish_reason": "tool_calls"},
                "metrics": metrics(graph, 0),
                "observation": {"results": [{"source_call_id": "c0", "content": "a.py"}]},
            },
            {
                "step_id": 4,
                "timestamp": epoch,
                "source": "agent",
                "message": "answer 1",
                "model_name": "m",
                "llm_call_count": 1,
                "extra": {"turn": 1, "link": "linear", "label": "agent", "finish_reason": "stop"},
                "metrics": metrics(graph, 1),
            },
        ],
        "final_metrics": {
            "total_prompt_tokens": graph[0].prompt_len + graph[1].prompt_len,
            "total_completion_tokens": len(graph[0].sampled_ids) + len(graph[1].sampled_ids),
            "total_steps": 4,
            "extra": {"reward": 1.0, "status": "ok"},
        },
        "extra": {
            "rollout_id": "t.pi.0",
            "task_id": "t",
            "group": 0,
            "chain": 0,
            "parent_turn": None,
            "fork_reason": "",
            "fork_detail": "",
            "provenance": {"records": [], "config_sha256": {}},
        },
    }
    copied = [step.get("is_copied_context", False) for step in second["steps"]]
    assert copied == [True, True, True, False, False]
    assert ["metrics" in step for step in second["steps"]] == [False, False, False, False, True]
    stray = second["steps"][2]["observation"]["results"]
    assert stray == [{"content": "none", "extra": {"tool_call_id": "c9"}}]
    assert second["extra"]["parent_turn"] == 0


def metrics(graph: TraceGraph, number: int) -> dict[str, Any]:
    turn = graph[number]
    return {
        "prompt_tokens": turn.prompt_len,
        "completion_tokens": len(turn.sampled_ids),
        "prompt_token_ids": graph.prompt_ids(turn).tolist(),
        "completion_token_ids": turn.sampled_ids.tolist(),
        "logprobs": turn.logprobs.tolist(),
        "extra": {"untrained": ""} | turn_provenance(turn),
    }


@pytest.mark.parametrize("arguments", ["{broken", '["a list"]', "null", ""])
def test_atif_keeps_arguments_that_are_no_object(arguments: str) -> None:
    (call,) = trajectories(session((ToolCall("c0", "bash", arguments),)), INFO)[0]["steps"][2]["tool_calls"]
    assert call["arguments"] == {}
    assert call["extra"] == {"arguments_text": arguments}


def test_atif_leaves_out_logprobs_that_are_none() -> None:
    graph = session()
    graph[1].logprobs = pack_logprobs([float("nan")] * len(graph[1].sampled_ids))
    steps = [step for one in trajectories(graph, INFO) for step in one["steps"] if "metrics" in step]
    assert {step["extra"]["turn"]: "logprobs" in step["metrics"] for step in steps} == {0: True, 1: False, 2: True}
    msgspec.json.encode(trajectories(graph, INFO))


@settings(max_examples=40, deadline=None)
@given(st.lists(step, min_size=1, max_size=15))
def test_each_call_is_counted_once(steps: list[dict[str, Any]]) -> None:
    """Over the trajectories of a rollout: metrics once per turn, sampled tokens add up, every row's turns are there."""
    graph = play(steps).graph
    found = trajectories(graph, INFO)
    measured = [step["extra"]["turn"] for one in found for step in one["steps"] if "metrics" in step]
    assert sorted(measured) == [turn.id for turn in graph]
    total = sum(one["final_metrics"]["total_completion_tokens"] for one in found)
    assert total == sum(len(turn.sampled_ids) for turn in graph)
    assert len({one["trajectory_id"] for one in found}) == len(found)
    for one in found:
        assert [step["step_id"] for step in one["steps"]] == list(range(1, len(one["steps"]) + 1))
    lines = sft_lines(graph, INFO)
    assert [line["metadata"]["turns"] for line in lines] == [
        [step["extra"]["turn"] for step in one["steps"] if "turn" in step["extra"]] for one in found
    ]
    trained = [turn for line in lines for turn in line["metadata"]["trained_turns"]]
    assert sorted(trained) == sorted(turn for row in rows_of(graph) for turn in row.metadata["trained_turns"])


def test_harbor_accepts_it() -> None:
    trajectory = pytest.importorskip("harbor.models.trajectories").Trajectory
    for one in trajectories(session(), INFO):
        assert trajectory.model_validate(one).to_json_dict() is not None
