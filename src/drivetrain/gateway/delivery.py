"""Retries without headers: join a call in flight, replay a reply that was not delivered, else a new turn.

Pi and OpenCode send no retry marker, so a retry is recognised by the body's digest (design section 5, "Retries"). A
reply is delivered when its last byte was handed to a connection that was still open, or when the harness proves it by
continuing from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from drivetrain.messages import Reply
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.turn import Turn
from drivetrain.trace.watermark import mint_reply_id


class Served(msgspec.Struct, frozen=True):
    """What a call gets: a reply, and the committed turn behind it (None for a control reply)."""

    reply: Reply
    turn: Turn | None


class Flight:
    """One generation and the requests that wait for it."""

    def __init__(self, task: asyncio.Task[Served], reply_id: str) -> None:
        self.task = task
        self.reply_id = reply_id
        self.waiters = 0

    async def wait(self) -> Served:
        """Result of the generation. When the last waiter is cancelled, the generation is cancelled too."""
        self.waiters += 1
        try:
            return await asyncio.shield(self.task)
        finally:
            self.waiters -= 1
            if self.waiters == 0 and not self.task.done():
                self.task.cancel()


class Delivery:
    """Calls of one session that are in flight or whose reply was not delivered.

    Args:
        graph: the session's turns; undelivered leaves of a recovered session can be replayed.
    """

    def __init__(self, graph: TraceGraph) -> None:
        self._graph = graph
        self._flights: dict[bytes, Flight] = {}
        self._undelivered: dict[bytes, Turn] = {}
        for turn in graph:
            if not turn.delivered and not graph.children(turn.id):
                self.committed(turn)

    @property
    def in_flight(self) -> int:
        """Number of generations running."""
        return len(self._flights)

    def replay(self, body_sha256: bytes) -> Served | None:
        """The reply of an equal request that was committed and not delivered, or None."""
        turn = self._undelivered.get(body_sha256)
        return None if turn is None else Served(turn.reply, turn)

    def join_or_start(
        self, body_sha256: bytes, start: Callable[[str], Coroutine[Any, Any, Served]]
    ) -> tuple[Flight, bool]:
        """The flight of an equal request, or a new one; says whether it was joined. ``start`` gets the reply's id."""
        flight = self._flights.get(body_sha256)
        if flight is not None and not flight.task.cancelling():
            return flight, True
        reply_id = mint_reply_id(self._graph.session_tag)
        flight = Flight(asyncio.get_running_loop().create_task(start(reply_id)), reply_id)
        self._flights[body_sha256] = flight
        flight.task.add_done_callback(lambda _: self._land(body_sha256, flight))
        return flight, False

    def committed(self, turn: Turn) -> None:
        """A turn is durable and its reply is about to be sent.

        A sibling whose reply was there before this turn was asked for is given up: the harness went another way.
        """
        stale = [
            body
            for body, other in self._undelivered.items()
            if other.parent == turn.parent and other.completed_at < turn.started_at
        ]
        for body in stale:
            del self._undelivered[body]
        self._undelivered[turn.body_sha256] = turn

    def delivered(self, turn: Turn) -> bool:
        """Note that a reply arrived; False when that was known."""
        known, turn.delivered = turn.delivered, True
        if self._undelivered.get(turn.body_sha256) is turn:
            del self._undelivered[turn.body_sha256]
        return not known

    async def cancel_all(self) -> int:
        """Cancel every generation in flight; returns how many there were."""
        flights = [flight for flight in self._flights.values() if not flight.task.done()]
        for flight in flights:
            flight.task.cancel()
        await asyncio.gather(*(flight.task for flight in flights), return_exceptions=True)
        return len(flights)

    def _land(self, body_sha256: bytes, flight: Flight) -> None:
        if self._flights.get(body_sha256) is flight:
            del self._flights[body_sha256]
        if not flight.task.cancelled():
            flight.task.exception()  # retrieved here so that an abandoned failure is not reported as never awaited
