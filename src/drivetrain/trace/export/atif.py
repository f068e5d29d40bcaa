"""ATIF, the Agent Trajectory Interchange Format of Harbor (RFC 0001), version 1.7.

Checked against ``harbor.models.trajectories`` of harbor 0.26. Rules that shape this file: ``step_id`` counts from 1;
only agent steps have ``tool_calls``, ``reasoning_content``, ``metrics`` and ``model_name``; an observation's
``source_call_id`` names a call of the *same* step; steps taken over from another trajectory are ``is_copied_context``
and are not to be trained again; no other keys are allowed than the specified ones, and ``extra``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from drivetrain.messages import Message, ToolCall
from drivetrain.trace.export.chains import Chain, chains_of
from drivetrain.trace.export.info import RolloutInfo
from drivetrain.trace.export.openai import conversation, tool_dict
from drivetrain.trace.export.selection import trained_turns, why_untrained
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.provenance import session_provenance, turn_provenance
from drivetrain.trace.sample import HarnessTrace
from drivetrain.trace.turn import Turn

SCHEMA_VERSION = "ATIF-v1.7"

Step = dict[str, Any]


def trajectories(
    graph: TraceGraph,
    info: RolloutInfo,
    rows: Sequence[HarnessTrace] | None = None,
    *,
    only_trainable: bool = False,
) -> list[dict[str, Any]]:
    """One trajectory per chain, main chain first.

    What a chain shares with an earlier one is copied context: its steps are there, their metrics are not, so that sums
    over the trajectories of a rollout count every call once.
    """
    trained = trained_turns(graph, rows)
    chains = chains_of(graph, trained, only_trainable=only_trainable)
    return [_trajectory(graph, chain, index, info, trained) for index, chain in enumerate(chains)]


def _trajectory(
    graph: TraceGraph, chain: Chain, index: int, info: RolloutInfo, trained: frozenset[int]
) -> dict[str, Any]:
    steps = _steps(graph, chain, trained)
    run = info.session_id or info.rollout_id
    agent: dict[str, Any] = {
        "name": info.agent or "unknown",
        "version": info.agent_version,
        "model_name": chain.turns[-1].reply.model,
    }
    if tools := graph.tools_of(chain.turns[0]):
        agent["tool_definitions"] = [tool_dict(tool) for tool in tools]
    first = chain.own[0]
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": run,
        "trajectory_id": f"{run}-{index}",
        "agent": agent,
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(turn.prompt_len for turn in chain.own),
            "total_completion_tokens": sum(len(turn.sampled_ids) for turn in chain.own),
            "total_steps": len(steps),
            "extra": {"reward": info.reward, "status": info.status},
        },
        "extra": {
            "rollout_id": info.rollout_id,
            "task_id": info.task_id,
            "group": info.group,
            "chain": index,
            "parent_turn": first.parent,
            "fork_reason": first.fork_reason,
            "fork_detail": first.fork_detail,
            "provenance": session_provenance(info.provenance, chain.turns),
        },
    }


def _steps(graph: TraceGraph, chain: Chain, trained: frozenset[int]) -> list[Step]:
    copied = {turn.id for turn in chain.turns[: chain.shared]}
    steps: list[Step] = []
    for message, turn, served in conversation(graph, chain.turns):
        if message.role == "tool" and _observe(steps, message):
            continue
        step = _step(message, turn, served)
        if turn.id in copied:
            step["is_copied_context"] = True
        elif served:
            step["metrics"] = _metrics(graph, turn, trained)
        steps.append({"step_id": len(steps) + 1, **step})
    return steps


def _step(message: Message, turn: Turn, served: bool) -> Step:
    step: Step = {"timestamp": _iso(turn.completed_at if served else turn.started_at)}
    if message.role != "assistant":
        source = "user" if message.role == "user" else "system"
        return {**step, "source": source, "message": message.content, "extra": {"role": message.role}}
    step |= {"source": "agent", "message": message.content}
    if message.reasoning:
        step["reasoning_content"] = message.reasoning
    if message.tool_calls:
        step["tool_calls"] = [_call(call) for call in message.tool_calls]
    if not served:
        return {**step, "extra": {"served": False}}  # the harness put it there; no call of this session said it
    extra = {"turn": turn.id, "link": turn.link, "label": turn.label, "finish_reason": turn.finish_reason}
    return {**step, "model_name": turn.reply.model, "llm_call_count": 1, "extra": extra}


def _call(call: ToolCall) -> dict[str, Any]:
    """ATIF wants an object; arguments that are none stay readable beside an empty one."""
    out: dict[str, Any] = {"tool_call_id": call.id, "function_name": call.name}
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        return {**out, "arguments": arguments}
    return {**out, "arguments": {}, "extra": {"arguments_text": call.arguments}}


def _observe(steps: list[Step], message: Message) -> bool:
    """Put a tool result where its call is; an unknown call's goes to the newest agent step, without a reference."""
    agents = [step for step in reversed(steps) if step["source"] == "agent"]
    for step in agents:
        if any(call["tool_call_id"] == message.tool_call_id for call in step.get("tool_calls", ())):
            result = {"source_call_id": message.tool_call_id, "content": message.content}
            step.setdefault("observation", {"results": []})["results"].append(result)
            return True
    if agents:
        stray = {"content": message.content, "extra": {"tool_call_id": message.tool_call_id}}
        agents[0].setdefault("observation", {"results": []})["results"].append(stray)
    return bool(agents)


def _metrics(graph: TraceGraph, turn: Turn, trained: frozenset[int]) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "prompt_tokens": turn.prompt_len,
        "completion_tokens": len(turn.sampled_ids),
        "prompt_token_ids": graph.prompt_ids(turn).tolist(),
        "completion_token_ids": turn.sampled_ids.tolist(),
        "extra": {"untrained": why_untrained(turn, trained), **turn_provenance(turn)},
    }
    if len(turn.logprobs) == len(turn.sampled_ids) and np.all(np.isfinite(turn.logprobs)):
        metrics["logprobs"] = turn.logprobs.tolist()
    return metrics


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
