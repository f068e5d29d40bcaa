"""Exactly once without headers: join a call in flight, replay a reply that was lost, else run a new turn.

A request is known by the digest of its body and of who asks: most harnesses send no retry mark (harnesses.md section
1.6). What became of a committed turn's reply::

    undelivered --last byte written--> sent --evidence--> acknowledged
         ^                              |
         +------ connection reset ------+

* *undelivered*: committed, and not yet written to the last byte. Not trained. An equal request gets the same bytes.
* *sent*: the kernel took the last byte; trained, but a relay or a client that died may have swallowed it. An equal
  request on another connection is a retry while every connection that carried the reply is closed: it gets the same
  bytes. While one of them is open (a pool of one client, twin sub-agents, case row C3) it is a new turn.
* *acknowledged*: the connection carried another request, a request continued the turn, a different request of the same
  lineage was served after it, or the session was sealed. An equal request is a new turn.

An explicit retry (``Idempotency-Key``, a retry counter above 0) is answered with the newest turn of that request,
whatever its state. In-process callers name no connection: what they are handed is acknowledged at once.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from drivetrain.gateway.connections import Connection
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, Reply
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.turn import Turn
from drivetrain.trace.watermark import mint_reply_id

_CANCEL_S = 5.0
_MAX_KEYS = 10_000
_RETRY_HEADER = "x-stainless-retry-count"


class Served(msgspec.Struct, frozen=True):
    """What a call gets: a reply, and the committed turn behind it (None for a control reply)."""

    reply: Reply
    turn: Turn | None


class Attempt(msgspec.Struct, frozen=True):
    """How a request came: on which connection (None in process), and what it says about being a retry."""

    connection: Connection | None = None
    key: str = ""
    retries: int = 0

    @property
    def explicit(self) -> bool:
        """Whether the client itself says which requests are the same."""
        return bool(self.key) or self.retries > 0


def read_attempt(headers: Mapping[str, str], connection: Connection) -> Attempt:
    """The retry marks of a request; a counter that is no number says nothing."""
    count = headers.get(_RETRY_HEADER, "")
    retries = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0
    return Attempt(connection, headers.get("Idempotency-Key", ""), retries)


def request_digest(call: Call, body: bytes, key: str = "") -> bytes:
    """What makes two requests the same: the body, who asks, and the idempotency key if there is one."""
    origin = "".join(f"{name}={value}\n" for name, value in sorted(call.origin.items()))
    return hashlib.sha256(f"{origin}\0{key}\0".encode() + body).digest()


class Flight:
    """One generation and the requests that wait for it."""

    def __init__(self, task: asyncio.Task[Served], reply_id: str) -> None:
        self.task = task
        self.reply_id = reply_id
        self.committing = False
        self._waiters = 0

    def enter(self) -> None:
        """One more request waits."""
        self._waiters += 1

    def leave(self) -> None:
        """A request waits no more. After the last one the generation is cancelled, unless its turn is being written:
        that turn stays, undelivered."""
        self._waiters -= 1
        if self._waiters == 0 and not self.committing and not self.task.done():
            self.task.cancel()


class _Reply:
    """A committed turn whose reply is not known to have arrived; what connections tell about it."""

    def __init__(self, delivery: Delivery, turn: Turn) -> None:
        self._delivery = delivery
        self.turn = turn
        self.on_lost: Callable[[Turn], None] | None = None
        self._carriers = 0
        self._open = 0
        self._resets = 0

    @property
    def may_be_read(self) -> bool:
        """Whether a connection that carried it to the last byte is still open."""
        return self._open > 0

    def sent_on(self, connection: Connection) -> None:
        self._carriers += 1
        self._open += 1
        connection.carry(self)

    def used(self) -> None:
        self._delivery._acknowledge(self)

    def ended(self, *, reset: bool) -> None:
        self._open -= 1
        self._resets += reset
        if self._resets == self._carriers:
            self._delivery._lose(self)


class Delivery:
    """Calls of one session that are in flight or whose reply may not have arrived.

    Args:
        graph: the session's turns; in a recovered session no connection is open, so that a leaf can be replayed.
    """

    def __init__(self, graph: TraceGraph) -> None:
        self._session_tag = graph.session_tag
        self._flights: dict[bytes, Flight] = {}
        self._replies: dict[bytes, _Reply] = {}
        self._newest: dict[bytes, Turn] = {}
        self._keys: dict[bytes, bytes] = {}
        for turn in graph:
            self.committed(turn)
            parent = self._replies.get(graph[turn.parent].body_sha256) if turn.parent is not None else None
            if parent is not None and parent.turn.id == turn.parent:
                self._acknowledge(parent)

    @property
    def in_flight(self) -> int:
        """Number of generations running."""
        return len(self._flights)

    def claim(self, key: str, request: bytes) -> None:
        """Bind an idempotency key to a request.

        Raises:
            Refusal: the key was used for another request.
        """
        name = hashlib.sha256(key.encode()).digest()
        if self._keys.setdefault(name, request) != request:
            raise Refusal(
                "idempotency_key_reused",
                "this Idempotency-Key was used for another request.",
                fix="Use a new key for a new request.",
                param="Idempotency-Key",
            )
        if len(self._keys) > _MAX_KEYS:
            del self._keys[next(iter(self._keys))]

    def replay(self, request: bytes, *, explicit: bool = False) -> Served | None:
        """The reply that an equal request gets again, or None when this is a new one (see the module's text)."""
        turn = self._newest.get(request) if explicit else None
        reply = self._replies.get(request)
        if turn is None and reply is not None:
            if reply.turn.delivered and reply.may_be_read:
                self._acknowledge(reply)
            else:
                turn = reply.turn
        return None if turn is None else Served(turn.reply, turn)

    def join_or_start(self, request: bytes, start: Callable[[str], Coroutine[Any, Any, Served]]) -> tuple[Flight, bool]:
        """The flight of an equal request, or a new one; says whether it was joined. ``start`` gets the reply's id.

        The caller has entered the flight and must leave it.
        """
        flight = self._flights.get(request)
        joined = flight is not None and not flight.task.cancelling()
        if flight is None or not joined:
            reply_id = mint_reply_id(self._session_tag)
            flight = Flight(asyncio.get_running_loop().create_task(start(reply_id)), reply_id)
            self._newest.pop(request, None)  # superseded: a retry from here on is one of this call
            self._flights[request] = flight
            flight.task.add_done_callback(functools.partial(self._land, request, flight))
        flight.enter()
        return flight, joined

    def committing(self, request: bytes) -> None:
        """The sample of a flight is complete and its turn is about to be written: it can no longer be cancelled."""
        if request in self._flights:
            self._flights[request].committing = True

    def committed(self, turn: Turn) -> None:
        """A turn is durable and its reply is about to be sent.

        Replies that were there before this turn was asked for, in the same lineage, are given up: the harness went
        another way.
        """
        for other in list(self._replies.values()):
            if _lineage(other.turn) == _lineage(turn) and other.turn.completed_at < turn.started_at:
                self._acknowledge(other)
        self._replies[turn.body_sha256] = _Reply(self, turn)
        self._newest[turn.body_sha256] = turn

    def sent(self, turn: Turn, connection: Connection | None, on_lost: Callable[[Turn], None]) -> bool:
        """The last byte of a reply was written; False when the turn counted as delivered before.

        ``on_lost`` is called when the connection turns out to have been reset with the reply unread.
        """
        known = _deliver(turn)
        reply = self._replies.get(turn.body_sha256)
        if reply is not None and reply.turn is turn:
            reply.on_lost = on_lost
            if connection is None:
                self._acknowledge(reply)
            else:
                reply.sent_on(connection)
        return not known

    def continued(self, turn: Turn) -> bool:
        """A request continues a turn: its reply arrived. False when it counted as delivered before."""
        known = _deliver(turn)
        reply = self._replies.get(turn.body_sha256)
        if reply is not None and reply.turn is turn:
            self._acknowledge(reply)
        return not known

    async def seal(self) -> int:
        """Cancel every generation in flight and forget the rest; returns how many were in flight.

        An engine that does not react to being cancelled is left behind after 5 s; what it still returns is dropped.
        """
        for reply in self._replies.values():
            reply.on_lost = None  # an idle connection may refer to it for long
        self._replies.clear()
        self._newest.clear()
        self._keys.clear()
        return await self.cancel_all()

    async def cancel_all(self) -> int:
        """Cancel every generation in flight; returns how many there were."""
        tasks = {flight.task for flight in self._flights.values() if not flight.task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_S)
        return len(tasks)

    def _acknowledge(self, reply: _Reply) -> None:
        reply.on_lost = None
        if self._replies.get(reply.turn.body_sha256) is reply:
            del self._replies[reply.turn.body_sha256]

    def _lose(self, reply: _Reply) -> None:
        if self._replies.get(reply.turn.body_sha256) is reply and reply.turn.delivered:
            reply.turn.delivered, reply.turn.delivered_at = False, 0.0
            if reply.on_lost is not None:
                reply.on_lost(reply.turn)

    def _land(self, request: bytes, flight: Flight, _: asyncio.Task[Served]) -> None:
        if self._flights.get(request) is flight:
            del self._flights[request]
        if not flight.task.cancelled():
            flight.task.exception()  # retrieved here so that an abandoned failure is not reported as never awaited


def _lineage(turn: Turn) -> tuple[int | None, dict[str, str], int]:
    """Where a turn hangs. Title calls and most sub-agents ask with other tools or headers than the main chain."""
    return turn.parent, turn.origin, turn.n_tools


def _deliver(turn: Turn) -> bool:
    """Mark a turn delivered, now; returns whether it was before."""
    known = turn.delivered
    if not known:
        turn.delivered, turn.delivered_at = True, round(time.time(), 3)
    return known
