"""The error vocabulary every room shares.

An error says what went wrong, where, and what to do about it; the CLI prints exactly that and exits non-zero.
"""

from __future__ import annotations


class DrivetrainError(Exception):
    """Base of every typed error.

    Args:
        what: one sentence that says what is wrong and where.
        fix: one sentence that says what to do about it; may be empty when nothing can be done.
    """

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what} {self.fix}".strip()


class ConfigError(DrivetrainError):
    """The caller asked for something that cannot be: an unknown name, a missing file, a contradictory option."""


class MissingDependency(DrivetrainError):
    """A program or an optional package that this step needs is not installed."""


class InfrastructureError(DrivetrainError):
    """The machinery failed (not the policy): the rollout is ungraded, its reward is None and never zero."""
