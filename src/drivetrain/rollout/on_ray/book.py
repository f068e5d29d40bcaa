"""Which attempt of which rollout runs where, and which one counts: exactly one per rollout."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from drivetrain.rollout.config import EpisodeSpec

Outcome = Literal["counted", "lost"]
_Write = Callable[[bytes], object]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try of one rollout; ``number`` counts its tries from 1, ``place`` orders rollouts as they were given."""

    spec: EpisodeSpec
    place: int
    number: int
    node: str
    started_at: float


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``attempts.jsonl``: how an attempt ended.

    ``counted``: its result is the rollout's. ``lost``: its node died; ``why`` says what was heard last. What such an
    attempt had recorded went with the node's journal. ``session_id`` is empty where there is none.
    """

    rollout_id: str
    attempt: int
    node: str
    outcome: Outcome
    why: str = ""
    session_id: str = ""
    started_at: float
    ended_at: float


class Book:
    """Every rollout is waiting, running in one attempt, or done. Not safe for threads.

    Args:
        specs: what is to be run, in the order in which it is started.
        max_attempts: how many nodes may be lost under one rollout.
        write: gets a JSON line for every attempt that ends (:class:`Ended`).
    """

    def __init__(self, specs: Sequence[EpisodeSpec], *, max_attempts: int, write: _Write = lambda _: None) -> None:
        self._waiting = deque(enumerate(specs))
        self._tries: Counter[int] = Counter()
        self._running: dict[int, Attempt] = {}
        self._left = len(self._waiting)
        self._max_attempts = max_attempts
        self._write = write
        self.outcomes: Counter[Outcome] = Counter()
        """How the attempts so far ended."""

    @property
    def done(self) -> bool:
        """Whether every rollout has ended."""
        return self._left == 0

    @property
    def waiting(self) -> int:
        """Rollouts that no node runs."""
        return len(self._waiting)

    def running_on(self, node: str) -> list[Attempt]:
        """Attempts that are under way on a node."""
        return [attempt for attempt in self._running.values() if attempt.node == node]

    def take(self, node: str) -> Attempt | None:
        """The next rollout, to be run on this node; None when none waits."""
        if not self._waiting:
            return None
        place, spec = self._waiting.popleft()
        self._tries[place] += 1
        attempt = Attempt(spec=spec, place=place, number=self._tries[place], node=node, started_at=time.time())
        self._running[place] = attempt
        return attempt

    def finish(self, attempt: Attempt, session_id: str) -> None:
        """An attempt's result is there, and is the rollout's.

        Raises:
            ValueError: it does not run: its result would count twice.
        """
        self._leave(attempt)
        self._left -= 1
        self._end(attempt, "counted", session_id=session_id)

    def lose(self, attempt: Attempt, why: str) -> bool:
        """The node of an attempt is gone. True when that was the last attempt of its rollout, which then has ended;
        otherwise the rollout waits again, before all others.

        Raises:
            ValueError: it does not run.
        """
        self._leave(attempt)
        self._end(attempt, "lost", why=why)
        last = attempt.number >= self._max_attempts
        if last:
            self._left -= 1
        else:
            self._waiting.appendleft((attempt.place, attempt.spec))
        return last

    def _leave(self, attempt: Attempt) -> None:
        if self._running.get(attempt.place) is not attempt:
            raise ValueError(f"attempt {attempt.number} of {attempt.spec.rollout_id} does not run")
        del self._running[attempt.place]

    def _end(self, attempt: Attempt, outcome: Outcome, *, why: str = "", session_id: str = "") -> None:
        self.outcomes[outcome] += 1
        ended = Ended(
            rollout_id=attempt.spec.rollout_id,
            attempt=attempt.number,
            node=attempt.node,
            outcome=outcome,
            why=why,
            session_id=session_id,
            started_at=round(attempt.started_at, 3),
            ended_at=round(time.time(), 3),
        )
        self._write(msgspec.json.encode(ended) + b"\n")


def read_attempts(path: Path) -> list[Ended]:
    """The lines of an ``attempts.jsonl``."""
    return [msgspec.json.decode(line, type=Ended) for line in path.read_bytes().splitlines()]
