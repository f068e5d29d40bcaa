"""What the dashboard shows, as data. The page's ``model.ts`` names the same fields."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from drivetrain.gateway.fence_types import FenceStatus

VERSION = 1
"""Of the events; a page of another version asks to be loaded again."""

Phase = Literal["queued", "starting", "agent", "grading", "done", "open", "sealed"]
"""``queued`` to ``done``: a rollout of a run. ``open`` and ``sealed``: a session whose rollout runs elsewhere."""
PHASES: tuple[Phase, ...] = ("queued", "starting", "agent", "grading", "done", "open", "sealed")


class RolloutView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One rollout. Times are seconds since the epoch, 0.0 = not known.

    ``status`` is empty until it has ended, and for sessions whose rollout runs elsewhere. ``reward`` None = ungraded.
    ``sampled`` counts sampled tokens; ``trained`` those of them that rows train and ``masked`` the others by reason,
    both known at the end only. ``calls`` are model calls being served now.
    """

    id: str
    session: str = ""
    task: str = ""
    agent: str = ""
    group: int | None = None
    phase: Phase = "queued"
    status: str = ""
    reward: float | None = None
    turns: int = 0
    prompt: int = 0
    sampled: int = 0
    trained: int | None = None
    masked: dict[str, int] = {}
    forks: dict[str, int] = {}
    calls: int = 0
    policy: int | None = None
    started: float = 0.0
    ended: float = 0.0
    error: str = ""


class RunView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the rollouts belong to. ``live``: it is going on in the process that serves the page."""

    name: str
    kind: Literal["rollout", "serve", "folder"] = "serve"
    live: bool = True
    path: str = ""
    model: str = ""
    engine: str = ""
    planned: int = 0
    started: float = 0.0
    config: dict[str, Any] = {}


class Reward(msgspec.Struct, kw_only=True):
    """Rewards so far: how many rollouts are graded, their mean, and how many have at least 1.0 or none."""

    graded: int = 0
    mean: float | None = None
    solved: int = 0
    ungraded: int = 0


class PassAt(msgspec.Struct, frozen=True, array_like=True):
    """pass@k: mean over ``tasks`` tasks that have k graded attempts by one agent."""

    k: int
    value: float
    tasks: int


class EngineView(msgspec.Struct, kw_only=True, omit_defaults=True):
    """``p50`` and ``p95`` of the latest engine calls, seconds; None before the first."""

    in_flight: int = 0
    waiting: int = 0
    context: int = 0
    p50: float | None = None
    p95: float | None = None


class Trouble(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that went wrong. ``rollout`` is empty where it is nobody's."""

    at: float
    what: str
    kind: str
    rollout: str = ""


class Summary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Everything that is one number or a few. ``stopping``: the gateway takes no new calls."""

    phases: dict[str, int] = {}
    statuses: dict[str, int] = {}
    reward: Reward = msgspec.field(default_factory=Reward)
    pass_at: list[PassAt] = []
    forks: dict[str, int] = {}
    turns: int = 0
    prompt: int = 0
    sampled: int = 0
    judged: int = 0
    masked: dict[str, int] = {}
    refusals: dict[str, int] = {}
    events: dict[str, int] = {}
    sessions: dict[str, int] = {}
    sandboxes: dict[str, int] = {}
    engine: EngineView | None = None
    fence: FenceStatus | None = None
    journal_bytes: int = 0
    journal_blocked: str = ""
    lag: float = 0.0
    stopping: bool = False
    troubles: list[Trouble] = []
    left_out: int = 0
    finished: bool = False


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A moment of the series: seconds since the epoch, sampled tokens per second, calls in flight."""

    at: float
    tokens_per_s: float
    in_flight: int


class Event(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Data of one server-sent event. ``run`` and all of ``rollouts`` and ``points`` are in a snapshot; a delta holds
    what has changed since the event whose id the reader had."""

    version: int = VERSION
    run: RunView | None = None
    rollouts: list[RolloutView] = []
    gone: list[str] = []
    points: list[Point] = []
    summary: Summary | None = None
