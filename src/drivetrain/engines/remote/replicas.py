"""Which of several equal servers a call goes to: one session, one server (its prefix cache), while that one is up."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence

from drivetrain.engines.protocol import EngineError

_log = logging.getLogger(__name__)


class Replica:
    """One server. ``in_flight`` counts calls that it works on now."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.in_flight = 0
        self.failures = 0
        """In a row; 0 = it is up."""
        self.down_until = 0.0

    def __repr__(self) -> str:
        return f"<Replica {self.url}>"

    @property
    def is_down(self) -> bool:
        """It failed and nothing has come back from it since."""
        return self.failures > 0


class Replicas:
    """Order of choice and state of health.

    A server that failed is left alone for a while that doubles with every failure; then whoever comes next asks after
    its health, and if there is an answer it is used as before.

    Args:
        urls: of the servers (:func:`~drivetrain.engines.remote.address.base_urls`).
        first_backoff_s, last_backoff_s: how long a failed server is left alone, at first and at most.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        first_backoff_s: float = 0.5,
        last_backoff_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.all = tuple(Replica(url) for url in urls)
        self._first_s = first_backoff_s
        self._last_s = last_backoff_s
        self._clock = clock

    def order(self, session_id: str = "") -> list[Replica]:
        """All servers, best first, down or not.

        Calls of one session get the same order (rendezvous hashing: a server that comes or goes moves only its own
        sessions); calls without a session go where the least is going on.
        """
        if session_id:
            return sorted(self.all, key=lambda replica: _weight(session_id, replica.url), reverse=True)
        return sorted(self.all, key=lambda replica: replica.in_flight)

    def left_alone(self, replica: Replica) -> bool:
        """It is down, and it is not yet time to ask after it."""
        return replica.is_down and self._clock() < replica.down_until

    def failed(self, replica: Replica, why: str, *, wait_s: float | None = None) -> None:
        """It could not be reached, or says that it cannot work; ``wait_s`` is what it asked for."""
        now = self._clock()
        if self.left_alone(replica):
            return  # calls that were under way when it went down
        pause = min(self._first_s * 2**replica.failures, self._last_s)
        replica.failures = min(replica.failures + 1, 32)
        replica.down_until = now + (pause if wait_s is None else min(max(wait_s, pause), self._last_s))
        _log.warning("engine server %s is down (%s); left alone for %.1f s", replica.url, why, replica.down_until - now)

    def answered(self, replica: Replica) -> None:
        """It works."""
        if replica.is_down:
            _log.warning("engine server %s is back", replica.url)
        replica.failures = 0
        replica.down_until = 0.0

    def none_left(self, why: str = "") -> EngineError:
        """The error when every server was tried or is being left alone; its Retry-After is when one is tried again."""
        soonest = min(replica.down_until for replica in self.all)
        count = "the engine server is" if len(self.all) == 1 else f"all {len(self.all)} engine servers are"
        return EngineError(
            f"{count} down{f': {why}' if why else '.'}",
            fix="Start it again.",
            status=503,
            kind="unreachable",
            retry_after_s=max(0.0, soonest - self._clock()),
        )


def _weight(session_id: str, url: str) -> bytes:
    return hashlib.blake2b(f"{session_id}\0{url}".encode(), digest_size=8).digest()
