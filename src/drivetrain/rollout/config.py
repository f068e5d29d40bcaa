"""What a run of rollouts is made of."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from drivetrain.engines.open import EngineSpec, check_embedded_options
from drivetrain.errors import ConfigError
from drivetrain.trace.sample import TRAINED_LABELS
from drivetrain.trace.turn import Label
from swe_rl_agent.registry import agent_name

REFERENCE_AGENTS = ("oracle", "noop")
"""Agents without a model: the reference fix and nothing at all."""

Dtype = Literal["float32", "bfloat16"]
LABELS: tuple[str, ...] = get_args(Label)
DEFAULT_TRAIN_LABELS: tuple[Label, ...] = tuple(sorted(TRAINED_LABELS))


class RolloutConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One run: every agent attempts every task ``n`` times.

    ``model`` is a bundled name or a model directory. ``max_turns`` and ``max_tokens`` (of one turn) are the gateway's
    budget of each rollout; ``deadline_s`` is the harness's wall time; ``concurrency`` counts rollouts in flight.
    ``reasoning`` says whether sampled reasoning stays in context (``keep``) or goes where the template strips it
    (``template``: such turns fork). ``variant`` chooses a preset's variant, e.g. ``small`` for prompts that fit small
    models. ``engine`` says what samples; ``dtype`` and ``threads`` are the embedded engine's. ``seed`` makes sampling
    reproducible as far as the engine is. ``image`` is what the agent's and the grader's sandboxes start from; None =
    the backend's default. Each of ``agents`` is a name, or the path of a preset file.
    ``source`` says where the tasks were read from, for the record; None = the tasks of this package.
    ``train_labels`` are the labels of the turns to train (design section 4, "Label"); ``max_masked_fraction`` is the
    share of sampled tokens that faults may cost before the run stops.
    """

    tasks: tuple[str, ...]
    agents: tuple[str, ...]
    n: int = 1
    model: str = "SmolLM2-135M-Instruct"
    sandbox: str = "local"
    image: str | None = None
    concurrency: int = 2
    temperature: float = 1.0
    max_turns: int = 20
    max_tokens: int = 512
    deadline_s: float = 1800.0
    variant: str | None = None
    reasoning: Literal["keep", "template"] = "keep"
    engine: EngineSpec = EngineSpec()
    dtype: Dtype = "float32"
    threads: int | None = None
    seed: int | None = None
    source: str | None = None
    train_labels: tuple[Label, ...] = DEFAULT_TRAIN_LABELS
    max_masked_fraction: float = 0.5

    def __post_init__(self) -> None:
        for name in ("n", "concurrency", "max_turns", "max_tokens", "deadline_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive.")
        for name in ("tasks", "agents"):
            if not getattr(self, name):
                raise ConfigError(f"no {name} were chosen.", fix=f"Name at least one of the {name}.")
        unknown = sorted(set(self.train_labels) - set(LABELS))
        if unknown or not self.train_labels:
            raise ConfigError(
                f"no label is called {unknown[0]!r}." if unknown else "no label is trained.",
                fix=f"Choose among: {', '.join(LABELS)}.",
            )
        check_embedded_options(self.engine, dtype=self.dtype, threads=self.threads)
        if self.dtype not in get_args(Dtype):
            raise ConfigError(f"dtype is {self.dtype!r}.", fix=f"Use one of {', '.join(get_args(Dtype))}.")
        if not 0 <= self.max_masked_fraction <= 1:
            raise ConfigError(f"max_masked_fraction is {self.max_masked_fraction}; it must be between 0 and 1.")

    @property
    def needs_model(self) -> bool:
        """Whether any agent makes model calls."""
        return any(agent not in REFERENCE_AGENTS for agent in self.agents)

    def require_trainable(self) -> None:
        """Refuse agents that leave nothing to train.

        Raises:
            ConfigError: an agent without a model is named.
        """
        idle = [agent for agent in self.agents if agent in REFERENCE_AGENTS]
        if idle:
            raise ConfigError(f"agent {idle[0]!r} uses no model; there is nothing to train.", fix="Name a real agent.")


class EpisodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout to run. ``group`` numbers rollouts of one task and agent from 0."""

    rollout_id: str
    task_id: str
    agent: str
    group: int
    seed: int | None = None


def episodes_of(config: RolloutConfig) -> list[EpisodeSpec]:
    """Every rollout of a run, group members side by side.

    Raises:
        ConfigError: a custom agent's preset is broken, or two agents have one name.
    """
    agents = [agent_name(agent) for agent in config.agents]
    if twice := sorted({agent for agent in agents if agents.count(agent) > 1}):
        raise ConfigError(f"two agents are called {twice[0]!r}.", fix="Change `name` in one of the presets.")
    return [
        EpisodeSpec(
            rollout_id=f"{task}.{agent}.{group}",
            task_id=task,
            agent=agent,
            group=group,
            seed=None if config.seed is None else config.seed + group,
        )
        for task in config.tasks
        for agent in agents
        for group in range(config.n)
    ]
