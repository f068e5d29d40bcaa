"""Reserve before dispatch, settle after: parallel calls cannot exceed a budget together."""

from __future__ import annotations

import time
from typing import Literal

from drivetrain.gateway.policy import SessionPolicy

BudgetName = Literal["max_turns", "max_completion_tokens", "wall_clock_s"]


class BudgetStop(Exception):
    """A budget is used up; the harness gets a terminal message, not an error."""

    def __init__(self, budget: BudgetName, limit: float) -> None:
        super().__init__(f"{budget} of {limit:g} is used up")
        self.budget = budget
        self.limit = limit


class Reservation:
    """A turn's share of the budgets. Leave it by :meth:`settle` or :meth:`release`, once."""

    def __init__(self, budget: Budget, max_tokens: int) -> None:
        self._budget = budget
        self.max_tokens = max_tokens
        self._open = True

    def shrink(self, max_tokens: int) -> None:
        """Give back what this turn cannot use."""
        self._budget.reserved_tokens -= self.max_tokens - max_tokens
        self.max_tokens = max_tokens

    def settle(self, sampled_tokens: int) -> None:
        """The turn was committed with this many sampled tokens."""
        if self._close():
            self._budget.turns += 1
            self._budget.completion_tokens += sampled_tokens

    def release(self) -> None:
        """The turn did not happen; idempotent, and no effect after :meth:`settle`."""
        self._close()

    def _close(self) -> bool:
        was_open, self._open = self._open, False
        if was_open:
            self._budget.reserved_turns -= 1
            self._budget.reserved_tokens -= self.max_tokens
        return was_open


class Budget:
    """What a session has used and reserved.

    Args:
        policy: the limits.
        opened_at: seconds since the epoch at which the wall clock started.
    """

    def __init__(self, policy: SessionPolicy, opened_at: float) -> None:
        self._policy = policy
        self._opened_at = opened_at
        self.turns = 0
        self.completion_tokens = 0
        self.reserved_turns = 0
        self.reserved_tokens = 0

    def reserve(self, requested_tokens: int | None) -> Reservation:
        """Set aside one turn and at most ``requested_tokens`` sampled tokens.

        Raises:
            BudgetStop: nothing is left.
        """
        policy = self._policy
        if policy.wall_clock_s is not None and time.time() - self._opened_at >= policy.wall_clock_s:
            raise BudgetStop("wall_clock_s", policy.wall_clock_s)
        if self.turns + self.reserved_turns >= policy.max_turns:
            raise BudgetStop("max_turns", policy.max_turns)
        tokens = min(policy.max_tokens_per_turn, requested_tokens or policy.max_tokens_per_turn)
        if policy.max_completion_tokens is not None:
            left = policy.max_completion_tokens - self.completion_tokens - self.reserved_tokens
            if left <= 0:
                raise BudgetStop("max_completion_tokens", policy.max_completion_tokens)
            tokens = min(tokens, left)
        self.reserved_turns += 1
        self.reserved_tokens += tokens
        return Reservation(self, tokens)
