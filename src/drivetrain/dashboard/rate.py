"""Tokens per second, and the latency of the latest engine calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from drivetrain.metrics.tally import Distribution

_RATE_S = 10.0
_LATENCY_S = 60.0


class Rate:
    """How fast a count grows, over the last ten seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, now: float, count: int) -> float:
        """Per second, given the count of now (seconds of any clock)."""
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()  # what was counted is gone
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _RATE_S:
            self._seen.popleft()
        since, before = self._seen[0]
        return (count - before) / (now - since) if now > since else 0.0


class Latency:
    """Quantiles of what a distribution has observed in the last minute; of all of it where that is nothing."""

    def __init__(self, seen: Distribution) -> None:
        self._of = seen
        self._before: deque[tuple[float, tuple[int, ...]]] = deque()

    def at(self, now: float, shares: Sequence[float]) -> list[float | None]:
        """A value for each share between 0 and 1 (seconds of any clock)."""
        self._before.append((now, tuple(self._of.counts)))
        while len(self._before) > 2 and self._before[1][0] <= now - _LATENCY_S:
            self._before.popleft()
        recent = [new - old for new, old in zip(self._of.counts, self._before[0][1], strict=True)]
        counts = recent if any(recent) else self._of.counts
        return [quantile(self._of.bounds, counts, share) for share in shares]


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Value below which a share of the observations lies, interpolated in its bucket; None without any."""
    wanted, below, lower = share * sum(counts), 0, 0.0
    if not sum(counts):
        return None
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= wanted:
            return lower + (bound - lower) * (wanted - below) / count
        below, lower = below + count, bound
    return bounds[-1]
