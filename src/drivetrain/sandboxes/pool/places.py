"""Who may have a sandbox: a limited number of places and one waiting line."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from drivetrain.sandboxes.pool.shelf import Shelf, Warm
from drivetrain.sandboxes.protocol import SandboxStartError, SandboxTimeout


class SandboxPoolFull(SandboxTimeout):
    """No sandbox of the pool was closed in time to make room for one more."""


class _Waiter:
    """A request for a warm sandbox or a place to start one; the future gets the one, or None for the other."""

    def __init__(self, shelf: Shelf, ttl_s: float) -> None:
        self.shelf = shelf
        self.ttl_s = ttl_s
        self.granted: asyncio.Future[Warm | None] = asyncio.get_running_loop().create_future()


class Places:
    """``taken`` of ``limit`` places; each is held by a start, a warm sandbox, a probe, a user or a removal.

    Args:
        limit: places.
        find: takes a warm sandbox (and with it its place) off its shelf; None when none fits.
        give_back: takes back what was granted to somebody who went away.
        changed: called when the line has changed.
    """

    def __init__(
        self,
        limit: int,
        *,
        find: Callable[[Shelf, float], Warm | None],
        give_back: Callable[[Warm | None], None],
        changed: Callable[[], None],
    ) -> None:
        self.limit = limit
        self.taken = 0
        self.waited = 0
        self.timeouts = 0
        self._line: deque[_Waiter] = deque()
        self._find = find
        self._give_back = give_back
        self._changed = changed

    @property
    def waiting(self) -> int:
        """Requests in the line."""
        return len(self._line)

    @property
    def free(self) -> bool:
        """Whether one more may be started."""
        return self.taken < self.limit

    async def wait(self, shelf: Shelf, ttl_s: float, timeout_s: float | None, *, first: bool) -> Warm | None:
        """A warm sandbox that lives ``ttl_s`` seconds more, or None for a place to start one in; the caller's now.

        ``first``: it had its turn already, and what it got was no good.

        Raises:
            SandboxPoolFull: not within ``timeout_s``.
            SandboxStartError: the line was dissolved.
        """
        waiter = _Waiter(shelf, ttl_s)
        self._line.insert(0 if first else len(self._line), waiter)
        self._changed()
        if not waiter.granted.done():
            self.waited += 1
            try:
                await asyncio.wait([waiter.granted], timeout=timeout_s)
            except asyncio.CancelledError:
                self._leave(waiter)
                raise
            if not waiter.granted.done():
                self._leave(waiter)
                self.timeouts += 1
                raise self.full()
        return waiter.granted.result()

    def _leave(self, waiter: _Waiter) -> None:
        """Somebody goes away; what was granted at the same moment goes to the next."""
        if not waiter.granted.done():
            waiter.granted.cancel()
            self._line.remove(waiter)
        elif not waiter.granted.cancelled() and waiter.granted.exception() is None:
            self._give_back(waiter.granted.result())
        self._changed()

    def serve(self) -> None:
        """Grant what there is, first come, first served."""
        while self._line:
            head = self._line[0]
            warm = self._find(head.shelf, head.ttl_s)
            if warm is None:
                if not self.free:
                    return
                self.taken += 1
            self._line.popleft()
            head.granted.set_result(warm)

    def dissolve(self, error: Callable[[], SandboxStartError]) -> None:
        """Send everybody away."""
        while self._line:
            granted = self._line.popleft().granted
            granted.set_exception(error())
            granted.exception()  # one that is cancelled at the same time never asks

    def full(self) -> SandboxPoolFull:
        """What somebody who waited in vain is told."""
        return SandboxPoolFull(
            f"There was no room for one more sandbox in time: {self.taken} of {self.limit} places are taken, "
            f"{self.waiting} more requests wait.",
            fix="Raise max_total if the machine bears it, close sandboxes sooner, or run fewer at once.",
        )
