"""Named settings for agents: what ``drivetrain train --recipe NAME`` trains with.

All of them hold what :data:`~drivetrain.training.recipe.PINNED` pins (full-vocabulary sampling, no dropout, correction
on) and use a token-mean loss with token-level truncated ratios, because sequence-level ratios zero whole long episodes:
a bias of 0.002 nat per token over 1,000 tokens gives gradient 0 (trl.md section 3).
"""

from __future__ import annotations

from typing import Any

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.training.alarm import DeltaAlarm


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """``settings`` go over :func:`~drivetrain.training.recipe.grpo_config`; ``tolerance`` is how far a server's weights
    may be off after an update, nats (docs/engines.md)."""

    name: str
    about: str
    settings: dict[str, Any]
    alarm: DeltaAlarm
    tolerance: float = 1e-3


_TOKEN_LEVEL: dict[str, Any] = {
    "loss_type": "dapo",
    "beta": 0.0,
    "importance_sampling_level": "token",
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_clip_max": 2.0,
}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="agent",
            about="float32 on one machine; the log-prob difference must be rounding noise (1e-4 nats).",
            settings=_TOKEN_LEVEL,
            alarm=DeltaAlarm(),
        ),
        Recipe(
            name="agent-dapo",
            about="As agent, with DAPO's wider upper clip (0.28) for rewards that are mostly 0.",
            settings={**_TOKEN_LEVEL, "epsilon": 0.2, "epsilon_high": 0.28},
            alarm=DeltaAlarm(),
        ),
        Recipe(
            name="agent-bf16",
            about="bfloat16 on a GPU with `vllm serve`: dtypes differ by 0.04 nats on average, so the mean is bounded.",
            settings={
                **_TOKEN_LEVEL,
                "epsilon": 0.2,
                "epsilon_high": 0.28,
                "use_cpu": False,
                "bf16": True,
                "gradient_checkpointing": True,
            },
            alarm=DeltaAlarm(max_nats=20.0, mean_nats=0.1),
            tolerance=0.1,
        ),
    )
}


def recipe_named(name: str) -> Recipe:
    """A recipe.

    Raises:
        ConfigError: there is none of that name.
    """
    try:
        return RECIPES[name]
    except KeyError:
        raise ConfigError(f"there is no recipe {name!r}.", fix=f"Recipes: {', '.join(RECIPES)}.") from None
