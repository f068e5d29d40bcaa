"""The warm sandboxes of one key, and how many of them there should be."""

from __future__ import annotations

import random
from collections import deque

from drivetrain.sandboxes.protocol import SandboxHandle, SandboxSpec

BACKOFF_S = 1.0
BACKOFF_LIMIT_S = 60.0
# After so many failures in a row nothing is started ahead until a request has succeeded.
GIVE_UP_AFTER = 6


class Warm:
    """A sandbox nobody has used; ends itself at ``until`` (seconds of the loop's clock) or a little later."""

    def __init__(self, sandbox: SandboxHandle, shelf: Shelf, until: float) -> None:
        self.sandbox = sandbox
        self.shelf = shelf
        self.until = until


class Shelf:
    """``target`` follows demand between the pool's bounds: a miss raises it, a sandbox that aged unused lowers it."""

    def __init__(self, key: str, spec: SandboxSpec, *, least: int, most: int) -> None:
        self.key = key
        self.spec = spec
        self.target = 0
        self.refilling = 0
        self.asked = 0.0
        self.ready: deque[Warm] = deque()
        self.failures = 0
        self.error: Exception | None = None
        self.not_before = 0.0
        self._least = least
        self._most = most

    def take(self, ttl_s: float, now: float) -> Warm | None:
        """The freshest one that lives ``ttl_s`` seconds more; the oldest are left to age."""
        for warm in reversed(self.ready):
            if warm.until - now >= ttl_s:
                self.ready.remove(warm)
                return warm
        return None

    def missing(self, now: float) -> int:
        """How many may be started ahead now."""
        if now < self.not_before or self.failures >= GIVE_UP_AFTER:
            return 0
        return max(0, self.target - len(self.ready) - self.refilling)

    def missed(self) -> None:
        """A request had to start its own: keep one more."""
        self.target = min(self._most, max(self._least, self.target + 1))

    def aged(self, *, idle: bool) -> None:
        """One waited in vain: keep one less; none when nobody asks any more."""
        self.target = 0 if idle else max(min(self._least, self.target), self.target - 1)

    def succeeded(self) -> None:
        """A start worked."""
        self.failures, self.error, self.not_before = 0, None, 0.0

    def failed(self, error: Exception, now: float, *, for_good: bool) -> float | None:
        """A start failed; seconds until the next may be tried ahead, None when none is."""
        self.failures = GIVE_UP_AFTER if for_good else self.failures + 1
        self.error = error
        if self.failures >= GIVE_UP_AFTER:
            return None
        delay = min(BACKOFF_LIMIT_S, BACKOFF_S * 2.0 ** (self.failures - 1)) * random.uniform(0.75, 1.25)
        self.not_before = now + delay
        return delay

    @property
    def unused(self) -> bool:
        """Nothing is here and nothing is coming."""
        hopeless = self.target == 0 or self.failures >= GIVE_UP_AFTER
        return hopeless and not self.ready and not self.refilling
