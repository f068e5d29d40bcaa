"""A gateway, observed from outside: nothing is done on the way of a call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from drivetrain.gateway.core import Gateway
from drivetrain.gateway.sessions import Session
from drivetrain.metrics.tally import SessionTally, Totals
from drivetrain.trace.sample import sampled_by_reason

_log = logging.getLogger(__name__)
Fates = Callable[[Session], dict[str, int]]
"""Sampled tokens of a session by the reason why they are not trained, ``""`` the trained."""


def default_fates(session: Session) -> dict[str, int]:
    """By the labels that are trained by default, without the rules of an agent's preset."""
    return sampled_by_reason(session.graph)


class GatewayWatch:
    """Sums of what a gateway's sessions do, from now on; close it to stop.

    Turns are read when :meth:`read` is called, and when a session is sealed; both on the gateway's event loop.

    Args:
        gateway: what is watched.
        fates: says what is trained.

    Attributes:
        totals: over all sessions.
        open: tallies of open sessions by id, as of the last read.
        on_sealed: is told of each session's last tally.
    """

    def __init__(self, gateway: Gateway, *, fates: Fates = default_fates) -> None:
        self.gateway = gateway
        self.totals = Totals()
        self.fates = fates
        self.on_sealed: Callable[[SessionTally], None] = lambda _: None
        self.open: dict[str, SessionTally] = {
            session.id: SessionTally(session, known=True) for session in gateway.sessions.open_sessions()
        }
        gateway.sessions.on_sealed.append(self._seal)

    def read(self) -> Mapping[str, SessionTally]:
        """Take in what happened since the last time; the tallies of the open sessions."""
        for session in self.gateway.sessions.open_sessions():
            self._tally(session).read(session, self.totals)
        return self.open

    def close(self) -> None:
        """Observe no more; idempotent."""
        if self._seal in self.gateway.sessions.on_sealed:
            self.gateway.sessions.on_sealed.remove(self._seal)

    def _tally(self, session: Session) -> SessionTally:
        tally = self.open.get(session.id)
        if tally is None:
            tally = self.open[session.id] = SessionTally(session)
            self.totals.opened += 1
        return tally

    def _seal(self, session: Session) -> None:
        tally = self._tally(session)
        try:
            fates = self.fates(session)
        except Exception:  # what observes a session must not be what breaks it
            _log.exception("the tokens of session %s could not be told apart", session.id)
            fates = {}
        tally.seal(session, fates, self.totals)
        self.open.pop(session.id, None)
        self.on_sealed(tally)
