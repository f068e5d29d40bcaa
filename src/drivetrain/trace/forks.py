"""How a request joins the graph, and why it does not simply extend a chain (design invariant 2)."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.messages import Message, ToolSpec
from drivetrain.trace.graph import Match, TraceGraph
from drivetrain.trace.keys import Key
from drivetrain.trace.turn import ForkReason, Link, Turn


def link_of(
    graph: TraceGraph,
    match: Match,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    *,
    rerendered: bool = False,
) -> tuple[Link, ForkReason, str]:
    """Link, reason and detail of a request that is about to join the graph; the reason is empty for a plain extension.

    Args:
        graph: the turns committed so far.
        match: where the request meets them.
        messages: the request.
        tools: its tools.
        rerendered: the template allows no continuation of ``match.parent`` for this shape.
    """
    if rerendered:
        return "fork", "template_not_append_only", "the template rewrites earlier messages for this shape"
    if not len(graph):
        return "root", "", ""
    parent = match.parent
    if parent is not None and all(message.role != "assistant" for message in match.tail):
        children = graph.children(parent.id)
        if not children:
            return "linear", "", ""
        twin = any(child.prompt_chain == match.chain for child in children)
        return "fork", ("same_prompt" if twin else "branch"), f"turn {parent.id} was continued before"
    if graph.same_prompt(match.chain):
        return "fork", "same_prompt", "the same messages were sent before"
    if not graph.knows_tools(tools):
        return "new_root", "tools_changed", "the tool list differs from every stored one"
    keys = canonical_keys(graph, match)
    nearest, shared = graph.nearest(tools, keys)
    if nearest is None or shared == 0:
        if messages[0].role in ("system", "developer"):
            return "new_root", "system_changed", "message 0 differs"
        return "new_root", "new_conversation", "no stored message is shared"
    if parent is None and _begins_anew(messages, shared):
        return "new_root", "new_conversation", "only the system text is shared"
    return "fork", *_difference(_chain_of(graph, nearest), keys, messages, shared)


def canonical_keys(graph: TraceGraph, match: Match) -> list[Key]:
    """Keys of a request's messages; where they were recognised as ours, those of what was served."""
    known = [key for key, _ in graph.stored_messages(match.parent)] if match.parent is not None else []
    return [*known, *match.tail_keys]


def _begins_anew(messages: Sequence[Message], shared: int) -> bool:
    """A sub-agent, a side call, a compacted history: the same instructions, another conversation."""
    told = all(message.role in ("system", "developer") for message in messages[:shared])
    return told and all(message.role != "assistant" for message in messages)


def _chain_of(graph: TraceGraph, turn: Turn) -> list[tuple[Key, bool]]:
    """Messages of the newest chain that goes through a turn."""
    while children := graph.children(turn.id):
        turn = children[-1]
    return graph.stored_messages(turn)


def _difference(
    stored: Sequence[tuple[Key, bool]], keys: Sequence[Key], messages: Sequence[Message], shared: int
) -> tuple[ForkReason, str]:
    """Compare a request with the stored chain that shares its first ``shared`` messages."""
    if shared == len(keys):
        return "message_removed", f"the request ends after message {shared - 1} of a stored conversation"
    role = messages[shared].role
    if shared == len(stored):
        foreign = next((i for i in range(shared, len(messages)) if messages[i].role == "assistant"), shared)
        return "assistant_rewritten", f"message {foreign} ({messages[foreign].role}) was not served here"
    if stored[shared][1]:
        if role == "assistant":
            return "assistant_rewritten", f"message {shared} is not what was served"
        return "assistant_removed", f"the served reply at message {shared} is missing"
    if keys[shared] in [key for key, _ in stored[shared + 1 :]]:
        return "message_removed", f"stored message {shared} is missing"
    return "message_changed", f"message {shared} ({role}) differs"
