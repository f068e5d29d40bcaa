"""Rollouts of this process: a run that is going on, or the sessions of a gateway whose rollouts run elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from drivetrain.dashboard.board import Board
from drivetrain.dashboard.model import EngineView, Point, RolloutView, Summary, Trouble
from drivetrain.dashboard.rate import Latency, Rate
from drivetrain.gateway.core import Gateway
from drivetrain.metrics.families import size_of
from drivetrain.metrics.lag import LoopLag
from drivetrain.metrics.tally import SessionTally
from drivetrain.metrics.watch import GatewayWatch
from drivetrain.rollout.config import EpisodeSpec
from drivetrain.rollout.episode import Phase
from drivetrain.rollout.result import RolloutResult

MOST_SEALED = 5000
"""Sessions that have ended and are still shown, where nobody says which rollouts there will be."""


class GatewaySource:
    """What a gateway says: the numbers of its engine, and a rollout for each session.

    Args:
        watch: of the gateway; closed with this.
        lag: of its event loop, measured by whoever serves the page.
        most_sealed: sealed sessions that are kept.
    """

    def __init__(self, watch: GatewayWatch, lag: LoopLag, *, most_sealed: int = MOST_SEALED) -> None:
        self._watch = watch
        self._lag = lag
        self._most_sealed = most_sealed
        self._fresh: list[SessionTally] = []
        self._told: dict[str, int] = {}
        self._sealed: deque[str] = deque()
        self._left_out = 0
        self._rate = Rate()
        self._latency = Latency(watch.totals.engine_s)
        self._since: dict[str, float] = {}
        watch.on_sealed = self._fresh.append

    async def update(self, board: Board, summary: Summary) -> None:
        """See :class:`~drivetrain.dashboard.source.Source`."""
        self.numbers(board, summary)
        for tally in self.changed():
            view = with_tally(RolloutView(id=tally.id), tally)
            view.phase = "sealed" if tally.state == "sealed" else "open"
            view.ended = tally.sealed_at
            board.put(view)
            if tally.state == "sealed":
                self._sealed.append(tally.id)
        while len(self._sealed) > self._most_sealed:
            board.drop(self._sealed.popleft())
            self._left_out += 1
        summary.left_out = self._left_out

    def numbers(self, board: Board, summary: Summary) -> None:
        """Read the gateway: its open sessions' tallies, the series and all that is no rollout."""
        self._watch.read()
        gateway, totals, now = self._watch.gateway, self._watch.totals, time.monotonic()
        status = gateway.fence.status()
        p50, p95 = self._latency.at(now, (0.5, 0.95))
        summary.engine = EngineView(
            in_flight=status.in_flight,
            waiting=status.waiting,
            context=gateway.engine.context_length,
            p50=p50,
            p95=p95,
        )
        summary.fence = status
        summary.sessions = gateway.sessions.by_state()
        summary.refusals = dict(gateway.refused)
        summary.events = dict(totals.events)
        summary.journal_bytes = size_of(gateway.journal.path)
        summary.journal_blocked = gateway.journal.blocked
        summary.lag = round(self._lag.last, 3)
        summary.stopping = gateway.admission.closing
        summary.troubles = self._troubles(gateway, status.failed)
        board.point(Point(round(time.time(), 1), round(self._rate.at(now, totals.sampled_tokens), 1), status.in_flight))

    def changed(self) -> list[SessionTally]:
        """Of the sessions in which something happened since this was last asked; those that were sealed come last."""
        fresh = list(self._fresh)
        self._fresh.clear()
        opened = [each for each in self._watch.open.values() if self._told.get(each.id) != each.revision]
        self._told |= {each.id: each.revision for each in opened}
        for each in fresh:
            self._told.pop(each.id, None)
        return [*opened, *fresh]

    def close(self) -> None:
        """See :class:`~drivetrain.dashboard.source.Source`."""
        self._watch.close()

    def _troubles(self, gateway: Gateway, failed: str) -> list[Trouble]:
        present = {"fence": failed, "journal": gateway.journal.blocked}
        for kind, what in present.items():
            if not what:
                self._since.pop(kind, None)
            else:
                self._since.setdefault(kind, time.time())
        return [Trouble(at=self._since[kind], what=what, kind=kind) for kind, what in present.items() if what]


class RunSource:
    """A run of this process.

    Args:
        specs: every rollout that is to be run.
        running: what each that has begun is at (:attr:`drivetrain.rollout.episode.EpisodeRunner.running`).
        gateway: the run's gateway; None for reference agents.

    Attributes:
        finished: call it with each result.
    """

    def __init__(
        self, specs: Iterable[EpisodeSpec], running: Mapping[str, Phase], gateway: GatewaySource | None = None
    ) -> None:
        self._views = {
            spec.rollout_id: RolloutView(
                id=spec.rollout_id, task=spec.task_id, agent=spec.agent, group=spec.group, phase="queued"
            )
            for spec in specs
        }
        self._running = running
        self._gateway = gateway

    def finished(self, result: RolloutResult) -> None:
        """A rollout has ended."""
        before = self._views.get(result.rollout_id, RolloutView(id=result.rollout_id))
        self._views[result.rollout_id] = with_result(before, result, ended=time.time())

    async def update(self, board: Board, summary: Summary) -> None:
        """See :class:`~drivetrain.dashboard.source.Source`."""
        if self._gateway is not None:
            self._gateway.numbers(board, summary)
            for tally in self._gateway.changed():
                name = tally.labels.get("rollout", tally.id)
                view = self._views.get(name)
                if view is not None and view.session in ("", tally.id):
                    self._views[name] = with_tally(view, tally)
        for name, phase in self._running.items():
            view = self._views[name]
            if view.phase not in (phase, "done"):
                started = view.started or time.time()
                self._views[name] = msgspec.structs.replace(view, phase=phase, started=started)
        for view in self._views.values():
            board.put(view)
        running = list(self._running.values())
        summary.sandboxes = {"agent": len(running), "grader": running.count("grading")}
        summary.finished = all(view.phase == "done" for view in self._views.values())

    def close(self) -> None:
        """See :class:`~drivetrain.dashboard.source.Source`."""
        if self._gateway is not None:
            self._gateway.close()


def with_tally(view: RolloutView, tally: SessionTally) -> RolloutView:
    """A rollout with what its session's turns add up to."""
    labels = tally.labels
    group = labels.get("group", "")
    changed = msgspec.structs.replace(
        view,
        session=tally.id,
        task=view.task or labels.get("task", ""),
        agent=view.agent or labels.get("agent", ""),
        group=view.group if view.group is not None or not group.isdecimal() else int(group),
        turns=tally.turns,
        prompt=tally.prompt_tokens,
        sampled=tally.sampled_tokens,
        forks=dict(tally.forks),
        calls=tally.in_flight,
        policy=tally.policy_version if tally.turns else None,
        started=view.started or tally.created_at,
    )
    return changed if tally.fates is None else with_fates(changed, tally.fates)


def with_result(view: RolloutView, result: RolloutResult, *, ended: float) -> RolloutView:
    """A rollout that has ended."""
    changed = msgspec.structs.replace(
        view,
        session=result.session_id,
        task=result.task_id,
        agent=result.agent,
        group=result.group,
        phase="done",
        status=result.status,
        reward=result.reward,
        turns=result.turns,
        forks=result.fork_reasons,
        calls=0,
        started=view.started or ended - result.timings.get("total", 0.0),
        ended=ended,
        error=result.error[:2000],
    )
    return with_fates(changed, result.sampled_tokens) if result.sampled_tokens else changed


def with_fates(view: RolloutView, fates: Mapping[str, int]) -> RolloutView:
    """A rollout whose sampled tokens are known by the reason why they are not trained, ``""`` the trained."""
    masked = {reason: count for reason, count in fates.items() if reason and count}
    return msgspec.structs.replace(view, trained=fates.get("", 0), masked=masked, sampled=sum(fates.values()))
