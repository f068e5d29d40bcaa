"""Root-to-leaf chains of a turn graph in the order in which exports write them."""

from __future__ import annotations

import msgspec

from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.turn import Turn


class Chain(msgspec.Struct, frozen=True):
    """One conversation, root first. The first ``shared`` turns are in an earlier chain as well."""

    turns: tuple[Turn, ...]
    shared: int

    @property
    def own(self) -> tuple[Turn, ...]:
        """The turns that no earlier chain holds."""
        return self.turns[self.shared :]


def chains_of(graph: TraceGraph, trained: frozenset[int], *, only_trainable: bool = False) -> list[Chain]:
    """Every chain: the main one first, then branch by branch, parents before children.

    ``trained`` are the ids of the trained turns. The main chain is the one with the most of them (then the longest,
    then the oldest). Of the other branches, those with something to train come before those without, older before
    younger. With ``only_trainable`` a chain ends with its last trained turn, and a chain that adds none is left out.
    """
    seen: set[int] = set()
    chains: list[Chain] = []
    for path in _paths(graph, trained):
        kept = _through_last_trained(path, trained - seen) if only_trainable else path
        shared = sum(turn.id in seen for turn in kept)
        if shared < len(kept):
            chains.append(Chain(tuple(kept), shared))
            seen |= {turn.id for turn in kept}
    return chains


def branch_order(graph: TraceGraph, trained: frozenset[int]) -> list[tuple[int, Turn]]:
    """Each turn once, with the index of the first chain (of :func:`chains_of`) that holds it.

    Parents come before children and each branch is in one piece, so that a reader which only ever extends its last row
    builds one row per chain (trl.md section 5.3: two interleaved agents listed by arrival fall into five rows). The
    tree of the main chain comes last because TRL takes the last turn listed for the rollout's completion.
    """
    chains = list(enumerate(chains_of(graph, trained)))
    if not chains:
        return []
    main = chains[0][1].turns[0].id
    chains.sort(key=lambda item: item[1].turns[0].id == main)
    return [(index, turn) for index, chain in chains for turn in chain.own]


def _paths(graph: TraceGraph, trained: frozenset[int]) -> list[list[Turn]]:
    on_main = _main_path(graph, trained)
    useful = set(trained)
    for turn in reversed(list(graph)):  # children are committed after their parents
        if turn.id in useful and turn.parent is not None:
            useful.add(turn.parent)

    def last_first(turns: list[Turn]) -> list[Turn]:
        return sorted(turns, key=lambda turn: (turn.id not in on_main, turn.id not in useful, turn.id), reverse=True)

    paths: list[list[Turn]] = []
    stack = [[root] for root in last_first(graph.children(None))]
    while stack:
        path = stack.pop()
        children = graph.children(path[-1].id)
        if not children:
            paths.append(path)
        stack += [[*path, child] for child in last_first(children)]
    return paths


def _main_path(graph: TraceGraph, trained: frozenset[int]) -> set[int]:
    """Turn ids of the main chain, counted without walking every path."""
    score: dict[int, tuple[int, int]] = {}
    for turn in graph:
        above = score[turn.parent] if turn.parent is not None else (0, 0)
        score[turn.id] = (above[0] + (turn.id in trained), above[1] + 1)
    leaves = [turn for turn in graph if not graph.children(turn.id)]
    if not leaves:
        return set()
    best = max(leaves, key=lambda turn: (*score[turn.id], -turn.id))
    return {turn.id for turn in graph.path(best)}


def _through_last_trained(path: list[Turn], trained: frozenset[int]) -> list[Turn]:
    last = max((index for index, turn in enumerate(path) if turn.id in trained), default=-1)
    return path[: last + 1]
