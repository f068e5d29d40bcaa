"""The append-only turn graph of one session: match a request, rebuild a prompt, walk the chains.

Decide by tokens, report why (design invariant 2): a request continues a stored turn when its messages begin with that
turn's messages and its reply; the prompt is then the stored ids plus a delta. Everything else forks with a reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from drivetrain.messages import Message, ToolSpec
from drivetrain.trace.keys import Key, extend, message_key, tools_key
from drivetrain.trace.turn import ForkReason, Ids, Turn
from drivetrain.trace.watermark import read_call_id

_MAX_PARTS = 8
"""Assistant messages in a row that are tried as one reply."""


class Match(msgspec.Struct, frozen=True):
    """Where a request meets the graph.

    ``parent`` is the deepest stored turn whose request and reply begin this request, or None. ``tail`` are the
    messages after it, ``tail_keys`` their keys and ``chain`` the digest of the whole request. ``soft`` counts
    assistant messages recognised by their call ids although their arguments or text were rewritten.
    """

    parent: Turn | None
    tail: tuple[Message, ...]
    tail_keys: tuple[Key, ...]
    chain: Key
    soft: int


class TraceGraph:
    """Turns of one session.

    Args:
        session_tag: 8 hex digits inside the session's tool-call ids.
    """

    def __init__(self, session_tag: str) -> None:
        self.session_tag = session_tag
        self._turns: dict[int, Turn] = {}
        self._children: dict[int, list[int]] = {}
        self._by_reply: dict[Key, list[int]] = {}
        self._by_reply_id: dict[str, int] = {}
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Turn]:
        """Turns in commit order."""
        return iter(self._turns.values())

    def __contains__(self, turn_id: object) -> bool:
        return turn_id in self._turns

    def __getitem__(self, turn_id: int) -> Turn:
        return self._turns[turn_id]

    def reserve_id(self) -> int:
        """Id for a turn about to be sampled; ids of abandoned turns are never used again."""
        self._next_id += 1
        return self._next_id - 1

    def add(self, turn: Turn) -> None:
        """Append a committed turn.

        Raises:
            ValueError: the id is taken or the parent is unknown.
        """
        if turn.id in self._turns:
            raise ValueError(f"turn {turn.id} exists already")
        if turn.parent is not None:
            if turn.parent not in self._turns:
                raise ValueError(f"turn {turn.id} names an unknown parent {turn.parent}")
            self._children.setdefault(turn.parent, []).append(turn.id)
        self._turns[turn.id] = turn
        self._by_reply.setdefault(turn.reply_chain, []).append(turn.id)
        self._by_reply_id[turn.reply.id] = turn.id
        self._next_id = max(self._next_id, turn.id + 1)

    def by_reply_id(self, reply_id: str) -> Turn | None:
        """The turn whose reply had this id, or None."""
        turn_id = self._by_reply_id.get(reply_id)
        return None if turn_id is None else self._turns[turn_id]

    def children(self, turn_id: int | None) -> list[Turn]:
        """Turns that continue ``turn_id``; the roots for None."""
        if turn_id is None:
            return [turn for turn in self if turn.parent is None]
        return [self._turns[child] for child in self._children.get(turn_id, [])]

    def path(self, turn: Turn) -> list[Turn]:
        """Turns from the root down to ``turn``."""
        found = [turn]
        while found[-1].parent is not None:
            found.append(self._turns[found[-1].parent])
        return found[::-1]

    def prompt_ids(self, turn: Turn) -> Ids:
        """The prompt of a turn rebuilt from stored ids: deltas and sampled ids of its path."""
        return np.concatenate(self._stored_ids(turn)[:-1])

    def ids_through(self, turn: Turn) -> Ids:
        """Prompt and sampled ids of a turn: what its continuation starts with, verbatim."""
        return np.concatenate(self._stored_ids(turn))

    def _stored_ids(self, turn: Turn) -> list[Ids]:
        """Delta and sampled ids of each turn on the path, in order; the last are those ``turn`` sampled."""
        return [ids for node in self.path(turn) for ids in (node.delta_ids, node.sampled_ids)]

    def tools_of(self, turn: Turn) -> tuple[ToolSpec, ...]:
        """Tools as the model saw them, in their stored order: those of the turn's root."""
        return self.path(turn)[0].tools or ()

    def stored_messages(self, turn: Turn) -> list[tuple[Key, bool]]:
        """Key of each message of a turn's request and of its reply, with whether we served it."""
        messages: list[tuple[Key, bool]] = []
        for node in self.path(turn):
            messages += [(key, False) for key in node.tail_keys]
            messages.append((node.reply_key, True))
        return messages

    def match(self, messages: Sequence[Message], tools: Sequence[ToolSpec], keys: Sequence[Key] = ()) -> Match:
        """Find the deepest stored turn that this request continues; ``keys`` are those of ``messages``, if known."""
        keys = keys or [message_key(message) for message in messages]
        chain = tools_key(tools)
        tail_keys: list[Key] = []
        parent: Turn | None = None
        start = soft = index = 0
        while index < len(messages):
            message = messages[index]
            key = keys[index]
            turn, length = self._recognise_at(messages, index, key, chain) if message.role == "assistant" else (None, 1)
            index += length
            if turn is None:
                tail_keys.append(key)
                chain = extend(chain, key)
                continue
            soft += length > 1 or turn.reply_key != key
            chain = turn.reply_chain
            parent, start, tail_keys = turn, index, []
        return Match(parent, tuple(messages[start:]), tuple(tail_keys), chain, soft)

    def _recognise_at(self, messages: Sequence[Message], index: int, key: Key, chain: Key) -> tuple[Turn | None, int]:
        """The stored turn served at ``messages[index]``, and how many messages the harness made of its reply.

        Some harnesses return the text and the tool calls of one reply as separate assistant messages (openenv.md
        section 5.1).
        """
        turn = self._recognise(messages[index], key, chain)
        if turn is not None:
            return turn, 1
        merged = messages[index]
        for length, part in enumerate(messages[index + 1 : index + 1 + _MAX_PARTS], 2):
            if part.role != "assistant":
                break
            text = merged.content + part.content
            merged = Message("assistant", text, merged.reasoning, (*merged.tool_calls, *part.tool_calls))
            turn = self._recognise(merged, message_key(merged), chain)
            if turn is not None:
                return turn, length
        return None, 1

    def _recognise(self, message: Message, key: Key, chain: Key) -> Turn | None:
        """The stored turn that served this assistant message after exactly this conversation, or None."""
        for call in message.tool_calls[:1]:
            watermark = read_call_id(call.id, self.session_tag)
            turn = self._turns.get(watermark[0]) if watermark else None
            if turn is not None and turn.prompt_chain == chain and _same_calls(turn, message):
                return turn
        served = self._by_reply.get(extend(chain, key))
        if not served:
            return None
        # Twins that answered alike: prefer one the harness has seen, then the latest.
        return max((self._turns[i] for i in served), key=lambda turn: (turn.delivered, turn.id))

    def explain(self, match: Match, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[ForkReason, str]:
        """Why a request does not simply extend the newest chain; empty when it does."""
        if not self._turns:
            return "", ""
        if match.parent is not None and all(message.role != "assistant" for message in match.tail):
            if not self._children.get(match.parent.id):
                return "", ""
            twin = any(child.prompt_chain == match.chain for child in self.children(match.parent.id))
            return ("same_prompt" if twin else "branch"), f"turn {match.parent.id} was continued before"
        if any(turn.prompt_chain == match.chain for turn in self):
            return "same_prompt", "the same messages were sent before"
        wanted = tools_key(tools)
        leaves = [turn for turn in self._leaves() if tools_key(self.tools_of(turn)) == wanted]
        if not leaves:
            return "tools_changed", "the tool list differs from every stored one"
        known = [key for key, _ in self.stored_messages(match.parent)] if match.parent else []
        return self._difference(leaves, [*known, *match.tail_keys], messages)

    def _leaves(self) -> list[Turn]:
        return [turn for turn in self if not self._children.get(turn.id)]

    def _difference(
        self, leaves: Sequence[Turn], keys: Sequence[Key], messages: Sequence[Message]
    ) -> tuple[ForkReason, str]:
        """Compare a request with the stored chain that shares its longest beginning."""
        chains = [self.stored_messages(leaf) for leaf in leaves]
        stored, shared = max(((chain, _common(chain, keys)) for chain in chains), key=lambda pair: pair[1])
        if shared == 0:
            if messages[0].role in ("system", "developer"):
                return "system_changed", "message 0 differs"
            return "new_conversation", "no stored message is shared"
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


def _common(stored: Sequence[tuple[Key, bool]], keys: Sequence[Key]) -> int:
    length = 0
    for (key, _), wanted in zip(stored, keys, strict=False):
        if key != wanted:
            break
        length += 1
    return length


def reply_message(turn: Turn) -> Message:
    """The assistant message a turn served."""
    return turn.reply.as_message()


def prompt_digest(ids: Ids) -> bytes:
    """Digest of prompt ids as they were sent: sha256 over little-endian int32."""
    return hashlib.sha256(np.ascontiguousarray(ids, dtype="<i4").tobytes()).digest()


def _same_calls(turn: Turn, message: Message) -> bool:
    """Same call ids and names in order, and no text that we did not serve."""
    served = [(call.id, call.name) for call in turn.reply.tool_calls]
    text = message.content.strip()
    return served == [(call.id, call.name) for call in message.tool_calls] and text in ("", turn.reply.content.strip())
