"""Which stored chain is a fork nearest to? An index over beginnings, so that long sessions stay cheap to explain."""

from __future__ import annotations

from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.keys import Key, extend
from drivetrain.trace.turn import Turn

_NOTHING: Key = b""


class Nearest:
    """Chains of a graph, added turn by turn in commit order; whatever tools they had.

    Args:
        graph: the session.
    """

    def __init__(self, graph: TraceGraph) -> None:
        self._graph = graph
        self._holders: dict[Key, list[Turn]] = {}
        self._end: dict[int, Key] = {}
        self._child: dict[int, Turn] = {}

    def add(self, turn: Turn) -> None:
        """Make a turn's request and reply findable."""
        plain = turn.parent is not None and turn.base is None
        keys = [*turn.tail_keys, turn.reply_key] if plain else [key for key, _ in self._graph.stored_messages(turn)]
        chain = self._end[turn.parent] if plain and turn.parent is not None else _NOTHING
        for key in keys:
            self._holders.setdefault(chain, []).append(turn)
            chain = extend(chain, key)
        self._holders.setdefault(chain, []).append(turn)
        self._end[turn.id] = chain
        if turn.parent is not None:
            self._child[turn.parent] = turn

    def find(self, turn: Turn) -> Turn:
        """Last turn of the chain, of those added, that shares the longest beginning with a turn's request.

        Of several, one with the same tools, then the latest.
        """
        keys = [key for key, _ in self._graph.stored_messages(turn)][:-1]
        chains = [_NOTHING]
        for key in keys:
            chains.append(extend(chains[-1], key))
        holders = next(self._holders[chain] for chain in reversed(chains) if chain in self._holders)
        tools = self._graph.tools_of(turn)
        ends = [(self._graph.tools_of(holder) == tools, self._last(holder).id) for holder in holders]
        return self._graph[max(ends)[1]]

    def _last(self, turn: Turn) -> Turn:
        while (child := self._child.get(turn.id)) is not None:
            turn = child
        return turn
