"""Conversations of a session: a root of the turn graph, its turns, and what its first request looked like."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from drivetrain.messages import Message
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.turn import Turn

MIN_QUOTE = 8
"""Shorter texts turn up by chance and prove nothing."""


class Conversation(msgspec.Struct, kw_only=True, frozen=True):
    """A turn without a parent and every turn below it, in commit order.

    ``opening`` is the root's whole request. ``system`` joins its system texts and ``users`` are its user texts before
    the first assistant or tool message. ``history`` is whether it re-sends earlier turns. That a root shares a stored
    beginning with another conversation (``Turn.base``) says nothing about what it is for.
    """

    root: Turn
    turns: tuple[Turn, ...]
    opening: tuple[Message, ...]
    system: str
    users: tuple[str, ...]
    tools: frozenset[str]
    history: bool

    @property
    def has_tools(self) -> bool:
        """Whether the model was offered any tool."""
        return bool(self.tools) or self.root.n_tools > 0

    def asks_like(self, other: Conversation) -> bool:
        """Same user messages at the beginning (other system text or tools do not matter)."""
        return self.users == other.users


def conversations_of(graph: TraceGraph) -> list[Conversation]:
    """Conversations by the time they began."""
    root_of: dict[int, int] = {}
    turns: dict[int, list[Turn]] = {}
    for turn in graph:
        root = turn.id if turn.parent is None else root_of[turn.parent]
        root_of[turn.id] = root
        turns.setdefault(root, []).append(turn)
    found = [_conversation(graph, graph[root], members) for root, members in turns.items()]
    return sorted(found, key=lambda conversation: (conversation.root.started_at, conversation.root.id))


def _conversation(graph: TraceGraph, root: Turn, turns: Sequence[Turn]) -> Conversation:
    request = graph.request(root)
    asked = list(takewhile(lambda message: message.role not in ("assistant", "tool"), request))
    return Conversation(
        root=root,
        turns=tuple(turns),
        opening=tuple(request),
        system="\n".join(m.content for m in asked if m.role in ("system", "developer")),
        users=tuple(plain(m.content) for m in asked if m.role == "user"),
        tools=frozenset(tool.name for tool in graph.tools_of(root)),
        history=len(asked) < len(request),
    )


def request_of(graph: TraceGraph, turn: Turn) -> list[Message]:
    """All messages of a turn's request; assistant messages of ours as they were served."""
    return graph.request(turn)


def plain(text: str) -> str:
    """Text with its white space evened out, as quotes are compared."""
    return " ".join(text.split())


def quoted_in(needle: str, *texts: str) -> bool:
    """Whether a text of at least :data:`MIN_QUOTE` characters stands verbatim in another (both :func:`plain`)."""
    return len(needle) >= MIN_QUOTE and any(needle in text for text in texts)


def argument_texts(turn: Turn) -> Iterator[str]:
    """Every string inside the arguments of a turn's tool calls, evened out."""
    for call in turn.reply.tool_calls:
        try:
            yield from _strings(json.loads(call.arguments))
        except (ValueError, RecursionError):
            yield plain(call.arguments)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield plain(value)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
