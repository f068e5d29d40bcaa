"""Sums over turns. A session's turns are read once each, in the order in which they were committed."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from drivetrain.gateway.sessions import Session
from drivetrain.trace.turn import Turn

CALL_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
"""Upper bounds for engine calls and waits, in seconds."""
COMMIT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Distribution:
    """Observations in buckets.

    Args:
        bounds: ascending upper bounds, in the unit of what is observed; a last bucket without a bound is added.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value; less than nothing (a clock was set back) counts as nothing."""
        value = max(0.0, value)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """``(upper bound, observations up to it)``, the last bound is ``+Inf``."""
        found, count = [], 0
        for bound, here in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            count += here
            found.append((bound, float(count)))
        return found


class Totals:
    """Sums since a watch began; they only grow."""

    def __init__(self) -> None:
        self.turns: Counter[tuple[str, str]] = Counter()
        """By dialect and finish reason."""
        self.delivered = 0
        self.prompt_tokens = 0
        self.sampled_tokens = 0
        self.forks: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.opened = 0
        self.sealed = 0
        self.trained_tokens = 0
        self.masked_tokens: Counter[str] = Counter()
        """Of sealed sessions, by reason."""
        self.engine_s = Distribution(CALL_BUCKETS)
        self.queue_s = Distribution(CALL_BUCKETS)
        self.first_token_s = Distribution(CALL_BUCKETS)
        self.commit_s = Distribution(COMMIT_BUCKETS)

    def add(self, turn: Turn) -> None:
        """Count one committed turn."""
        self.turns[turn.dialect, turn.finish_reason] += 1
        self.prompt_tokens += turn.prompt_len
        self.sampled_tokens += len(turn.sampled_ids)
        if turn.fork_reason:
            self.forks[turn.fork_reason] += 1
        if turn.dispatched_at > 0:
            self.engine_s.observe(turn.completed_at - turn.dispatched_at)
            if turn.gate_entered_at > 0:
                self.queue_s.observe(turn.dispatched_at - turn.gate_entered_at)
            if turn.first_token_at > 0:
                self.first_token_s.observe(turn.first_token_at - turn.dispatched_at)
        if turn.committed_at > 0:
            self.commit_s.observe(turn.committed_at - turn.completed_at)


class SessionTally:
    """What the turns of one session add up to so far.

    Args:
        session: whose.
        known: its events and turns until now count in no totals (they are of an earlier process's life).
    """

    def __init__(self, session: Session, *, known: bool = False) -> None:
        self.id = session.id
        self.labels = dict(session.labels)
        self.created_at = session.created_at
        self.state = session.state
        self.turns = 0
        self.delivered = 0
        self.prompt_tokens = 0
        self.sampled_tokens = 0
        self.forks: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.fates: dict[str, int] | None = None
        """Sampled tokens by the reason why they are not trained, ``""`` the trained; None while the session is open."""
        self.in_flight = 0
        self.policy_version = 0
        self.revision = 0
        """Grows whenever something else here has changed."""
        self.sealed_at = 0.0
        self._undelivered: list[Turn] = []
        if known:
            self.read(session, Totals())

    def read(self, session: Session, totals: Totals) -> None:
        """Take in what the session did since the last time."""
        if self.in_flight != session.delivery.in_flight:
            self.in_flight = session.delivery.in_flight
            self.revision += 1
        if len(session.graph) > self.turns:
            self.revision += 1
            self._add(islice(session.graph, self.turns, None), totals)
        if self._undelivered:
            waiting = [turn for turn in self._undelivered if not turn.delivered]
            arrived = len(self._undelivered) - len(waiting)
            self._undelivered = waiting
            self.delivered += arrived
            totals.delivered += arrived
        for kind, count in session.events.items():
            if count > self.events[kind]:
                totals.events[kind] += count - self.events[kind]
                self.events[kind] = count

    def seal(self, session: Session, fates: dict[str, int], totals: Totals) -> None:
        """Take in the rest, and what became of the sampled tokens."""
        self.read(session, totals)
        self.state, self.sealed_at, self.in_flight = "sealed", time.time(), 0
        self.fates = fates
        self.revision += 1
        self._undelivered = []
        totals.sealed += 1
        for reason, count in fates.items():
            if reason:
                totals.masked_tokens[reason] += count
            else:
                totals.trained_tokens += count

    def _add(self, turns: Iterable[Turn], totals: Totals) -> None:
        for turn in turns:
            self.turns += 1
            self.prompt_tokens += turn.prompt_len
            self.sampled_tokens += len(turn.sampled_ids)
            self.policy_version = turn.policy_version_end
            if turn.fork_reason:
                self.forks[turn.fork_reason] += 1
            self._undelivered.append(turn)
            totals.add(turn)
