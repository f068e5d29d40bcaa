"""What can go wrong between a task row and a verdict."""

from __future__ import annotations

from typing import Literal

from drivetrain.errors import DrivetrainError, InfrastructureError

RejectReason = Literal[
    "patch_too_large", "too_many_files", "workspace_too_large", "workspace_exhausted", "unreadable_tree"
]


class BuildError(InfrastructureError):
    """A task could not be built from its published archives (fetch, checksum, derivation, environment)."""


class ChecksumMismatch(BuildError):
    """Bytes differ from the ones the task row was measured with; nothing is built from them."""


class PatchRejected(DrivetrainError):
    """The agent's work cannot be turned into a patch; the verdict is unresolved, not an infrastructure error.

    Args:
        reason: typed code, also the ``reason`` of the resulting grade.
        what: one sentence with the measured size and the cap.
    """

    def __init__(self, reason: RejectReason, what: str) -> None:
        super().__init__(what)
        self.reason: RejectReason = reason
