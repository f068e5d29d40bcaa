"""How a journal fails."""

from __future__ import annotations

from drivetrain.errors import InfrastructureError


class JournalError(InfrastructureError):
    """The journal could not commit; the reply must not be sent."""


class JournalBlocked(JournalError):
    """The storage took nothing for as long as a caller may be kept waiting: no space, a failing disk, a size limit.

    Nothing is lost by it, and the journal goes on trying: the same call may succeed after ``retry_after_s``.
    """

    retry_after_s = 30.0
