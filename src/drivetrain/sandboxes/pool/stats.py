"""What a pool has done and holds."""

from __future__ import annotations

import msgspec


class PoolStats(msgspec.Struct, kw_only=True):
    """Counts since the start, then what there is now.

    Every sandbox is in exactly one of ``starting``, ``ready``, ``checking``, ``in_use`` and ``closing``;
    ``total`` is their sum and never above the pool's limit.
    """

    hits: int = 0
    """Requests answered with a warm sandbox."""
    misses: int = 0
    """Requests for which one was started."""
    failures: int = 0
    """Requests whose start failed."""
    refills: int = 0
    """Sandboxes started ahead."""
    refill_failures: int = 0
    dead: int = 0
    """Warm sandboxes that failed the check at hand-out and were thrown away."""
    aged: int = 0
    """Warm sandboxes thrown away unused because they had waited too long."""
    evicted: int = 0
    """Warm sandboxes thrown away unused because a request needed the room."""
    expired: int = 0
    """Sandboxes in use that the pool closed at the end of their time to live."""
    close_failures: int = 0
    waited: int = 0
    """Requests that had to wait for room."""
    timeouts: int = 0
    """Requests that waited in vain."""

    waiting: int = 0
    starting: int = 0
    ready: int = 0
    checking: int = 0
    in_use: int = 0
    closing: int = 0

    @property
    def total(self) -> int:
        """Sandboxes that exist, are about to, or are not quite gone."""
        return self.starting + self.ready + self.checking + self.in_use + self.closing
