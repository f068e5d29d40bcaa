"""Numbers of the learning demo."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from drivetrain.errors import ConfigError


class QuickstartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is learned from, and for how long.

    ``lessons`` short prompts teach a random model to say which result a statement asks for, before anything else.
    ``traces`` episodes of the oracle, each on a training instance of its own, are what the policy starts from; the
    oracle writes the right operator ``right`` times of nine. GRPO then takes ``steps`` updates on ``tasks_per_step``
    instances with ``group`` rollouts each. ``heldout`` instances, whose names occur in no training instance, are
    attempted ``attempts`` times each before the first update and after the last, and once after every ``eval_every``-th
    in between, with the same sampling as in training. ``concurrency`` counts episodes in flight.
    """

    seed: int = 0
    agent: str = "pi"
    variant: str = "bash"
    lessons: int = 1600
    traces: int = 72
    right: int = 3
    sft_epochs: float = 6.0
    sft_learning_rate: float = 3e-3
    steps: int = 12
    tasks_per_step: int = 4
    group: int = 8
    learning_rate: float = 2.0
    heldout: int = 16
    eval_every: int = 4
    attempts: int = 2
    concurrency: int = 4

    def __post_init__(self) -> None:
        for name in (
            "lessons",
            "traces",
            "steps",
            "tasks_per_step",
            "heldout",
            "eval_every",
            "attempts",
            "concurrency",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.tasks_per_step > self.traces:
            raise ConfigError(
                f"there are {self.traces} training instances for {self.tasks_per_step} per step.",
                fix="Raise traces, or lower tasks_per_step.",
            )


SHORT: Mapping[str, int] = MappingProxyType(
    {"traces": 36, "steps": 4, "group": 6, "heldout": 12, "eval_every": 4, "attempts": 1}
)
"""Changes for a look in a few minutes: fewer episodes, and a third of the updates."""
