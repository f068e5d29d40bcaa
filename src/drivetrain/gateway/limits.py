"""Limits that make a client wait or come back: calls at once, requests per second, time of one call.

Unlike a budget, a limit is never used up: a call waits in line (its stream is kept alive meanwhile) as long as the
line is short, and is told when to come back otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from drivetrain.gateway.refusal import Refusal
from drivetrain.trace.turn import Turn


class CallLine:
    """Calls of one session that run at once; others wait, first come first served.

    Args:
        running: calls at once; None = no limit.
        waiting: calls that may wait; further ones are refused.
    """

    def __init__(self, running: int | None, waiting: int) -> None:
        self._running = running
        self._slots = asyncio.Semaphore(running) if running is not None else None
        self._most_waiting = waiting
        self.waiting = 0
        """Calls in line."""

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it.

        Raises:
            Refusal: ``too_many_calls``, the line is full.
        """
        if self._slots is None:
            yield
            return
        if self._slots.locked() and self.waiting >= self._most_waiting:
            raise Refusal(
                "too_many_calls",
                f"{self._running} calls of this session are running and {self.waiting} are waiting.",
                fix="Wait for replies before sending more.",
                retry_after_s=5,
            )
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._slots.release()


class RateLimit:
    """Token bucket over the requests of one session.

    Args:
        per_s: requests per second in the long run; None = no limit.
        burst: requests that may come at once after a quiet time.
        clock: monotonic seconds.
    """

    def __init__(self, per_s: float | None, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._clock = clock
        self._left = float(burst)
        self._at = clock()

    def take(self) -> None:
        """Count one request.

        Raises:
            Refusal: ``rate_limited``, with the time after which the next one is served.
        """
        if self._per_s is None:
            return
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            raise Refusal(
                "rate_limited",
                f"this session may send {self._per_s:g} requests per second.",
                fix="Send fewer.",
                retry_after_s=(1 - self._left) / self._per_s,
            )
        self._left -= 1


@asynccontextmanager
async def call_clock(
    seconds: float | None,
    timeout: Callable[[float | None], AbstractAsyncContextManager[asyncio.Timeout]] = asyncio.timeout,
) -> AsyncIterator[None]:
    """Cancel the engine call inside when it takes longer than this; ``timeout`` counts the seconds.

    Raises:
        Refusal: ``engine_timeout``.
    """
    try:
        async with timeout(seconds) as clock:
            yield
    except TimeoutError:
        if not clock.expired():
            raise  # the engine's own
        raise Refusal("engine_timeout", f"the engine did not answer within {seconds:g} s.") from None


def retained_bytes(turn: Turn) -> int:
    """What a turn adds to the memory of its session: ids, log-probs and the characters of its messages and its reply.

    A lower bound that costs nothing to know; objects around it make it about twice as much.
    """
    spoken = (*turn.messages, turn.reply.as_message())
    text = sum(
        len(message.content) + len(message.reasoning) + sum(len(call.arguments) for call in message.tool_calls)
        for message in spoken
    )
    return turn.delta_ids.nbytes + turn.sampled_ids.nbytes + turn.logprobs.nbytes + text
