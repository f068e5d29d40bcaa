"""Words of the weight-sync gate: what can be asked of it, what it answers, how it fails."""

from __future__ import annotations

from typing import Literal

import msgspec

from drivetrain.engines.fingerprint import Fingerprint
from drivetrain.engines.protocol import EngineError
from drivetrain.errors import ConfigError, InfrastructureError

PauseMode = Literal["drain", "hold"]
"""``drain``: calls in flight finish first. ``hold``: the engine keeps them between two steps and they straddle."""
OnDeadline = Literal["error", "hold", "abort"]
"""What happens to calls that a drain did not see finish in time: ``error`` re-opens the gate and raises."""
FenceState = Literal["open", "draining", "closed"]


class FenceBusy(ConfigError):
    """The gate is not in the state that this needs, or somebody else has paused it."""


class FenceTimeout(InfrastructureError):
    """A pause did not come about in time. The gate is open again and the weights must not be touched.

    ``in_flight`` engine calls were still running.
    """

    def __init__(self, in_flight: int, deadline_s: float) -> None:
        super().__init__(
            f"{in_flight} engine calls were still running {deadline_s:g} s after the pause was asked for.",
            fix="Allow more time, or choose what becomes of them: on_deadline='hold' (if the engine can) or 'abort'.",
        )
        self.in_flight = in_flight


class FenceFailed(EngineError):
    """What a call gets that meets a pause which went wrong; worth a retry."""


class Passage(msgspec.Struct):
    """One engine call's way through the gate.

    ``entered_at`` is when it came to the gate and ``dispatched_at`` when it was let through, seconds since the epoch;
    ``policy_version`` is the engine's at that moment (case row E1).
    """

    entered_at: float
    dispatched_at: float = 0.0
    policy_version: int = 0


class FenceCounts(msgspec.Struct):
    """Since the start: pauses that came about, calls let through, calls that had to wait, calls aborted, drains that
    missed their deadline, pauses that failed or were never ended."""

    pauses: int = 0
    passed: int = 0
    waited: int = 0
    aborted: int = 0
    timeouts: int = 0
    failed: int = 0


class FenceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The gate now. ``owner`` and ``mode`` are empty while it is open; ``failed`` says why a pause went wrong; ``held``
    whether the engine holds calls."""

    state: FenceState
    policy_version: int
    waiting: int
    in_flight: int
    owner: str = ""
    mode: str = ""
    failed: str = ""
    held: bool = False
    paused_for_s: float = 0.0
    counts: FenceCounts


class Update(msgspec.Struct):
    """What the body of :meth:`Fence.paused` fills in: ``version`` of the weights when it is done, and for an engine
    behind a server what the trainer's own weights say of a fixed text."""

    version: int | None = None
    fingerprint: Fingerprint | None = None
