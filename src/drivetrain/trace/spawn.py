"""Which call started a sub-agent? Evidence for it, weighed (harnesses.md section 7)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from drivetrain.trace.conversation import Conversation, argument_texts, quoted_in
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.turn import Turn

SPAWNING_TOOLS = frozenset({"agent", "task", "invoke_agent", "spawn_agent"})
"""Claude ``Agent``, OpenCode ``task``, Qwen ``agent``, Gemini ``invoke_agent``, Codex and Cline ``spawn_agent``."""


class Spawn(msgspec.Struct, frozen=True, order=True):
    """Evidence that ``call`` started a conversation, strongest field first.

    ``quoted``: its arguments hold a user message of that conversation. ``named``: it calls a tool known to start
    agents. ``awaited``: its result came in after that conversation had begun.
    """

    quoted: bool
    named: bool
    awaited: bool
    call: int

    @property
    def reason(self) -> str:
        """The strongest evidence, in words."""
        if self.quoted:
            return f"turn {self.call} called a tool with this conversation's first message"
        if self.named:
            return f"turn {self.call} called a tool that starts agents"
        return f"began while a tool call of turn {self.call} was running"


def find_spawn(
    graph: TraceGraph, child: Conversation, parents: Sequence[Conversation], answered: dict[str, float]
) -> Spawn | None:
    """Best evidence among the calls of earlier conversations; None when there is none.

    Args:
        graph: the session.
        child: a conversation that re-sends no history.
        parents: earlier conversations with tools, the most likely parents first.
        answered: see :func:`answer_times`.
    """
    best: Spawn | None = None
    for parent in parents:
        for turn in parent.turns:
            found = _evidence(graph, child, parent, turn, answered)
            if found is not None and (best is None or _weight(found) > _weight(best)):
                best = found
    return best


def answer_times(graph: TraceGraph) -> dict[str, float]:
    """When the result of each tool call first came in, by call id: seconds since the epoch."""
    times: dict[str, float] = {}
    for turn in graph:
        for message in turn.messages:
            if message.role == "tool" and message.tool_call_id:
                times[message.tool_call_id] = min(turn.started_at, times.get(message.tool_call_id, turn.started_at))
    return times


def _weight(spawn: Spawn) -> tuple[bool, bool, bool]:
    return spawn.quoted, spawn.named, spawn.awaited


def _evidence(
    graph: TraceGraph, child: Conversation, parent: Conversation, turn: Turn, answered: dict[str, float]
) -> Spawn | None:
    start = child.root.started_at
    if not turn.reply.tool_calls or turn.completed_at > start:
        return None
    quoted = any(quoted_in(text, *child.users) for text in argument_texts(turn))
    if child.asks_like(parent) and not quoted:
        return None  # the same task again: another system prompt or another sample, no helper
    named = any(_base(call.name) in SPAWNING_TOOLS for call in turn.reply.tool_calls)
    times = [answered[call.id] for call in turn.reply.tool_calls if call.id in answered]
    times += [follower.started_at for follower in graph.children(turn.id)]
    awaited = bool(times) and min(times) >= start
    pending = awaited or not times
    if quoted or (named and pending) or awaited:
        return Spawn(quoted, named, awaited, turn.id)
    return None


def _base(name: str) -> str:
    """Tool name without its namespace: ``multi_agent_v1/spawn_agent`` -> ``spawn_agent``."""
    return name.replace("__", "/").replace(".", "/").rsplit("/", 1)[-1].lower()
