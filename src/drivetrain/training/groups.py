"""Which recorded rollouts can be trained together: equal groups of one task and agent, rows the model can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.errors import ConfigError
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.route import routed_prompt
from drivetrain.training.rows import check_result, is_trainable
from drivetrain.training.sources import GroupKey, group_results

Groups = Mapping[GroupKey, Sequence[RolloutResult]]


def training_groups(results: Sequence[RolloutResult]) -> dict[GroupKey, list[RolloutResult]]:
    """Group rollouts by (task, agent) and check that they make a GRPO batch.

    Raises:
        ConfigError: no rollouts, a group of one, groups of different sizes, duplicate rollouts, or nothing to train.
    """
    groups = group_results(results)
    if not groups:
        raise ConfigError("there are no rollouts to train on.", fix="Run rollouts first.")
    sizes = {key: len(members) for key, members in groups.items()}
    listing = ", ".join(f"{task}/{agent}: {size}" for (task, agent), size in sizes.items())
    if min(sizes.values()) < 2:
        raise ConfigError(
            f"GRPO compares rollouts of one task and agent; a group has a single rollout ({listing}).",
            fix="Run at least 2 rollouts per task and agent, or leave that group out.",
        )
    if len(set(sizes.values())) > 1:
        raise ConfigError(
            f"groups have different sizes ({listing}); one step needs equal groups.",
            fix=f"Run the missing rollouts, or keep {min(sizes.values())} rollouts of every group.",
        )
    if len({result.rollout_id for result in results}) != len(results):
        raise ConfigError("a rollout appears twice.", fix="Pass every rollout once.")
    if not any(is_trainable(result) for result in results):
        reasons = sorted({result.error or result.status for result in results})
        raise ConfigError(
            f"no rollout is graded and has a row to train ({'; '.join(reasons)}).",
            fix="Look at the failed rollouts first.",
        )
    return groups


def check_against_model(results: Sequence[RolloutResult], config: Any) -> int:
    """Check every row strictly and against the model; returns the longest row in tokens.

    Args:
        results: the rollouts to train on.
        config: the model's transformers config.

    Raises:
        RowError: a row breaks the contract or holds a token the model does not know.
        ConfigError: a row is longer than the model's context.
    """
    text = config.get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    longest = 0
    for result in results:
        check_result(result, vocab_size=text.vocab_size)
        for row in result.rows:
            longest = max(longest, len(row.prompt_ids) + len(row.response_ids))
    if context is not None and longest > context:
        raise ConfigError(
            f"the longest row has {longest} tokens, the model's context is {context}.",
            fix="Train the model that sampled these rollouts.",
        )
    return longest


def prompt_dataset(groups: Groups) -> Any:
    """A ``datasets.Dataset`` with one prompt per group; the task and agent travel inside the message."""
    from datasets import Dataset

    return Dataset.from_list([{"prompt": routed_prompt(task_id, agent)} for task_id, agent in groups])
