"""Store a prompt once: what a fork shares with a stored prompt is named, not copied.

Harnesses that put a reminder at the end of each prompt, blank old tool results or write the time into the system text
fork in every turn. Each prompt would be stored whole, O(history) per turn; with a base it is O(new tokens).
"""

from __future__ import annotations

import numpy as np

from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.turn import Ids, Turn, pack_ids


def common_tokens(left: Ids, right: Ids) -> int:
    """Length of the common beginning of two id arrays."""
    size = min(len(left), len(right))
    differing = np.flatnonzero(left[:size] != right[:size])
    return int(differing[0]) if len(differing) else size


def _below(graph: TraceGraph, turn: Turn, parent: Turn) -> bool:
    """Whether a turn's chain goes through ``parent``, so that its prompt begins with all that ``parent`` holds."""
    return turn.id != parent.id and any(node.id == parent.id for node in graph.path(turn))


def share_prompt(graph: TraceGraph, turn: Turn) -> None:
    """Give a turn that is about to be added a base, if a stored prompt begins like its own.

    The prompt, the request and the tools that are rebuilt from the turn stay the same; the turn then holds what is
    behind the shared beginning. Only the few turns that share most messages are compared, and none for a turn that
    simply extends a chain.
    """
    if turn.base is not None or (turn.parent is not None and not graph.children(turn.parent)):
        return
    parent = None if turn.parent is None else graph[turn.parent]
    tools = turn.tools or () if parent is None else graph.tools_of(parent)
    above = [] if parent is None else [key for key, _ in graph.stored_messages(parent)]
    keys = [*above, *turn.tail_keys]
    before = graph.start(turn)
    prompt = turn.delta_ids if parent is None else np.concatenate([graph.ids_through(parent), turn.delta_ids])
    best: Turn | None = None
    keep = before
    for other in graph.alike(tools, keys)[0]:
        if parent is not None and not _below(graph, other, parent):
            continue
        common = common_tokens(graph.prompt_ids(other), prompt)
        if common > keep:
            best, keep = other, common
    if best is None:
        return
    held = [key for key, _ in graph.stored_messages(best)][:-1]
    shared = next((i for i, (a, b) in enumerate(zip(held, keys, strict=False)) if a != b), min(len(held), len(keys)))
    own = shared - len(above)
    turn.base, turn.keep, turn.keep_messages = best.id, keep, shared
    turn.delta_ids = pack_ids(prompt[keep:].copy())
    turn.tail_keys, turn.messages = turn.tail_keys[own:], turn.messages[own:]
    if turn.tools == graph.tools_of(best):
        turn.tools = None
