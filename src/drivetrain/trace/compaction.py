"""Summaries that a harness carries on with: whose reply opens a new conversation? (harnesses.md section 7)

A reply that stands verbatim in the opening of a later conversation, and was in neither its own request nor the old
opening, was a summary; the new conversation continues the summarised one (case row C6).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from drivetrain.messages import Message
from drivetrain.trace.conversation import Conversation, plain, quoted_in, request_of
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.turn import Turn

_OPENING = 6
"""Messages that a new start is made of: 4 in OpenCode, 5 in Codex, with recent turns after them in Pi."""
_BLOCK = re.compile(r"<(\w+)>(.*?)</\1>", re.DOTALL)


class Compaction(msgspec.Struct, frozen=True):
    """``summary`` is the turn that wrote it, ``old`` and ``new`` the roots before and after."""

    summary: int
    old: int
    new: int


def find_compactions(
    graph: TraceGraph, conversations: Sequence[Conversation], spawned: frozenset[int]
) -> list[Compaction]:
    """Every compaction of a session, in order.

    Args:
        graph: the session.
        conversations: by the time they began.
        spawned: roots that a call is known to have started; they are no continuation of a conversation that goes on.
    """
    found: list[Compaction] = []
    used: set[int] = set()
    with_tools = any(conversation.has_tools for conversation in conversations)
    for new in conversations:
        if with_tools and not new.has_tools:
            continue
        for old in conversations:
            apart = with_tools and not old.has_tools
            if old is new or (new.root.id in spawned and not apart):
                continue
            for turn in old.turns:
                if turn.id in used or not _may_summarise(graph, turn, new, apart=apart):
                    continue
                source = _summarised(graph, turn, conversations, new) if apart else old
                if source is not None and _carries(graph, turn, source, new, apart=apart):
                    used.add(turn.id)
                    found.append(Compaction(turn.id, source.root.id, new.root.id))
    last = {compaction.new: compaction for compaction in found}
    return [compaction for compaction in found if last[compaction.new] is compaction]


def quotes_history(graph: TraceGraph, turn: Turn, conversations: Sequence[Conversation]) -> bool:
    """Whether a request re-tells earlier turns, as messages or as text."""
    request = request_of(graph, turn)
    if any(message.role in ("assistant", "tool") for message in request):
        return True
    told = [plain(message.content) for message in request]
    earlier = (t for c in conversations for t in c.turns if c.has_tools and t.completed_at <= turn.started_at)
    return any(quoted_in(plain(t.reply.content), *told) for t in earlier)


def _may_summarise(graph: TraceGraph, turn: Turn, new: Conversation, *, apart: bool) -> bool:
    """Cheap tests first. On the old chain itself (Claude): the last turn, asked by a user message, and it shortens."""
    if turn.reply.tool_calls or turn.completed_at > new.root.started_at:
        return False
    if apart:
        return True
    asked = graph.request(turn)[-1].role == "user"
    return asked and turn.parent is not None and not graph.children(turn.id) and new.root.prompt_len < turn.prompt_len


def _carries(graph: TraceGraph, turn: Turn, source: Conversation, new: Conversation, *, apart: bool) -> bool:
    """Whether the summary, or a tagged block of it, opens the new conversation and is new there."""
    opening = [plain(m.content) for m in new.opening[:_OPENING] if _counts(m, apart)]
    if not opening:
        return False
    known = [plain(m.content) for m in (*request_of(graph, turn), *source.opening)]
    texts = [turn.reply.content, *(match[2] for match in _BLOCK.finditer(turn.reply.content))]
    return any(quoted_in(text, *opening) and not quoted_in(text, *known) for text in map(plain, texts))


def _counts(message: Message, apart: bool) -> bool:
    """A summary comes back as instruction or, from a call of its own, as the agent's words; never as tool output."""
    return message.role in ("system", "developer", "user") or (apart and message.role == "assistant")


def _summarised(
    graph: TraceGraph, turn: Turn, conversations: Sequence[Conversation], new: Conversation
) -> Conversation | None:
    """What a side call summarises: the conversation it quotes most, then the one like the new one, then the latest."""
    told = [plain(message.content) for message in request_of(graph, turn)]

    def likeness(old: Conversation) -> tuple[bool, int, bool, float]:
        before = [t for t in old.turns if t.completed_at <= turn.started_at]
        quotes = sum(quoted_in(plain(t.reply.content), *told) for t in before)
        return old.root.origin == turn.origin, quotes, old.system == new.system, before[-1].completed_at

    candidates = [
        old
        for old in conversations
        if old is not new and old.has_tools and old.turns[0].completed_at <= turn.started_at
    ]
    return max(candidates, key=likeness, default=None)
