"""What an export says about the rollout itself."""

from __future__ import annotations

import msgspec

from drivetrain.trace.provenance import SessionProvenance


class RolloutInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Identity, origin and outcome of one rollout. ``reward`` None = ungraded, never 0.0 (design invariant 8)."""

    rollout_id: str
    session_id: str = ""
    task_id: str = ""
    agent: str = ""
    agent_version: str = "unknown"
    group: int = 0
    status: str = "ok"
    reward: float | None = None
    provenance: SessionProvenance = msgspec.field(default_factory=SessionProvenance)
