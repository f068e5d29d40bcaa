"""Where a board's rollouts come from."""

from __future__ import annotations

from typing import Protocol

from drivetrain.dashboard.board import Board
from drivetrain.dashboard.model import Summary


class Source(Protocol):
    """Keeps a board up to date, on the board's event loop."""

    async def update(self, board: Board, summary: Summary) -> None:
        """Put what has changed into ``board``, and what is not about one rollout into ``summary``.

        ``summary`` is new and empty but for what the rollouts do not say; they are added up afterwards.
        """

    def close(self) -> None:
        """Observe no more; idempotent."""
