"""What one gateway takes on at once, over all its sessions, and how it stops taking on more.

A request is admitted before its body is read: what is too much is refused (503, Retry-After) while it costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.gateway.refusal import Refusal
from drivetrain.journal.writer import PATIENCE_S

_MIB = 1 << 20
_GIB = 1 << 30


class GatewayLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a whole gateway; None = no limit. Those of one session are in its policy.

    ``max_sessions`` open at once (429 for whoever opens one more). ``max_retained_bytes`` of the turns of all open
    sessions: from there on none can be opened (503) until others are sealed, and those that are open go on; counted as
    :func:`~drivetrain.gateway.limits.retained_bytes` does, so that the process has about twice as much.
    ``max_requests`` being served, and ``max_body_bytes`` of the bodies of these together (503). ``max_journal_bytes``
    of the journal file: from 90 % on no session can be opened, and what does not fit is refused (503).
    ``journal_patience_s``: how long calls wait for a journal that takes nothing because the disk is full, before they
    are refused (503).
    """

    max_sessions: int | None = 4096
    max_retained_bytes: int | None = 8 * _GIB
    max_requests: int | None = 4096
    max_body_bytes: int | None = _GIB
    max_journal_bytes: int | None = 64 * _GIB
    journal_patience_s: float = PATIENCE_S

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; it must be positive.", fix="Leave it out for the default.")


class Admission:
    """Requests that are being served.

    Args:
        limits: how many there may be.
    """

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing: float | None = None
        self.requests = 0
        """Requests being served."""
        self.body_bytes = 0
        """Size of their bodies; where one does not say its size, the most it may have."""

    @asynccontextmanager
    async def admit(self, body_bytes: int) -> AsyncIterator[None]:
        """Serve one request inside.

        Raises:
            Refusal: ``overloaded`` or ``shutting_down``.
        """
        self._check(body_bytes)
        self.requests += 1
        self.body_bytes += body_bytes
        self._idle.clear()
        try:
            yield
        finally:
            self.requests -= 1
            self.body_bytes -= body_bytes
            if not self.requests:
                self._idle.set()

    @property
    def closing(self) -> bool:
        """Whether nothing is admitted any more."""
        return self._closing is not None

    async def drain(self, deadline_s: float) -> int:
        """Admit nothing from now on and wait until what is being served has ended; how much of it has not in time.

        Whoever comes meanwhile is told to come back when the deadline is over: another process may be serving the same
        journal, and the same keys, by then.
        """
        self._closing = asyncio.get_running_loop().time() + deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        return self.requests

    def _check(self, body_bytes: int) -> None:
        if self._closing is not None:
            left = self._closing - asyncio.get_running_loop().time()
            raise Refusal(
                "shutting_down",
                "the gateway is shutting down.",
                fix="Try again; the key stays valid.",
                retry_after_s=max(1.0, left),
            )
        requests, size = self._limits.max_requests, self._limits.max_body_bytes
        if requests is not None and self.requests >= requests:
            raise Refusal("overloaded", f"{self.requests} requests are being served.", retry_after_s=5)
        if size is not None and self.requests and self.body_bytes + body_bytes > size:
            what = f"requests with {self.body_bytes} bytes are being served; {body_bytes} more are too much."
            raise Refusal("overloaded", what, retry_after_s=5)
