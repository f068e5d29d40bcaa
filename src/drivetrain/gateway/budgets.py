"""Reserve before dispatch, settle after: parallel calls cannot exceed a budget together.

A call takes its share in two steps: a turn at once, tokens when its prompt is rendered. A budget is *used up* by
committed turns only. Where what is merely reserved by calls in flight stands in the way, a call waits for them; so
what a call gets does not depend on how long its siblings take, and a call that fails costs nothing. Nobody who holds
tokens waits for a turn, so that the waiting ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, TypeVar

from drivetrain.gateway.policy import SessionPolicy
from drivetrain.trace.turn import Turn

BudgetName = Literal["max_turns", "max_prompt_tokens", "max_completion_tokens", "max_total_tokens", "wall_clock_s"]
_T = TypeVar("_T")


class BudgetStop(Exception):
    """A budget is used up; what the harness gets is the policy's ``on_budget``."""

    def __init__(self, budget: BudgetName, limit: float) -> None:
        super().__init__(f"{budget} of {limit:g} is used up")
        self.budget = budget
        self.limit = limit


class Reservation:
    """A call's share of the budgets. Leave it by :meth:`settle` or :meth:`release`, once."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._open = True
        self.prompt_tokens = 0
        self.max_tokens = 0
        """Tokens that may be sampled; 0 before :meth:`claim`."""

    async def claim(self, prompt_tokens: int, wanted: int) -> int:
        """Set aside the prompt's tokens and up to ``wanted`` (> 0) sampled ones; returns how many may be sampled.

        Raises:
            BudgetStop: the prompt does not fit, or nothing is left to sample.
        """
        await self._budget.claim(self, prompt_tokens, wanted)
        return self.max_tokens

    def settle(self, sampled_tokens: int) -> None:
        """The turn was committed with this many sampled tokens."""
        if self._open:
            self._budget.add(self.prompt_tokens, sampled_tokens)
            self.release()

    def release(self) -> None:
        """The turn did not happen; idempotent, and no effect after :meth:`settle`."""
        was_open, self._open = self._open, False
        if was_open:
            self._budget.give_back(self)


class Budget:
    """What a session has used and reserved.

    Args:
        policy: the limits.
        opened_at: seconds since the epoch at which the wall clock started.
        clock: the present time on the same scale; it may stand still at times that do not count.
    """

    def __init__(self, policy: SessionPolicy, opened_at: float, clock: Callable[[], float] = time.time) -> None:
        self._policy = policy
        self._opened_at = opened_at
        self._clock = clock
        self._waiting: list[asyncio.Future[None]] = []
        self.turns = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.reserved_turns = 0
        self.reserved_prompt_tokens = 0
        self.reserved_completion_tokens = 0

    def recover(self, turn: Turn) -> None:
        """Count a turn that the journal holds."""
        self.add(turn.prompt_len, len(turn.sampled_ids))

    async def reserve(self) -> Reservation:
        """Set aside one turn.

        Raises:
            BudgetStop: no turn or no time is left.
        """
        return await self._once(self._take_turn)

    @asynccontextmanager
    async def in_time(
        self, timeout: Callable[[float | None], AbstractAsyncContextManager[asyncio.Timeout]] = asyncio.timeout
    ) -> AsyncIterator[None]:
        """Cancel what runs inside when the wall clock runs out; ``timeout`` counts the seconds.

        Raises:
            BudgetStop: it did.
        """
        left = self._time_left()
        try:
            async with timeout(left) as clock:
                yield
        except TimeoutError:
            if left is None or not clock.expired():
                raise
            raise BudgetStop("wall_clock_s", self._policy.wall_clock_s or 0) from None

    async def claim(self, reservation: Reservation, prompt_tokens: int, wanted: int) -> None:
        """See :meth:`Reservation.claim`."""
        granted = await self._once(lambda: self._grant(prompt_tokens, wanted))
        reservation.prompt_tokens, reservation.max_tokens = prompt_tokens, granted
        self.reserved_prompt_tokens += prompt_tokens
        self.reserved_completion_tokens += granted

    def add(self, prompt_tokens: int, completion_tokens: int) -> None:
        """A turn is committed."""
        self.turns += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens

    def give_back(self, reservation: Reservation) -> None:
        """A reservation ends; those who wait look again, in the order in which they came."""
        self.reserved_turns -= 1
        self.reserved_prompt_tokens -= reservation.prompt_tokens
        self.reserved_completion_tokens -= reservation.max_tokens
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _once(self, attempt: Callable[[], _T | None]) -> _T:
        """What ``attempt`` gives as soon as it gives something; None = look again when a reservation ends."""
        while True:
            left = self._time_left()
            if left == 0:
                raise BudgetStop("wall_clock_s", self._policy.wall_clock_s or 0)
            got = attempt()
            if got is not None:
                return got
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await asyncio.wait({changed}, timeout=left)

    def _take_turn(self) -> Reservation | None:
        limit = self._policy.max_turns
        if self.turns >= limit:
            raise BudgetStop("max_turns", limit)
        if self.turns + self.reserved_turns >= limit:
            return None
        self.reserved_turns += 1
        return Reservation(self)

    def _grant(self, prompt_tokens: int, wanted: int) -> int | None:
        """Tokens that may be sampled; None while calls in flight stand in the way of some of them."""
        most = self._room(prompt_tokens, wanted, prompt=self.prompt_tokens, completion=self.completion_tokens)
        try:
            now = self._room(
                prompt_tokens,
                wanted,
                prompt=self.prompt_tokens + self.reserved_prompt_tokens,
                completion=self.completion_tokens + self.reserved_completion_tokens,
            )
        except BudgetStop:
            return None
        return now if now == most else None

    def _room(self, prompt_tokens: int, wanted: int, *, prompt: int, completion: int) -> int:
        """Tokens a call may sample when so much of the budgets is gone; at least 1."""
        policy = self._policy
        if policy.max_prompt_tokens is not None and prompt + prompt_tokens > policy.max_prompt_tokens:
            raise BudgetStop("max_prompt_tokens", policy.max_prompt_tokens)
        room = wanted
        if policy.max_completion_tokens is not None:
            room = min(room, policy.max_completion_tokens - completion)
            if room <= 0:
                raise BudgetStop("max_completion_tokens", policy.max_completion_tokens)
        if policy.max_total_tokens is not None:
            room = min(room, policy.max_total_tokens - prompt - completion - prompt_tokens)
            if room <= 0:
                raise BudgetStop("max_total_tokens", policy.max_total_tokens)
        return room

    def _time_left(self) -> float | None:
        limit = self._policy.wall_clock_s
        return None if limit is None else max(0.0, self._opened_at + limit - self._clock())
