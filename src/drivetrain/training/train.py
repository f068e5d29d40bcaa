"""GRPO steps on recorded rollouts: the shortest way from a run directory to a gradient."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback

from drivetrain.cache import Progress
from drivetrain.engines.quiet import no_progress_bars
from drivetrain.errors import ConfigError
from drivetrain.rollout.result import RolloutResult
from drivetrain.training.alarm import DeltaAlarm
from drivetrain.training.groups import check_against_model, prompt_dataset, training_groups
from drivetrain.training.grpo import BatchSummary, ForkGRPOTrainer, attach_engine
from drivetrain.training.recipe import check_no_dropout, grpo_config
from drivetrain.training.report import TrainReport, build_report
from drivetrain.training.rollout_func import build_rollout_func, env_reward
from drivetrain.training.rows import is_trainable
from drivetrain.training.sources import EpisodeSource, RecordedSource
from drivetrain.training.versions import known_warnings

#: Tokens per micro-batch above which activations are recomputed instead of kept: SmolLM2-135M keeps about 1.2 MiB
#: of activations per token in fp32.
CHECKPOINT_TOKENS = 2048


def train_recorded(
    results: Sequence[RolloutResult],
    model_dir: str | Path,
    *,
    out_dir: str | Path,
    steps: int = 1,
    learning_rate: float = 1e-6,
    temperature: float = 1.0,
    policy_version: int | None = None,
    save_model: bool = False,
    seed: int = 42,
    alarm: DeltaAlarm | None = None,
    on_batch: Callable[[BatchSummary], None] | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> TrainReport:
    """Train ``model_dir`` in fp32 on the CPU for ``steps`` GRPO updates on one batch of recorded rollouts.

    Groups are (task, agent); every group needs the same number (>= 2) of rollouts. Forked rollouts train all their
    rows. A micro-batch is one rollout's share of the rows, so memory follows the longest row, not the batch. The
    steps after the first reuse the same batch (``num_iterations``): they are off-policy, clipped against the first
    step's log-probs, and the log-prob difference is reported for the first step only.

    Args:
        results: rollouts recorded with the weights in ``model_dir``.
        model_dir: folder with a transformers model and tokenizer.
        out_dir: where TRL may write; the model goes to ``out_dir/model`` with ``save_model``.
        learning_rate: constant.
        temperature: the sampler's temperature; another value shows up as a large log-prob difference.
        policy_version: when given, refuse rows sampled by any other version.
        alarm, on_batch: see :class:`~drivetrain.training.grpo.ForkGRPOTrainer`.
        settings: further settings of the GRPOConfig, e.g. a recipe's.
        progress: receives one line per stage and micro-batch.

    Raises:
        ConfigError: unequal groups, nothing to train, rows that do not fit the model, or dropout in the model.
        RowError: a row breaks the contract.
        LogpMismatch: the alarm rang; nothing was trained.
        MissingDependency: TRL is not installed.
    """
    tell = progress or (lambda _line: None)
    started = time.monotonic()
    if steps < 1:
        raise ConfigError(f"steps is {steps}.", fix="Give at least 1.")
    groups = training_groups(results)
    source = RecordedSource(results, policy_version=policy_version)
    model, tokenizer = load_model(model_dir)
    longest = check_against_model(results, model.config)
    size = len(next(iter(groups.values())))
    rows = sum(max(len(result.rows), 1) for result in results)
    config = grpo_config(
        out_dir,
        num_generations=size,
        prompts_per_step=len(groups),
        steps=steps,
        num_iterations=steps,
        learning_rate=learning_rate,
        temperature=temperature,
        seed=seed,
        **{
            "gradient_checkpointing": longest * -(-rows // len(results)) > CHECKPOINT_TOKENS,
            **(settings or {}),
        },
    )
    tell(f"{len(results)} rollouts, {rows} rows, {len(groups)} groups of {size}; longest row {longest} tokens")
    trainer = build_trainer(
        source, model, tokenizer, prompt_dataset(groups), config, alarm=alarm, on_batch=on_batch, progress=tell
    )
    attach_engine(trainer)
    with known_warnings():
        trainer.train()
    saved_to = save(trainer, tokenizer, Path(out_dir) / "model") if save_model else ""
    order = [result.rollout_id for members in groups.values() for result in members]
    return build_report(
        trainer,
        first_batch=trainer.first_batch,
        rollout_ids=order,
        excluded=sum(1 for result in results if not is_trainable(result)),
        seconds=time.monotonic() - started,
        saved_to=saved_to,
        notes=[f"Steps 2 to {steps} reuse the batch of step 1 and are off-policy."] if steps > 1 else [],
    )


def load_model(model_dir: str | Path) -> tuple[Any, Any]:
    """Load a model in fp32 and its tokenizer, with a pad token and without dropout.

    Raises:
        ConfigError: not a model folder, no end token, or functional dropout in the config.
    """
    if not (Path(model_dir) / "config.json").is_file():
        raise ConfigError(f"{model_dir} holds no config.json.", fix="Give the folder of a transformers model.")
    with no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(model_dir), padding_side="left")
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer in {model_dir} has no end token.", fix="Set eos_token in its config.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    check_no_dropout(model)
    return model, tokenizer


def build_trainer(
    source: EpisodeSource,
    model: Any,
    tokenizer: Any,
    dataset: Any,
    config: Any,
    *,
    bad_rollouts: Any = "raise",
    alarm: DeltaAlarm | None = None,
    on_batch: Callable[[BatchSummary], None] | None = None,
    progress: Progress | None = None,
) -> ForkGRPOTrainer:
    """A ForkGRPOTrainer that takes its rollouts from ``source`` and its reward from the environment; ``alarm`` and
    ``on_batch`` are the trainer's."""
    rollout_func = build_rollout_func(
        source,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.pad_token_id,
        forks="rows",
        bad_rollouts=bad_rollouts,
        seed=config.seed,
    )
    with known_warnings():
        trainer = ForkGRPOTrainer(
            model=model,
            args=config,
            reward_funcs=env_reward,
            train_dataset=dataset,
            processing_class=tokenizer,
            rollout_func=rollout_func,
            alarm=alarm,
            on_batch=on_batch,
        )
    trainer.remove_callback(PrinterCallback)  # what a step did is in the report; stdout belongs to the caller
    if progress is not None:
        trainer.add_callback(_Tell(progress))
    return trainer


def save(trainer: ForkGRPOTrainer, tokenizer: Any, folder: Path) -> str:
    """Write model and tokenizer in transformers format; returns the folder."""
    trainer.save_model(str(folder))
    tokenizer.save_pretrained(str(folder))
    return str(folder)


class _Tell(TrainerCallback):
    """One line per micro-batch and step: a long row takes minutes on a CPU."""

    def __init__(self, tell: Progress) -> None:
        self._tell = tell
        self._micro = 0

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 (transformers calls by name)
        self._micro += 1
        self._tell(f"micro-batch {self._micro}/{args.gradient_accumulation_steps}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 (transformers calls by name)
        self._micro = 0
        self._tell(f"step {state.global_step}/{state.max_steps}")
