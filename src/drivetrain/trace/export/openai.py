"""Messages and tools as OpenAI chat completions write them: what OpenEnv and SFT files hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from drivetrain.messages import Message, ToolSpec
from drivetrain.trace.graph import TraceGraph, reply_message
from drivetrain.trace.turn import Turn


def message_dict(message: Message) -> dict[str, Any]:
    """One message; absent parts are left out, tool-call arguments stay JSON text as sampled."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    if message.name:
        out["name"] = message.name
    return out


def tool_dict(tool: ToolSpec) -> dict[str, Any]:
    """One tool definition."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def conversation(graph: TraceGraph, turns: Sequence[Turn]) -> Iterator[tuple[Message, Turn, bool]]:
    """Messages along a chain: ``(message, turn, served)``; ``served`` marks the reply that ``turn`` sampled.

    Replies are the served ones: what the model reads again as tokens, whatever the harness made of them since.
    """
    for turn in turns:
        for message in graph.new_messages(turn):
            yield message, turn, False
        yield reply_message(turn), turn, True
