"""What an evaluation is: one agent, one endpoint, some tasks, n attempts each."""

from __future__ import annotations

from typing import Literal

import msgspec

from drivetrain.errors import ConfigError
from swe_rl_env.work.agents import AGENTS

NetworkChoice = Literal["model_only", "open"]
"""``model_only``: the sandbox reaches the endpoint and nothing else (the fix of a public task is one download away).
``open``: the sandbox has the host's network and calls the endpoint itself."""


class EvalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what an attempt is; the key is no part of it.

    ``base_url`` has no trailing slash and no ``/v1``. ``deadline_s`` is wall time of one attempt, ``max_tokens`` of one
    answer, ``max_turns`` the agent's own step limit (0 = none). ``infra_tries`` is how often an attempt is started
    before its infrastructure failure is recorded.
    """

    agent: str
    model: str = ""
    base_url: str = ""
    variant: str | None = None
    context_length: int = 131_072
    max_tokens: int = 8192
    max_turns: int = 0
    deadline_s: float = 1800.0
    sandbox: str = "local"
    network: NetworkChoice = "model_only"
    infra_tries: int = 3

    def __post_init__(self) -> None:
        """Raises:
        ConfigError: a contradiction, or a number that is not positive.
        """
        for name in ("context_length", "max_tokens", "deadline_s", "infra_tries"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}.")
        if self.max_turns < 0:
            raise ConfigError(f"max_turns must not be negative, and is {self.max_turns}.")
        if not self.needs_model:
            return
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"{self.base_url!r} is no base URL.", fix="Write it as https://host, without /v1 at the end."
            )
        if self.base_url.rstrip("/").endswith("/v1"):
            raise ConfigError(f"{self.base_url} ends in /v1, which agents add themselves.", fix="Leave it away.")
        if not self.model:
            raise ConfigError("The endpoint needs a model name.", fix="Give --model.")

    @property
    def needs_model(self) -> bool:
        """False for the reference agents, which call no model."""
        return self.agent not in AGENTS
