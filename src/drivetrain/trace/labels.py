"""What was each turn for? Inferred from the whole session, with the reason (design section 4, "Label").

Some labels are only known later (a summary becomes a compaction when the next conversation opens with it), so labels
are computed over the graph when they are needed and never rewrite the journal. First match wins, per conversation:

1. recorded when it was served; 2. a rule of the preset; 3. probe; 4. continuation of a summarised conversation;
5. a header that names a sub-agent; 6. side calls without tools; 7. history that belongs to an earlier conversation;
8. a call that started it; 9. agent. Then single turns: compaction, probe, retry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from drivetrain.trace.compaction import Compaction, find_compactions, quotes_history
from drivetrain.trace.conversation import Conversation, conversations_of, plain
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.origin import KIND_HEADER, parent_header
from drivetrain.trace.spawn import Spawn, answer_times, find_spawn
from drivetrain.trace.turn import Label, Turn

_TITLE_MESSAGES = 3
"""A title call is short: system text and one or two user messages (harnesses.md section 3, OpenCode)."""


class LabelInfo(msgspec.Struct, frozen=True):
    """A turn's label and why.

    ``parent_call`` is the turn whose tool call started the turn's conversation. ``continues`` is the root of the
    conversation that was summarised: for the summary itself and for what carries on with it.
    """

    label: Label
    reason: str
    parent_call: int | None = None
    continues: int | None = None


class LabelHint(Protocol):
    """A preset's rule about conversations, by what their first request looks like; both conditions must hold."""

    @property
    def label(self) -> Label:
        """The label it gives."""

    @property
    def system_contains(self) -> str:
        """Text inside the system messages."""

    @property
    def without_tools(self) -> bool:
        """Whether the request must offer no tool."""


class LabelRule(msgspec.Struct, frozen=True, kw_only=True):
    """A :class:`LabelHint` as a run stores it."""

    label: Label
    system_contains: str = ""
    without_tools: bool = False


def infer_labels(graph: TraceGraph, *, hints: Sequence[LabelHint] = ()) -> dict[int, LabelInfo]:
    """Label of every turn of a session, by turn id.

    Args:
        graph: the session.
        hints: rules of the preset; they win over what the structure suggests.
    """
    session = _Session(graph, hints)
    labels: dict[int, LabelInfo] = {}
    for conversation in session.conversations:
        info = session.label(conversation, labels)
        for turn in conversation.turns:
            labels[turn.id] = info if turn.parent is None else _inherited(info, conversation)
    return labels | dict(session.single_turns(labels))


def relabelled(graph: TraceGraph, *, hints: Sequence[LabelHint] = ()) -> TraceGraph:
    """A copy of the graph whose turns carry the inferred labels, for exports; the original stays as it is."""
    labels = infer_labels(graph, hints=hints)
    copy = TraceGraph(graph.session_tag)
    for turn in graph:
        copy.add(msgspec.structs.replace(turn, label=labels[turn.id].label))
    return copy


class _Session:
    """A session's conversations and what is known about them as a whole."""

    def __init__(self, graph: TraceGraph, hints: Sequence[LabelHint]) -> None:
        self._graph = graph
        self._hints = hints
        self.conversations = conversations_of(graph)
        self._with_tools = any(conversation.has_tools for conversation in self.conversations)
        self._by_root = {conversation.root.id: conversation for conversation in self.conversations}
        self._root_of = {turn.id: c.root.id for c in self.conversations for turn in c.turns}
        self._caller = {call.id: turn.id for turn in graph for call in turn.reply.tool_calls}
        self._answered = answer_times(graph)
        self._spawns = self._find_spawns()
        proven = frozenset(root for root, spawn in self._spawns.items() if spawn.quoted or spawn.named)
        self.compactions = find_compactions(graph, self.conversations, proven)
        self._carried = {compaction.new: compaction for compaction in self.compactions}

    def label(self, conversation: Conversation, earlier: dict[int, LabelInfo]) -> LabelInfo:
        """Label of a conversation; ``earlier`` holds those of conversations that began before it."""
        return _recorded(conversation.root, self._infer(conversation, earlier))

    def _infer(self, conversation: Conversation, earlier: dict[int, LabelInfo]) -> LabelInfo:
        root = conversation.root
        for hint in self._hints:
            if _applies(hint, conversation):
                return LabelInfo(hint.label, "a rule of the preset")
        if root.requested.max_tokens == 1 and not conversation.history:
            return LabelInfo("probe", "asks for one token")
        if root.id in self._carried:
            return self._continuation(self._carried[root.id], earlier)
        header = parent_header(root.origin)
        if header:
            return self._announced(conversation, header)
        if self._with_tools and not conversation.has_tools:
            return self._side_call(conversation)
        before = self._resumed(conversation)
        if before is not None and before.root.id in earlier:
            return _resumption(conversation, before, earlier[before.root.id])
        spawn = self._spawns.get(root.id)
        if spawn is not None:
            return LabelInfo("subagent", spawn.reason, parent_call=spawn.call)
        return LabelInfo("agent", "a conversation of its own; no call of another one started it")

    def single_turns(self, labels: dict[int, LabelInfo]) -> Iterable[tuple[int, LabelInfo]]:
        """Turns that differ from their conversation, later rules first."""
        twins: dict[bytes, list[Turn]] = {}
        for turn in self._graph:
            twins.setdefault(turn.prompt_chain, []).append(turn)
        for same in twins.values():
            for turn in same:
                info = _among_twins(self._graph, turn, same) if labels[turn.id].label in _ACTING else None
                if info is not None:
                    yield turn.id, info
        for turn in self._graph:
            if turn.parent is not None and turn.label != "agent":
                yield turn.id, _recorded(turn, labels[turn.id])
        for compaction in self.compactions:
            reason = f"its reply opens the conversation of turn {compaction.new}"
            info = LabelInfo("compaction", reason, labels[compaction.summary].parent_call, compaction.old)
            yield compaction.summary, _recorded(self._graph[compaction.summary], info)

    def _find_spawns(self) -> dict[int, Spawn]:
        found: dict[int, Spawn] = {}
        for index, child in enumerate(self.conversations):
            if child.history:
                continue
            parents = [c for c in self.conversations[:index] if c.has_tools]
            parents.sort(key=lambda c: c.root.id in found)  # most harnesses let only the outer agent start others
            spawn = find_spawn(self._graph, child, parents, self._answered)
            # A tool that asks a model about its input (Claude's WebFetch) quotes its argument too, but starts no agent.
            if spawn is not None and (child.has_tools or (spawn.quoted and spawn.named)):
                found[child.root.id] = spawn
        return found

    def _continuation(self, compaction: Compaction, earlier: dict[int, LabelInfo]) -> LabelInfo:
        old = earlier.get(compaction.old)
        reason = f"opens with the summary of turn {compaction.summary}; continues the conversation of {compaction.old}"
        label: Label = old.label if old is not None and old.label in _ACTING else "agent"
        return LabelInfo(label, reason, old.parent_call if old else None, compaction.old)

    def _announced(self, conversation: Conversation, header: str) -> LabelInfo:
        spawn = self._spawns.get(conversation.root.id)
        if "compact" in conversation.root.origin.get(KIND_HEADER, ""):
            return LabelInfo("summary", f"the header {KIND_HEADER} says compaction")
        return LabelInfo("subagent", f"the header {header} says so", parent_call=spawn.call if spawn else None)

    def _side_call(self, conversation: Conversation) -> LabelInfo:
        """No tools beside a conversation with tools: auxiliary everywhere (harnesses.md section 7)."""
        spawn = self._spawns.get(conversation.root.id)
        if spawn is not None:
            return LabelInfo("subagent", spawn.reason, parent_call=spawn.call)
        if quotes_history(self._graph, conversation.root, self.conversations):
            return LabelInfo("summary", "no tools, and it re-tells earlier turns; no conversation opens with its reply")
        if len(conversation.opening) <= _TITLE_MESSAGES:
            return LabelInfo("title", "a short request without tools beside a conversation with tools")
        return LabelInfo("summary", "a side call without tools beside a conversation with tools")

    def _resumed(self, conversation: Conversation) -> Conversation | None:
        """The earlier conversation whose turns this one re-sends, or whose task it asks again."""
        earlier = [c for c in self.conversations[: self.conversations.index(conversation)] if c.has_tools]
        said = {plain(t.reply.content): c for c in earlier for t in c.turns if t.reply.content.strip()}
        for message in reversed(conversation.opening):
            if message.role != "assistant":
                continue
            for call in message.tool_calls:
                if call.id in self._caller and self._root_of[self._caller[call.id]] != conversation.root.id:
                    return self._by_root[self._root_of[self._caller[call.id]]]
            if plain(message.content) in said:
                return said[plain(message.content)]
        if conversation.root.id in self._spawns or not conversation.users:
            return None
        return next((c for c in reversed(earlier) if c.asks_like(conversation)), None)


_ACTING: frozenset[Label] = frozenset({"agent", "subagent"})


def _recorded(turn: Turn, info: LabelInfo) -> LabelInfo:
    """What was known when the turn was served wins; a turn is served as ``agent`` when nothing was known."""
    if turn.label == "agent":
        return info
    return msgspec.structs.replace(info, label=turn.label, reason="recorded when it was served")


def _applies(hint: LabelHint, conversation: Conversation) -> bool:
    if not (hint.system_contains or hint.without_tools):
        return False
    return hint.system_contains in conversation.system and not (hint.without_tools and conversation.has_tools)


def _inherited(info: LabelInfo, conversation: Conversation) -> LabelInfo:
    return msgspec.structs.replace(info, reason=f"in the conversation of turn {conversation.root.id}: {info.reason}")


def _resumption(conversation: Conversation, before: Conversation, info: LabelInfo) -> LabelInfo:
    """A new root that re-sends the history of an earlier one (case row C8), or asks for the same again."""
    if _is_memory_call(conversation, before):
        return LabelInfo("summary", "goes on after the final answer with other tools (Qwen's memory call)")
    how = "re-sends the history of" if conversation.history else "asks the same as"
    return LabelInfo(info.label, f"{how} the conversation of turn {before.root.id}", info.parent_call, info.continues)


def _is_memory_call(conversation: Conversation, before: Conversation) -> bool:
    """Qwen's auto-memory call: after the final answer, one more user message, other tools (harnesses.md section 3)."""
    messages = conversation.opening
    if len(messages) < 3 or messages[-1].role != "user" or before.tools <= conversation.tools:
        return False
    final = messages[-2]
    ended = final.role == "assistant" and not final.tool_calls
    return ended and any(plain(turn.reply.content) == plain(final.content) for turn in before.turns[-1:])


def _among_twins(graph: TraceGraph, turn: Turn, twins: Sequence[Turn]) -> LabelInfo | None:
    """A turn beside others with the very same prompt: a probe, a discarded attempt, or (no evidence) a sibling.

    A twin that stops after one call is no retry (case row C4): the other must have begun after this one ended, and
    this one must have gone astray: not delivered, empty, or a malformed call that the harness throws away.
    """
    others = [other for other in twins if other.id != turn.id]
    wanted = turn.requested.max_tokens
    if wanted == 1 and not graph.children(turn.id) and any(o.requested.max_tokens != 1 for o in others):
        return LabelInfo("probe", "asks for one token of a prompt that is asked in full elsewhere")
    astray = _astray(turn)
    if not astray or graph.children(turn.id):
        return None
    for other in others:
        if other.id > turn.id and other.started_at >= turn.completed_at and other.origin == turn.origin:
            return LabelInfo("retry", f"{astray}, and turn {other.id} asks the same again")
    return None


def _astray(turn: Turn) -> str:
    if not turn.delivered:
        return "its reply did not arrive"
    if "malformed_tool_call" in turn.notes:
        return "its tool call was malformed"
    if not turn.reply.content.strip() and not turn.reply.tool_calls:
        return "its reply was empty"
    return ""
