"""The weight-sync gate: engine calls pass through it, weights change while it is closed (design section 5, "Fence").

No HTTP here. A call that comes while the gate is not open waits inside :meth:`Fence.passing`; its client sees a slow
reply, because keep-alives are sent by whoever holds the connection.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from drivetrain.engines.protocol import Engine


class Passage(msgspec.Struct):
    """One engine call's way through the gate.

    ``entered_at`` is when it came to the gate and ``dispatched_at`` when it was let through, seconds since the epoch;
    ``policy_version`` is the engine's at that moment (case row E1).
    """

    entered_at: float
    dispatched_at: float = 0.0
    policy_version: int = 0


class Fence:
    """The gate in front of one engine.

    Args:
        engine: whose calls pass.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[Passage]:
        """Wait until the gate is open, then run one engine call inside."""
        passage = Passage(time.time())
        passage.dispatched_at = time.time()
        passage.policy_version = self._engine.policy_version
        yield passage
