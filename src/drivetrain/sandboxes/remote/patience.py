"""Asks again, within bounds, what failed on the way."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from drivetrain.sandboxes.protocol import SandboxError, SandboxTimeout
from drivetrain.sandboxes.remote.transport import Busy, LinkLost

logger = logging.getLogger(__name__)

FIRST_S = 0.1
MOST_S = 8.0
PATIENCE_S = 90.0

Answer = TypeVar("Answer")


async def patiently(what: str, attempt: Callable[[], Awaitable[Answer]], *, patience_s: float = PATIENCE_S) -> Answer:
    """The first answer of ``attempt``, which must be safe to repeat.

    Waits between attempts: what the provider asks for, else a doubling time; both with jitter, so that many sandboxes
    do not come back at once.

    Raises:
        SandboxTimeout: no answer within ``patience_s`` seconds because the link kept failing.
        SandboxError: the provider still asked for patience then; or whatever else ``attempt`` raises.
    """
    until = time.monotonic() + patience_s
    pause = FIRST_S
    task = asyncio.current_task()
    assert task is not None
    cancellations = task.cancelling()
    while True:
        try:
            answer = await attempt()
            if task.cancelling() > cancellations:
                raise asyncio.CancelledError  # httpx and its kind may answer a cancelled call all the same
            return answer
        except (LinkLost, Busy) as error:
            asked = error.after_s if isinstance(error, Busy) else None
            if task.cancelling() > cancellations:
                raise asyncio.CancelledError from error
            delay = (asked if asked is not None else pause) * (1 + random.random() / 4)
            if time.monotonic() + delay > until:
                if isinstance(error, Busy):
                    raise SandboxError(
                        f"Could not {what}: the provider is busy or a quota is used up, for {patience_s:g} s now "
                        f"({error.what}).",
                        fix="Run fewer sandboxes at once or ask the provider for a higher limit.",
                    ) from error
                raise SandboxTimeout(
                    f"Could not {what} within {patience_s:g} s: {error.what}", fix="Check the network."
                ) from error
            logger.debug("%s: %s; again in %.1f s", what, error, delay)
            await asyncio.sleep(delay)
            pause = min(pause * 2, MOST_S)
