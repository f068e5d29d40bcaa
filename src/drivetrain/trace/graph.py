"""The append-only turn graph of one session: match a request, rebuild a prompt, walk the chains.

Decide by tokens, report why (design invariant 2): a request continues a stored turn when its messages begin with that
turn's messages and its reply; the prompt is then the stored ids plus a delta. Everything else forks with a reason
(:mod:`drivetrain.trace.forks`) and stores only what no turn holds yet (:mod:`drivetrain.trace.sharing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from drivetrain.messages import Message, ToolSpec
from drivetrain.trace.keys import Key, extend, message_key, tools_key
from drivetrain.trace.turn import Ids, Turn
from drivetrain.trace.watermark import read_call_id

_MAX_PARTS = 8
"""Assistant messages in a row that are tried as one reply."""
_MAX_ALIKE = 4
"""Turns that are looked at for one beginning: the work per call does not grow with the session."""
_T = TypeVar("_T")


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


class _Place(msgspec.Struct, frozen=True):
    """Where a turn's own ids and messages stand in its prompt and its request, and how long those are.

    ``digests[i]`` is the digest of the request's first ``first_message + i`` messages.
    """

    first_id: int
    prompt_len: int
    first_message: int
    n_messages: int
    digests: tuple[Key, ...]


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
        self._by_prompt: dict[Key, list[int]] = {}
        self._by_beginning: dict[Key, list[int]] = {}
        self._based_on: dict[int, list[int]] = {}
        self._places: dict[int, _Place] = {}
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
            ValueError: the id is taken, the parent or the base is unknown, or more is kept than the base has.
        """
        if turn.id in self._turns:
            raise ValueError(f"turn {turn.id} exists already")
        for role, other in (("parent", turn.parent), ("base", turn.base)):
            if other is not None and other not in self._turns:
                raise ValueError(f"turn {turn.id} names an unknown {role} {other}")
        place = self._place(turn)
        if turn.parent is not None:
            self._children.setdefault(turn.parent, []).append(turn.id)
        if turn.base is not None:
            self._based_on.setdefault(turn.base, []).append(turn.id)
        self._turns[turn.id] = turn
        self._places[turn.id] = place
        for digest in place.digests:
            owners = self._by_beginning.setdefault(digest, [])
            owners.append(turn.id)
            del owners[:-_MAX_ALIKE]
        self._by_prompt.setdefault(turn.prompt_chain, []).append(turn.id)
        self._by_reply.setdefault(turn.reply_chain, []).append(turn.id)
        self._by_reply_id[turn.reply.id] = turn.id
        self._next_id = max(self._next_id, turn.id + 1)

    def _place(self, turn: Turn) -> _Place:
        if turn.base is not None:
            base = self._places[turn.base]
            first_id, first_message = turn.keep, turn.keep_messages
            if not (0 <= first_id <= base.prompt_len and 0 <= first_message <= base.n_messages):
                raise ValueError(f"turn {turn.id} keeps more than the prompt of turn {turn.base} has")
            chain = self._digest(self._turns[turn.base], first_message)
        elif turn.parent is not None:
            first_id, first_message = self.length_through(self._turns[turn.parent])
            chain = self._turns[turn.parent].reply_chain
        else:
            first_id = first_message = 0
            chain = tools_key(turn.tools or ())
        if first_id < self.start(turn):
            raise ValueError(f"turn {turn.id} keeps less than its parent, turn {turn.parent}, holds")
        digests = [chain]
        for key in turn.tail_keys:
            digests.append(extend(digests[-1], key))
        prompt_len, n_messages = first_id + len(turn.delta_ids), first_message + len(turn.tail_keys)
        return _Place(first_id, prompt_len, first_message, n_messages, tuple(digests))

    def _digest(self, turn: Turn, count: int) -> Key:
        """Digest of the first ``count`` messages of a stored turn's request."""
        for node in self._sources(turn):
            place = self._places[node.id]
            if count >= place.first_message:
                return place.digests[count - place.first_message]
        raise AssertionError("the first turn of a chain begins with message 0")

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

    def _sources(self, turn: Turn) -> Iterator[Turn]:
        """The turn, the one its stored ids follow on (its base, else its parent), and so on."""
        node: Turn | None = turn
        while node is not None:
            yield node
            before = node.parent if node.base is None else node.base
            node = None if before is None else self._turns[before]

    def prompt_ids(self, turn: Turn) -> Ids:
        """The prompt of a turn, rebuilt from stored ids."""
        return self._ids(turn, self._places[turn.id].prompt_len)

    def ids_through(self, turn: Turn) -> Ids:
        """Prompt and sampled ids of a turn: what its continuation starts with, verbatim."""
        return self._ids(turn, self.length_through(turn)[0])

    def delta_ids(self, turn: Turn) -> Ids:
        """The ids between the parent's sampled ids and this turn's; the whole prompt where there is no parent."""
        return turn.delta_ids if turn.base is None else self.prompt_ids(turn)[self.start(turn) :]

    def start(self, turn: Turn) -> int:
        """How many ids of a turn's prompt are its parent's prompt and sampled ids; 0 where there is no parent."""
        return 0 if turn.parent is None else self.length_through(self._turns[turn.parent])[0]

    def prompt_length(self, turn: Turn) -> int:
        """Number of ids of the rebuilt prompt."""
        return self._places[turn.id].prompt_len

    def length_through(self, turn: Turn) -> tuple[int, int]:
        """Number of ids of a turn's prompt and sampled ids, and of messages of its request and reply."""
        place = self._places[turn.id]
        return place.prompt_len + len(turn.sampled_ids), place.n_messages + 1

    def _ids(self, turn: Turn, count: int) -> Ids:
        """The first ``count`` of a turn's prompt and sampled ids."""
        parts: list[Ids] = []
        for node in self._sources(turn):
            place = self._places[node.id]
            if count > place.prompt_len:
                parts.append(node.sampled_ids[: count - place.prompt_len])
                count = place.prompt_len
            if count > place.first_id:
                parts.append(node.delta_ids[: count - place.first_id])
                count = place.first_id
        return np.concatenate([*parts[::-1], np.empty(0, dtype=np.int32)])

    def tools_of(self, turn: Turn) -> tuple[ToolSpec, ...]:
        """Tools as the model saw them, in their stored order."""
        return next((node.tools for node in self._sources(turn) if node.tools is not None), ())

    def stored_messages(self, turn: Turn) -> list[tuple[Key, bool]]:
        """Key of each message of a turn's request and of its reply, with whether we served it."""
        return self._spoken(
            turn,
            self._places[turn.id].n_messages + 1,
            lambda node: [*((key, False) for key in node.tail_keys), (node.reply_key, True)],
        )

    def request(self, turn: Turn) -> list[Message]:
        """All messages of a turn's request; assistant messages of ours as they were served."""
        return self._spoken(turn, self._places[turn.id].n_messages, lambda node: [*node.messages, reply_message(node)])

    def new_messages(self, turn: Turn) -> list[Message]:
        """The messages of a turn's request after its parent's reply; the whole request where there is no parent."""
        return self.request(turn)[0 if turn.parent is None else self.length_through(self._turns[turn.parent])[1] :]

    def _spoken(self, turn: Turn, count: int, own: Callable[[Turn], list[_T]]) -> list[_T]:
        """The first ``count`` of what a turn's request and reply are made of; ``own`` gives a turn's part of it."""
        parts: list[list[_T]] = []
        for node in self._sources(turn):
            first = self._places[node.id].first_message
            if count > first:
                parts.append(own(node)[: count - first])
                count = first
        return [item for part in reversed(parts) for item in part]

    def knows_tools(self, tools: Sequence[ToolSpec]) -> bool:
        """Whether a stored request offered these tools, in whatever order."""
        return tools_key(tools) in self._by_beginning

    def same_prompt(self, chain: Key) -> bool:
        """Whether the very same request was stored before."""
        return chain in self._by_prompt

    def alike(self, tools: Sequence[ToolSpec], keys: Sequence[Key]) -> tuple[list[Turn], int]:
        """The stored turns that hold the longest beginnings of a request, best first, and the length of the best.

        ``keys`` are the canonical keys of the request: for what was recognised as served, the stored ones. At most
        :data:`_MAX_ALIKE` turns; of those that hold the same beginning, the latest first. Length is in messages; turns
        whose tools alone agree come last, with length 0.
        """
        found: dict[int, int] = {}
        for length, holders in self._holders(tools, keys):
            for turn_id in sorted(holders, reverse=True):
                found.setdefault(turn_id, length)
            if len(found) >= _MAX_ALIKE:
                break
        best = list(found)[:_MAX_ALIKE]
        return [self._turns[turn_id] for turn_id in best], found[best[0]] if best else 0

    def nearest(self, tools: Sequence[ToolSpec], keys: Sequence[Key]) -> tuple[Turn | None, int]:
        """The latest stored turn whose request or reply holds the longest beginning of a request, and its length.

        As :meth:`alike`, but a turn that only names a base for that beginning counts too: how a prompt is stored makes
        no difference here.
        """
        for length, holders in self._holders(tools, keys):
            if holders:
                return self._turns[max(self._with_sharers(holders, length))], length
        return None, 0

    def _holders(self, tools: Sequence[ToolSpec], keys: Sequence[Key]) -> Iterator[tuple[int, set[int]]]:
        """Turns that store each beginning of a request, the longest first; the shortest is its tools alone."""
        digests = [tools_key(tools)]
        for key in keys:
            digests.append(extend(digests[-1], key))
        for length in range(len(keys), -1, -1):
            yield length, {*self._by_beginning.get(digests[length], ()), *self._by_reply.get(digests[length], ())}

    def _with_sharers(self, turns: set[int], length: int) -> set[int]:
        """These turns and those that share at least ``length`` messages of their requests, over any number of bases."""
        found, new = set(turns), list(turns)
        while new:
            sharers = self._based_on.get(new.pop(), ())
            new += [one for one in sharers if one not in found and self._turns[one].keep_messages >= length]
            found.update(new)
        return found

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


def reply_message(turn: Turn) -> Message:
    """The assistant message a turn served."""
    return turn.reply.as_message()


def _same_calls(turn: Turn, message: Message) -> bool:
    """Same call ids and names in order, and no text that we did not serve."""
    served = [(call.id, call.name) for call in turn.reply.tool_calls]
    text = message.content.strip()
    return served == [(call.id, call.name) for call in message.tool_calls] and text in ("", turn.reply.content.strip())
