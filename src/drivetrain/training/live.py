"""GRPO on live episodes: the engine serves the trainer's own model, so that every step is on-policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.cache import Progress
from drivetrain.errors import ConfigError
from drivetrain.rollout.route import routed_prompt
from drivetrain.training.alarm import DeltaAlarm
from drivetrain.training.grpo import BatchSummary, attach_engine
from drivetrain.training.recipe import grpo_config
from drivetrain.training.report import TrainReport, build_report
from drivetrain.training.sources import EpisodeRequest, EpisodeSource
from drivetrain.training.train import build_trainer, load_model, save
from drivetrain.training.versions import known_warnings


class LiveTask(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of the training set: which task, for which agent, and the instruction."""

    task_id: str
    agent: str
    prompt: str = ""


def train_live(
    make_source: Callable[[Any, Any], EpisodeSource],
    tasks: Sequence[LiveTask],
    model_dir: str | Path,
    *,
    out_dir: str | Path,
    steps: int,
    num_generations: int = 4,
    tasks_per_step: int = 1,
    micro_batch: int = 1,
    learning_rate: float = 1e-6,
    temperature: float = 1.0,
    sync: Callable[[int], None] | None = None,
    gradient_checkpointing: bool = True,
    save_model: bool = False,
    seed: int = 42,
    callbacks: Sequence[Any] = (),
    alarm: DeltaAlarm | None = None,
    on_batch: Callable[[BatchSummary], None] | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> TrainReport:
    """Train for ``steps`` on-policy GRPO steps on episodes run between the updates.

    Args:
        make_source: called once with the trainer's ``(model, tokenizer)``; builds the engine around that very model
            (``EmbeddedEngine(model=model)``), the gateway and the runner, and returns a source such as LiveSource.
            Weights need no copying; episodes and updates alternate, and TRL is blocked while episodes run.
        tasks: the training set, cycled in order.
        micro_batch: rollouts that share a forward and backward pass.
        temperature: must be the session policy's sampling temperature.
        sync: called with the global step before the first episode of a step: bump the engine's policy version and
            drop its caches here.
        callbacks: further transformers ``TrainerCallback`` objects.
        alarm, on_batch: see :class:`~drivetrain.training.grpo.ForkGRPOTrainer`.
        settings: further settings of the GRPOConfig, e.g. a recipe's.

    Raises:
        ConfigError: no tasks, or sizes that do not fit.
        LogpMismatch: the alarm rang over the first batch; nothing was trained.
    """
    if not tasks:
        raise ConfigError("there are no tasks to train on.", fix="Give at least one task.")
    from datasets import Dataset

    started = time.monotonic()
    model, tokenizer = load_model(model_dir)
    source = _Remembering(make_source(model, tokenizer))
    config = grpo_config(
        out_dir,
        num_generations=num_generations,
        prompts_per_step=min(tasks_per_step, len(tasks)),
        micro_batch=micro_batch,
        steps=steps,
        learning_rate=learning_rate,
        temperature=temperature,
        seed=seed,
        **{"gradient_checkpointing": gradient_checkpointing, **(settings or {})},
    )
    dataset = Dataset.from_list([{"prompt": routed_prompt(task.task_id, task.agent, task.prompt)} for task in tasks])
    trainer = build_trainer(
        source,
        model,
        tokenizer,
        dataset,
        config,
        bad_rollouts="mask",
        alarm=alarm,
        on_batch=on_batch,
        progress=progress,
    )
    for callback in callbacks:
        trainer.add_callback(callback)
    attach_engine(trainer, sync)
    with known_warnings():
        trainer.train()
    return build_report(
        trainer,
        first_batch=trainer.first_batch,
        rollout_ids=source.first_ids,
        excluded=sum(1 for reward in source.first_rewards if reward is None),
        seconds=time.monotonic() - started,
        saved_to=save(trainer, tokenizer, Path(out_dir) / "model") if save_model else "",
    )


class _Remembering:
    """Passes requests on and keeps the ids and rewards of the first batch for the report."""

    def __init__(self, inner: EpisodeSource) -> None:
        self._inner = inner
        self.first_ids: list[str] = []
        self.first_rewards: list[float | None] = []

    def run(self, requests: Sequence[EpisodeRequest]) -> list[Any]:
        results = self._inner.run(requests)
        if not self.first_ids:
            self.first_ids = [result.rollout_id for result in results]
            self.first_rewards = [result.reward for result in results]
        return results
