"""Numbers of the learning demo."""

from __future__ import annotations

import msgspec

from drivetrain.errors import ConfigError


class QuickstartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is learned from, and for how long.

    ``lessons`` short prompts teach a random model to say which result a statement asks for, before anything else.
    ``traces`` episodes of the oracle, each on a training instance of its own, are what the policy starts from; the
    oracle writes the right operator with probability ``skill``. GRPO then takes ``steps`` updates on ``tasks_per_step``
    instances with ``group`` rollouts each. ``heldout`` instances, whose names occur in no training instance, are
    attempted once each before the first update and after every ``eval_every``-th, with the same sampling as in
    training; ``final_attempts`` times each at the end. ``concurrency`` counts episodes in flight.
    """

    seed: int = 0
    agent: str = "pi"
    variant: str = "bash"
    lessons: int = 4800
    traces: int = 192
    skill: float = 0.3
    sft_epochs: float = 5.0
    sft_learning_rate: float = 3e-3
    steps: int = 20
    tasks_per_step: int = 4
    group: int = 8
    learning_rate: float = 3e-4
    heldout: int = 24
    eval_every: int = 5
    final_attempts: int = 2
    concurrency: int = 4

    def __post_init__(self) -> None:
        for name in (
            "lessons",
            "traces",
            "steps",
            "tasks_per_step",
            "heldout",
            "eval_every",
            "final_attempts",
            "concurrency",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.tasks_per_step > self.traces:
            raise ConfigError(
                f"there are {self.traces} training instances for {self.tasks_per_step} per step.",
                fix="Raise traces, or lower tasks_per_step.",
            )
