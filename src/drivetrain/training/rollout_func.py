"""``rollout_func`` for TRL's GRPOTrainer: prompts in, token-faithful rows out, no vLLM needed.

TRL 1.16 calls ``rollout_func(prompts, trainer)`` on every rank with the copies of each prompt already made
(``num_generations`` times in a row) and passes no other dataset column, so the task travels as extra keys of a
prompt's message: ``[{"role": "user", "content": "...", "task_id": "t2", "agent": "pi"}]``.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from drivetrain.errors import ConfigError, InfrastructureError
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.route import route_of
from drivetrain.training.rows import (
    ForkedRollout,
    ForkMode,
    RowError,
    check_result,
    is_trainable,
    to_rollout_func_dict,
)
from drivetrain.training.sources import EpisodeRequest, EpisodeSource, failed_result
from drivetrain.training.weights import withhold_stale

log = logging.getLogger(__name__)

RolloutFunc = Callable[[list[Any], Any], dict[str, Any]]


def build_rollout_func(
    source: EpisodeSource,
    *,
    eos_id: int,
    pad_id: int,
    forks: ForkMode = "refuse",
    bad_rollouts: Literal["mask", "raise"] = "mask",
    default_agent: str = "",
    seed: int = 0,
    max_policy_lag: int | None = None,
) -> RolloutFunc:
    """Build the function to pass as ``GRPOTrainer(rollout_func=...)``.

    It returns exactly one rollout per prompt, in order. An episode that failed becomes a masked row with reward None.
    The model is in eval mode while episodes run, because a live engine may share it with the trainer.

    Args:
        source: runs or looks up the episodes.
        eos_id, pad_id: token ids of the masked row.
        forks: ``"refuse"`` for TRL's own trainer (one row per rollout), ``"rows"`` for ForkGRPOTrainer.
        bad_rollouts: what to do with a rollout whose rows break the contract, or that forked under ``"refuse"``:
            mask it and log a warning (a long run survives one bad episode), or raise.
        default_agent: agent of prompts that name none.
        seed: base of every episode's seed.
        max_policy_lag: tokens sampled more versions ago than this are withheld while their rollout's reward counts
            (:func:`~drivetrain.training.weights.withhold_stale`); policy versions are the trainer's global steps.

    Raises (from the returned function):
        ConfigError: a prompt carries no ``task_id``, or the source is set up wrongly.
        RowError: only with ``bad_rollouts="raise"``.
    """

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        requests = build_requests(prompts, trainer, default_agent=default_agent, seed=seed)
        with eval_mode(getattr(trainer, "model", None)):
            results = _run(source, requests)
        if bad_rollouts == "mask":
            results = [
                _masked_if_bad(result, request, forks) for result, request in zip(results, requests, strict=True)
            ]
        if max_policy_lag is not None:
            step = int(trainer.state.global_step)
            results = [withhold_stale(result, step, max_policy_lag) for result in results]
        for result in results:
            if not is_trainable(result):
                log.warning("rollout %s (%s) trains nothing: %s", result.rollout_id, result.status, result.error)
        return to_rollout_func_dict(results, eos_id=eos_id, pad_id=pad_id, forks=forks)

    return rollout_func


def build_requests(prompts: Sequence[Any], trainer: Any, *, default_agent: str, seed: int) -> list[EpisodeRequest]:
    """One request per prompt copy, in order.

    A group may straddle ranks, so a copy's number comes from its position in the global batch.

    Raises:
        ConfigError: a prompt carries no ``task_id``.
    """
    training = bool(getattr(getattr(trainer, "model", None), "training", True))
    copies = int(getattr(trainer, "num_generations" if training else "num_generations_eval", 1))
    rank = int(getattr(getattr(trainer, "accelerator", None), "process_index", 0))
    step = int(getattr(getattr(trainer, "state", None), "global_step", 0))
    requests = []
    for index, prompt in enumerate(prompts):
        task_id, agent = route_of(prompt, default_agent)
        group = (rank * len(prompts) + index) % copies
        text = f"{seed}:{step}:{int(training)}:{task_id}:{agent}:{group}"
        requests.append(
            EpisodeRequest(
                task_id=task_id,
                agent=agent,
                group=group,
                seed=zlib.crc32(text.encode()),
                prompt=prompt,
                training=training,
            )
        )
    return requests


def env_reward(*, env_reward: list[float | None], **_: Any) -> list[float | None]:
    """Reward function for GRPOTrainer: the rewards the environment gave, None where a rollout is ungraded.

    TRL leaves None out of the group's mean and standard deviation and gives it advantage 0. Never score TRL's
    ``completions``: they are decoded from environment tokens too.
    """
    return env_reward


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Put ``model`` in eval mode for the block (dropout off, caching on) and restore its mode afterwards."""
    was_training = bool(getattr(model, "training", False))
    if was_training:
        model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()


def _run(source: EpisodeSource, requests: list[EpisodeRequest]) -> list[RolloutResult]:
    try:
        results = source.run(requests)
    except InfrastructureError as error:
        log.warning("no episode of this batch could be run: %s", error)
        return [failed_result(request, str(error)) for request in requests]
    if len(results) != len(requests):
        # TRL would train on misaligned rows and advantages without a word.
        raise ConfigError(f"the episode source returned {len(results)} results for {len(requests)} requests.")
    for result, request in zip(results, requests, strict=True):
        if (result.task_id, result.agent) != request.key:
            raise ConfigError(
                f"the episode source answered the request for {request.key} "
                f"with rollout {result.rollout_id} of {(result.task_id, result.agent)}.",
                fix="A source must return results in the order of the requests.",
            )
    return results


def _masked_if_bad(result: RolloutResult, request: EpisodeRequest, forks: ForkMode) -> RolloutResult:
    try:
        check_result(result)
        if forks == "refuse" and len(result.rows) > 1:
            raise ForkedRollout(result.rollout_id, len(result.rows))
    except RowError as error:
        return failed_result(request, str(error), status="unscorable")
    return result
