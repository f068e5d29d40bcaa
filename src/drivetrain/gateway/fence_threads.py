"""The gate for a trainer in another thread than the gateway's event loop (TRL calls synchronously)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from drivetrain.engines.fingerprint import Fingerprint
from drivetrain.errors import ConfigError
from drivetrain.gateway.fence import Fence
from drivetrain.gateway.fence_types import FenceStatus, OnDeadline, PauseMode, Update

T = TypeVar("T")


class ThreadFence:
    """:class:`~drivetrain.gateway.fence.Fence` for blocking callers; arguments and errors are the same.

    Args:
        fence: the gateway's.
        loop: the event loop that serves the gateway, running in another thread.

    Raises (every method):
        ConfigError: the loop is not running, or the caller is on it and would wait for itself.
    """

    def __init__(self, fence: Fence, loop: asyncio.AbstractEventLoop) -> None:
        self._fence = fence
        self._loop = loop

    def pause(
        self,
        mode: PauseMode = "drain",
        *,
        deadline_s: float = 60.0,
        on_deadline: OnDeadline = "error",
        owner: str = "trainer",
    ) -> FenceStatus:
        """See :meth:`Fence.pause`."""
        return self._wait(self._fence.pause(mode, deadline_s=deadline_s, on_deadline=on_deadline, owner=owner))

    def resume(
        self, policy_version: int, *, fingerprint: Fingerprint | None = None, owner: str = "trainer"
    ) -> FenceStatus:
        """See :meth:`Fence.resume`."""
        return self._wait(self._fence.resume(policy_version, fingerprint=fingerprint, owner=owner))

    def status(self) -> FenceStatus:
        """See :meth:`Fence.status`."""

        async def status() -> FenceStatus:
            return self._fence.status()

        return self._wait(status())

    @contextmanager
    def paused(
        self,
        mode: PauseMode = "drain",
        *,
        deadline_s: float = 60.0,
        on_deadline: OnDeadline = "error",
        owner: str = "",
    ) -> Iterator[Update]:
        """See :meth:`Fence.paused`; the body runs in the caller's thread."""
        inner = self._fence.paused(mode, deadline_s=deadline_s, on_deadline=on_deadline, owner=owner)

        async def enter() -> Update:
            return await inner.__aenter__()

        async def leave(*error: Any) -> None:
            await inner.__aexit__(*error)

        update = self._wait(enter())
        try:
            yield update
        except BaseException:
            self._wait(leave(*sys.exc_info()))
            raise
        else:
            self._wait(leave(None, None, None))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            inside = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            inside = False
        if inside or not self._loop.is_running():
            work.close()
            raise ConfigError(
                "the caller is on the gateway's event loop." if inside else "the gateway's event loop is not running.",
                fix="Use Gateway.fence there." if inside else "Start the gateway first.",
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # a KeyboardInterrupt in the trainer must not leave a pause in the making
            raise
