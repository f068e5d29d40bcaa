"""Stop a run whose samples get lost: silent capture faults bias training (case row B7)."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.errors import DrivetrainError

FAULTS = frozenset({"undelivered", "no_logprob", "prompt_mismatch"})
"""Reasons that say something is broken; a label or an earlier row is a choice."""
_ENOUGH_TURNS = 20


class MaskedFractionExceeded(DrivetrainError):
    """Too many sampled tokens cannot be trained because something is broken; ``faults`` counts them by reason."""

    def __init__(self, faults: Mapping[str, int], sampled: int, limit: float) -> None:
        lost = sum(faults.values())
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(faults.items(), key=lambda item: -item[1]))
        super().__init__(
            f"{lost} of {sampled} sampled tokens ({lost / sampled:.0%}) are lost to faults ({reasons}); "
            f"the limit is {limit:.0%}.",
            fix="`drivetrain trace stats RUN` shows where. undelivered: the agent left before its reply; no_logprob: "
            "the engine returns no usable log-probs; prompt_mismatch: a model step renders other prompts than the "
            "trace holds. --max-masked-fraction sets the limit.",
        )
        self.faults = dict(faults)


class MaskGuard:
    """Counts the sampled tokens of finished rollouts.

    Args:
        limit: largest fraction of sampled tokens that faults may cost.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._turns = 0
        self._sampled = 0
        self._faults: dict[str, int] = {}

    def add(self, turns: int, sampled: Mapping[str, int]) -> None:
        """A rollout ended: its number of turns and its sampled tokens by reason."""
        self._turns += turns
        self._sampled += sum(sampled.values())
        for reason, count in sampled.items():
            if reason in FAULTS and count:
                self._faults[reason] = self._faults.get(reason, 0) + count

    def check(self, *, final: bool = False) -> None:
        """Judge what came in so far; before the end only once there are 20 turns.

        Raises:
            MaskedFractionExceeded: faults cost more than the limit.
        """
        if not final and self._turns < _ENOUGH_TURNS:
            return
        if sum(self._faults.values()) > self._limit * self._sampled:
            raise MaskedFractionExceeded(self._faults, self._sampled, self._limit)
