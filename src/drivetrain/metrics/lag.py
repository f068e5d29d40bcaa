"""How late is the event loop? A task that sleeps for a moment, and measures by how much it overslept."""

from __future__ import annotations

import asyncio

from drivetrain.metrics.tally import LAG_BUCKETS, Distribution

_EVERY_S = 0.5


class LoopLag:
    """Runs until it is stopped.

    Attributes:
        seconds: by how much each wake-up was late.
        last: the latest of them.
    """

    def __init__(self) -> None:
        self.seconds = Distribution(LAG_BUCKETS)
        self.last = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Measure on the running loop; idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._measure())

    async def stop(self) -> None:
        """End the task; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            self.last = max(0.0, loop.time() - due)
            self.seconds.observe(self.last)
