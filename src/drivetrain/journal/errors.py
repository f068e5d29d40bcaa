"""How a journal fails."""

from __future__ import annotations

from pathlib import Path

from drivetrain.errors import InfrastructureError


class JournalError(InfrastructureError):
    """The journal could not commit; the reply must not be sent."""


class JournalBlocked(JournalError):
    """The storage took nothing for as long as a caller may be kept waiting: no space, a failing disk, a size limit.

    Nothing is lost by it, and the journal goes on trying: the same call may succeed after ``retry_after_s``.
    """

    retry_after_s = 30.0


class JournalDamaged(JournalError):
    """The file does not hold what was written to it. Nothing of it is left out silently: reading ends here."""

    def __init__(self, path: Path, what: str, *, fix: str = "") -> None:
        super().__init__(
            f"{path} is damaged: {what}.",
            fix=fix
            or "Restore it from a copy, or move it away and begin a new journal; sessions that are whole can still be "
            "read from it, one by one.",
        )
