"""The state that every reader of the dashboard follows: what changed after a version, whoever asks, however late.

Nothing is queued for a reader. It has seen a version; what it gets next is everything that is newer, once, in its
latest form. A slow reader thus costs no more than a fast one, and one that comes back continues where it was.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import Iterable

import msgspec

from drivetrain.dashboard.model import Event, Point, RolloutView, RunView, Summary

_MOST_GONE = 2000
_MOST_POINTS = 300


class Board:
    """Rollouts, a summary and a series, each with the version at which it last changed.

    Args:
        run: what they belong to.

    Attributes:
        epoch: names this life of the board; an event's id is ``epoch-version``.
        version: grows with every :meth:`commit` that changed something.
    """

    def __init__(self, run: RunView) -> None:
        self.run = run
        self.epoch = secrets.token_hex(4)
        self.version = 0
        self._rollouts: OrderedDict[str, tuple[int, RolloutView]] = OrderedDict()  # the latest changed last
        self._gone: deque[tuple[int, str]] = deque()
        self._floor = 0  # whoever has seen less has missed some that are gone
        self._points: deque[tuple[int, Point]] = deque(maxlen=_MOST_POINTS)
        self._summary = Summary()
        self._summary_version = 0
        self._run_version = 0
        self._news = asyncio.Event()
        self._encoded: tuple[str, bytes] = ("", b"")
        self.closed = False

    def __len__(self) -> int:
        return len(self._rollouts)

    def rollouts(self) -> Iterable[RolloutView]:
        """All of them, those that changed the longest ago first."""
        return (view for _, view in self._rollouts.values())

    def get(self, rollout_id: str) -> RolloutView | None:
        """A rollout as it was last put."""
        found = self._rollouts.get(rollout_id)
        return None if found is None else found[1]

    def put(self, view: RolloutView) -> None:
        """A rollout's present state; nothing happens when it is what is known."""
        known = self._rollouts.get(view.id)
        if known is None or (known[1] is not view and known[1] != view):
            self._rollouts[view.id] = (self.version + 1, view)
            self._rollouts.move_to_end(view.id)

    def drop(self, rollout_id: str) -> None:
        """Forget a rollout."""
        if self._rollouts.pop(rollout_id, None) is not None:
            self._gone.append((self.version + 1, rollout_id))
            while len(self._gone) > _MOST_GONE:
                self._floor = self._gone.popleft()[0]

    def point(self, point: Point) -> None:
        """Go on with the series."""
        self._points.append((self.version + 1, point))

    def summarize(self, summary: Summary) -> None:
        """The present summary."""
        if summary != self._summary:
            self._summary, self._summary_version = summary, self.version + 1

    def describe(self, run: RunView) -> None:
        """What the rollouts belong to, if that has changed."""
        if run != self.run:
            self.run, self._run_version = run, self.version + 1

    @property
    def summary(self) -> Summary:
        """As it was last given."""
        return self._summary

    def commit(self) -> bool:
        """Publish what was put since the last time; whether there was anything."""
        newest = max(
            next((version for version, _ in reversed(self._rollouts.values())), 0),
            self._gone[-1][0] if self._gone else 0,
            self._points[-1][0] if self._points else 0,
            self._summary_version,
            self._run_version,
        )
        if newest <= self.version:
            return False
        self.version += 1
        self._wake()
        return True

    def close(self) -> None:
        """Nothing more will come: readers end after what they have not seen."""
        self.closed = True
        self._wake()

    async def newer(self, seen: int, timeout_s: float) -> bool:
        """Wait until there is more than ``seen``, or the board is closed; False when the time is up."""
        if self.version > seen or self.closed:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def resume(self, event_id: str) -> int | None:
        """The version that an event's id names, if what came after it can still be told; None: begin anew."""
        epoch, _, number = event_id.partition("-")
        if epoch != self.epoch or not (number.isascii() and number.isdigit()) or len(number) > 15:
            return None
        seen = int(number)
        return seen if self._floor <= seen <= self.version else None

    def event(self, seen: int | None) -> tuple[str, bytes]:
        """Id and JSON of what is newer than ``seen``; a snapshot for None, and where too much is gone meanwhile."""
        name = f"{seen}-{self.version}"
        if self._encoded[0] != name:  # readers in step share it
            self._encoded = (name, msgspec.json.encode(self.since(seen)))
        return f"{self.epoch}-{self.version}", self._encoded[1]

    def is_snapshot(self, seen: int | None) -> bool:
        """Whether what follows ``seen`` is told as a snapshot."""
        return seen is None or seen < self._floor

    def since(self, seen: int | None) -> Event:
        """See :meth:`event`."""
        if seen is None or self.is_snapshot(seen):
            return Event(
                run=self.run,
                rollouts=[view for _, view in self._rollouts.values()],
                points=[point for _, point in self._points],
                summary=self._summary,
            )
        changed: list[RolloutView] = []
        for version, view in reversed(self._rollouts.values()):
            if version <= seen:
                break
            changed.append(view)
        return Event(
            run=self.run if self._run_version > seen else None,
            rollouts=changed[::-1],
            gone=[name for version, name in self._gone if version > seen and name not in self._rollouts],
            points=[point for version, point in self._points if version > seen],
            summary=self._summary if self._summary_version > seen else None,
        )

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
