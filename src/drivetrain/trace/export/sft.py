"""Conversations for supervised fine-tuning: one JSON line per chain, columns ``messages`` and ``tools`` (TRL SFT)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from drivetrain.trace.export.chains import Chain, chains_of
from drivetrain.trace.export.info import RolloutInfo
from drivetrain.trace.export.openai import conversation, message_dict, tool_dict
from drivetrain.trace.export.selection import trained_turns
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.sample import HarnessTrace


def sft_lines(
    graph: TraceGraph,
    info: RolloutInfo,
    rows: Sequence[HarnessTrace] | None = None,
    *,
    only_trainable: bool = False,
) -> list[dict[str, Any]]:
    """One record per chain, main chain first.

    ``messages`` are OpenAI messages with ``tool_calls`` (arguments as JSON text) and tool results; ``tools`` is JSON
    text of the tool list, which TRL decodes: Arrow would merge the parameter schemas of different tools and fill them
    with nulls. ``reward`` is None for an ungraded rollout. Every key of ``metadata`` has one type in all lines;
    ``metadata["shared_messages"]`` counts the leading messages that an earlier line of the rollout holds already.
    """
    trained = trained_turns(graph, rows)
    chains = chains_of(graph, trained, only_trainable=only_trainable)
    return [_line(graph, chain, index, info, trained) for index, chain in enumerate(chains)]


def _line(graph: TraceGraph, chain: Chain, index: int, info: RolloutInfo, trained: frozenset[int]) -> dict[str, Any]:
    turns = chain.turns
    tools = [tool_dict(tool) for tool in graph.tools_of(turns[0])]
    return {
        "messages": [message_dict(message) for message, _, _ in conversation(graph, turns)],
        "tools": msgspec.json.encode(tools).decode(),
        "reward": info.reward,
        "metadata": {
            "rollout_id": info.rollout_id,
            "session_id": info.session_id,
            "task_id": info.task_id,
            "agent": info.agent,
            "group": info.group,
            "status": info.status,
            "chain": index,
            "turns": [turn.id for turn in turns],
            "trained_turns": [turn.id for turn in chain.own if turn.id in trained],
            "shared_messages": sum(1 for _ in conversation(graph, turns[: chain.shared])),
            "fork_reason": chain.own[0].fork_reason,
            "label": chain.own[-1].label,
            "model": turns[-1].reply.model,
        },
    }
