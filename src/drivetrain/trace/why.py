"""Why did a request not extend the chain? The message and the token at which it left (design invariant 2)."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Literal, Protocol

import msgspec

from drivetrain.messages import Message
from drivetrain.trace.conversation import request_of
from drivetrain.trace.graph import TraceGraph, reply_message
from drivetrain.trace.keys import Key
from drivetrain.trace.nearest import Nearest
from drivetrain.trace.sharing import common_tokens
from drivetrain.trace.turn import ForkReason, Ids, Turn

Drift = Literal["", "soft", "hard"]
"""``hard``: special tokens, tools or text that is not the assistant's differ. ``soft``: assistant text only. Empty:
nothing was rewritten, the same beginning was sampled again or continued twice."""

REWRITES: frozenset[ForkReason] = frozenset(
    {
        "tools_changed",
        "system_changed",
        "message_changed",
        "message_removed",
        "assistant_removed",
        "assistant_rewritten",
        "template_not_append_only",
    }
)
"""Reasons that say the beginning itself changed."""
_LINE_CHARS = 240
_DIFF_LINES = 40


class Decoder(Protocol):
    """What turns ids into text for people; a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens spelled out."""


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """One fork beside the nearest chain that was stored before it.

    ``nearest`` is that chain's last turn. ``message`` is the index of the first message that differs (None: all that
    both have agree), ``role_before`` and ``role_now`` its roles (empty where a side has ended) and ``message_diff`` a
    unified diff of the two texts. ``tools`` lists tools gone (``-name``), new (``+name``) and changed (``~name``).
    ``shared_tokens`` is the length of the common beginning of the stored chain (``stored_tokens``) and the new prompt
    (``prompt_tokens``); ``tokens_before`` and ``tokens_now`` spell what follows it on either side.
    """

    turn: int
    reason: ForkReason
    detail: str
    nearest: int
    drift: Drift
    shared_messages: int
    messages_before: int
    messages_now: int
    message: int | None
    role_before: str
    role_now: str
    message_diff: list[str]
    tools: list[str]
    shared_tokens: int
    stored_tokens: int
    prompt_tokens: int
    tokens_before: list[str]
    tokens_now: list[str]


def explain_forks(
    graph: TraceGraph, decoder: Decoder | None = None, *, special: Collection[int] = (), window: int = 8
) -> list[Fork]:
    """Every fork of a session, in order.

    Args:
        graph: the session.
        decoder: spells tokens; without one they are shown as ids.
        special: ids of special tokens, to tell hard from soft drift where a template rewrote what came before.
        window: how many tokens to spell on each side.
    """
    earlier = Nearest(graph)
    forks: list[Fork] = []
    for turn in graph:
        if turn.fork_reason:
            forks.append(_fork(graph, turn, earlier.find(turn), decoder, frozenset(special), window))
        earlier.add(turn)
    return forks


def _fork(
    graph: TraceGraph, turn: Turn, near: Turn, decoder: Decoder | None, special: frozenset[int], window: int
) -> Fork:
    keys = [key for key, _ in graph.stored_messages(turn)][:-1]
    stored_keys = [key for key, _ in graph.stored_messages(near)]
    before = [*request_of(graph, near), reply_message(near)]
    now = request_of(graph, turn)
    shared = _common(stored_keys, keys)
    differs = shared < min(len(stored_keys), len(keys))
    stored_ids, prompt_ids = graph.ids_through(near), graph.prompt_ids(turn)
    same = common_tokens(stored_ids, prompt_ids)
    left, right = _at(before, shared), _at(now, shared)
    return Fork(
        turn=turn.id,
        reason=turn.fork_reason,
        detail=turn.fork_detail,
        nearest=near.id,
        drift=_template_drift(stored_ids[: near.prompt_len], prompt_ids, special)
        if turn.fork_reason == "template_not_append_only"
        else _drift(turn, now, [(a, b) for a, b, x, y in zip(before, now, stored_keys, keys, strict=False) if x != y]),
        shared_messages=shared,
        messages_before=len(stored_keys),
        messages_now=len(keys),
        message=shared if differs else None,
        role_before=left.role if left and differs else "",
        role_now=right.role if right and differs else "",
        message_diff=_diff(left, right, near.id, turn.id, shared) if differs else [],
        tools=_tools(graph, near, turn),
        shared_tokens=same,
        stored_tokens=len(stored_ids),
        prompt_tokens=len(prompt_ids),
        tokens_before=_pieces(stored_ids[same : same + window], decoder),
        tokens_now=_pieces(prompt_ids[same : same + window], decoder),
    )


def _drift(turn: Turn, request: Sequence[Message], differing: Sequence[tuple[Message, Message]]) -> Drift:
    """``differing`` are the messages that changed, place by place."""
    answered = any(message.role == "assistant" for message in request)  # without, something new begins
    if turn.fork_reason not in REWRITES or not answered:
        return ""
    if turn.fork_reason == "tools_changed":
        return "hard"
    if not differing:  # what was stored is whole: a foreign answer was added, or the end was left out
        return "soft" if turn.fork_reason == "assistant_rewritten" else ""
    return "soft" if all(left.role == right.role == "assistant" for left, right in differing) else "hard"


def _template_drift(stored: Ids, prompt: Ids, special: frozenset[int]) -> Drift:
    """A template that rewrites earlier messages: soft when the same special tokens stand in the same order."""
    kept = [token for token in stored.tolist() if token in special]
    now = [token for token in prompt.tolist() if token in special]
    return "soft" if kept and now[: len(kept)] == kept else "hard"


def _common(left: Sequence[Key], right: Sequence[Key]) -> int:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def _at(messages: Sequence[Message], index: int) -> Message | None:
    return messages[index] if index < len(messages) else None


def _diff(left: Message | None, right: Message | None, near: int, turn: int, index: int) -> list[str]:
    names = f"turn {near}, message {index}", f"turn {turn}, message {index}"
    lines = list(difflib.unified_diff(_lines(left), _lines(right), *names, n=2, lineterm=""))
    cut = [line if len(line) <= _LINE_CHARS else line[: _LINE_CHARS - 1] + "…" for line in lines[:_DIFF_LINES]]
    return cut + ([f"… {len(lines) - _DIFF_LINES} more lines"] if len(lines) > _DIFF_LINES else [])


def _lines(message: Message | None) -> list[str]:
    if message is None:
        return []
    calls = [f"-> {call.name} {call.arguments}" for call in message.tool_calls]
    return [f"[{message.role}]", *message.content.splitlines(), *calls]


def _tools(graph: TraceGraph, near: Turn, turn: Turn) -> list[str]:
    before = {tool.name: tool for tool in graph.tools_of(near)}
    now = {tool.name: tool for tool in graph.tools_of(turn)}
    marks = [f"-{name}" for name in before if name not in now] + [f"+{name}" for name in now if name not in before]
    return marks + [f"~{name}" for name in before if name in now and before[name] != now[name]]


def _pieces(ids: Ids, decoder: Decoder | None) -> list[str]:
    return [decoder.decode([token]) if decoder else str(token) for token in ids.tolist()]
