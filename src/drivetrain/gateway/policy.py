"""What a session may do and how its policy is sampled."""

from __future__ import annotations

import math

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.volatile import compile_patterns


class SessionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and sampling of one session, fixed when it is opened.

    ``model`` is the served name. ``temperature`` (> 0) is what the trainer uses too; what the harness asks for is
    recorded and not obeyed. ``max_turns`` counts committed model calls, ``max_tokens_per_turn`` and
    ``max_completion_tokens`` count sampled tokens of one call and of the session (None = no limit), ``wall_clock_s``
    is measured from the opening of the session. ``seed`` makes the session reproducible. ``volatile_lines``
    are regular expressions: system-prompt lines in which one is found are taken out before matching and rendering.
    ``patience`` is how keep-alives are sent to this session's harness; None leaves it to the server.
    """

    model: str
    temperature: float = 1.0
    max_turns: int = 50
    max_tokens_per_turn: int = 1024
    max_completion_tokens: int | None = None
    wall_clock_s: float | None = None
    seed: int | None = None
    volatile_lines: tuple[str, ...] = ()
    patience: Patience | None = None

    def __post_init__(self) -> None:
        compile_patterns(self.volatile_lines)
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ConfigError(
                f"temperature {self.temperature} cannot be trained: the distribution must have full support.",
                fix="Use a temperature greater than 0, e.g. 1.0.",
            )
        for name in ("max_turns", "max_tokens_per_turn", "max_completion_tokens", "wall_clock_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} is {value}; it must be positive.", fix="Leave it out for the default.")
