"""Ends background tasks, also those that do not notice the first time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

logger = logging.getLogger(__name__)

AGAIN_S = 1.0


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel ``tasks`` and wait until each is over, whatever its outcome.

    A cancellation can get lost on its way: ``asyncio.wait_for`` before Python 3.12 returns the result instead when both
    come at once, and HTTP clients turn one into an answer or an error of theirs. So it is sent again, every
    ``AGAIN_S`` seconds.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        ended, left = await asyncio.wait(left, timeout=AGAIN_S)
        for task in ended:
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.debug("a task ended with an error while it was being ended: %r", error)
