"""Is TRL what this was written against, and can a plan travel to the worker's child? Answered without a GPU.

``examples/*.py --dry-run`` call these, so that a rented GPU does not find out what a laptop could.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterable
from typing import Any

from drivetrain.errors import ConfigError
from drivetrain.rollout.config import RolloutConfig
from drivetrain.training.versions import require_trl
from swe_rl_agent.registry import get_agent
from swe_rl_env.tasks.catalog import get_task


def check_grpo_seam() -> str:
    """GRPOTrainer has what :class:`~drivetrain.training.grpo.ForkGRPOTrainer` overrides and fences.

    Raises:
        ConfigError: it has not.
        MissingDependency: no TRL.
    """
    version = require_trl()
    from trl.generation.vllm_generation import VLLMGeneration
    from trl.trainer.grpo_trainer import GRPOTrainer

    overridden = (
        "_generate",
        "_calculate_rewards",
        "_generate_and_score_completions",
        "_get_per_token_logps_and_entropies",
    )
    _require(GRPOTrainer, overridden)
    _require(VLLMGeneration, ("sync_weights",))
    _require_parameters(GRPOTrainer.__init__, ("rollout_func", "reward_funcs", "processing_class"))
    return f"TRL {version}: GRPOTrainer(rollout_func=...) with forks and fenced weight updates"


def check_async_seam() -> str:
    """AsyncGRPOTrainer and its harness worker take what we inject.

    Raises:
        ConfigError: they do not.
        MissingDependency: no TRL.
    """
    version = require_trl()
    from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer
    from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker, _HarnessRolloutLoop

    _require(HarnessRolloutWorker, ("start", "stop", "update_model_version", "check_health"))
    _require(AsyncGRPOTrainer, ("compute_loss", "_sync_weight_merged", "_sync_weight_lora"))
    _require_parameters(AsyncGRPOTrainer.__init__, ("rollout_worker", "weight_transfer"))
    _require_parameters(_HarnessRolloutLoop.__init__, ("harness_session_factory", "lossless_capture"))
    return f"TRL {version}: AsyncGRPOTrainer with an OpenEnv session factory and fenced weight updates"


def check_plan(config: RolloutConfig, *travels: Any) -> str:
    """Tasks and agents are known, and what goes to a worker's child can be pickled.

    Raises:
        ConfigError: an unknown name, or something that cannot travel.
    """
    for task_id in config.tasks:
        get_task(task_id)
    for agent in config.agents:
        get_agent(agent, variant=config.variant)
    for thing in travels:
        try:
            pickle.loads(pickle.dumps(thing))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{type(thing).__name__} cannot travel to the worker's process ({error}).",
                fix="Use module-level functions and plain data, no lambdas or closures.",
            ) from error
    return f"{len(config.tasks)} tasks, {len(config.agents)} agents, {len(travels)} things that travel"


def _require(owner: type, names: Iterable[str]) -> None:
    missing = [name for name in names if not callable(getattr(owner, name, None))]
    if missing:
        raise ConfigError(f"{owner.__name__} of this TRL has no {', '.join(missing)}.", fix="Install TRL 1.16.")


def _require_parameters(function: Any, names: Iterable[str]) -> None:
    known = inspect.signature(function).parameters
    missing = [name for name in names if name not in known]
    if missing:
        raise ConfigError(
            f"{function.__qualname__} of this TRL takes no {', '.join(missing)}.", fix="Install TRL 1.16."
        )
