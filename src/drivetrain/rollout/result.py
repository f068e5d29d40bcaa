"""What one episode leaves in memory; everything else is in the run directory."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from drivetrain.rollout.cross_check import LogFinding
from drivetrain.trace.sample import HarnessTrace

RolloutStatus = Literal["ok", "truncated", "infra_error", "unscorable"]


class RolloutResult(msgspec.Struct, kw_only=True):
    """One rollout: its rows, its reward and how it ended.

    ``status`` (design invariant 8): ``ok`` = the harness ended by itself; ``truncated`` = a budget, deadline or token
    limit ended it (still graded); ``infra_error`` = machinery failed, ``reward`` is None; ``unscorable`` = it ran but
    could not be graded, ``reward`` is None. ``rows`` may be empty. ``group`` numbers rollouts of one task and agent
    from 0. ``log_findings`` are differences between the harness's own log and the recorded turns; they change neither
    reward nor rows. ``sampled_tokens`` counts what was sampled by the reason why it is not trained; ``""`` counts what
    is.
    """

    rollout_id: str
    session_id: str
    task_id: str
    agent: str
    group: int
    status: RolloutStatus
    reward: float | None
    rows: list[HarnessTrace] = []
    turns: int = 0
    fork_reasons: dict[str, int] = {}
    sampled_tokens: dict[str, int] = {}
    log_findings: list[LogFinding] = []
    error: str = ""
    timings: dict[str, float] = {}
    grade: dict[str, Any] = {}
    harness: dict[str, Any] = {}
