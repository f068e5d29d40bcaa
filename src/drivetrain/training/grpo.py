"""ForkGRPOTrainer: TRL's GRPOTrainer for rollouts that left several rows; and the importance-sampling switch.

TRL 1.16 takes one row per rollout. A coding agent forks (compaction, sub-agents, rewritten history), so a rollout
leaves several. Reporting forks as extra generations, or keeping the last row only, changes the gradient (cosine 0.79
and 0.73 to the right one). Here each rollout counts once in its group's baseline, every row carries its rollout's
advantage and the loss is the mean over all trained tokens of the step, which makes a fork invisible to the gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from accelerate.utils import gather_object
from trl.extras.profiling import profiling_context
from trl.trainer.grpo_trainer import GRPOTrainer

from drivetrain.errors import ConfigError
from drivetrain.training.alarm import DeltaAlarm, sound_alarm
from drivetrain.training.delta import LogpDelta, delta_metrics, measure_delta, merge_deltas, trained_mask
from drivetrain.training.microbatch import completion_logps, row_chunks
from drivetrain.training.versions import require_trl

#: Losses that average over tokens, so that the number of rows a rollout was cut into does not matter. ``dr_grpo``
#: has the right direction, but divides by the number of rows.
FORK_LOSSES = ("dapo", "cispo", "dr_grpo")


class BatchSummary(msgspec.Struct, kw_only=True):
    """What one generation batch of this rank held.

    ``row_rollout[i]`` is the index of row i's rollout, -1 for padding rows. ``advantages`` has one entry per row.
    ``delta`` is None when the importance-sampling correction is off. ``step`` is the global step that it was sampled
    for; ``rollout_ids`` names the rollouts.
    """

    step: int = 0
    rollout_ids: list[str] = []
    rollouts: int
    row_rollout: list[int]
    trained_tokens: int
    advantages: list[float]
    delta: LogpDelta | None

    @property
    def rows(self) -> int:
        return sum(1 for owner in self.row_rollout if owner >= 0)


class ForkGRPOTrainer(GRPOTrainer):
    """GRPOTrainer whose ``rollout_func`` may return ``row_rollout``: for each row the index of its rollout.

    Per-row fields are ``prompt_ids``, ``completion_ids``, ``logprobs`` and ``env_mask``; all other fields keep one
    entry per rollout, so reward functions and log tables are those of TRL. Without ``row_rollout`` it behaves as
    GRPOTrainer. ``first_batch`` and ``last_batch`` describe the first and the latest generation batch.

    TRL's ``completions/*`` metrics count rows, padding rows included. With the importance-sampling correction on, the
    log-prob difference to the sampler is logged as ``delta/*`` (:func:`~drivetrain.training.delta.delta_metrics`).

    Args:
        args, kwargs: GRPOTrainer's.
        alarm: what becomes of a difference that is too large; None: it is measured only.
        on_batch: called with every generation batch of this rank, before it is trained.

    Raises:
        ConfigError: another TRL minor version, a missing rollout_func, or a loss or ratio that depends on how many rows
            a rollout has.
        LogpMismatch (from ``train``): the first batch rang the alarm; nothing was trained.
    """

    def __init__(
        self,
        *args: Any,
        alarm: DeltaAlarm | None = None,
        on_batch: Callable[[BatchSummary], None] | None = None,
        **kwargs: Any,
    ) -> None:
        require_trl()
        super().__init__(*args, **kwargs)
        self.rollout_func: Any  # TRL's optional function, which _generate replaces for the length of a call
        if self.rollout_func is None:
            raise ConfigError("ForkGRPOTrainer needs a rollout_func.", fix="Build one with build_rollout_func.")
        if self.loss_type not in FORK_LOSSES:
            raise ConfigError(
                f"loss_type {self.loss_type!r} weights tokens by row, so forks would change the gradient.",
                fix=f"Use one of {', '.join(FORK_LOSSES)}.",
            )
        if self.importance_sampling_level != "token" or not self.vllm_importance_sampling_mode.startswith("token_"):
            raise ConfigError(
                "sequence-level ratios depend on how a rollout is cut into rows, and vanish on long episodes.",
                fix="Set importance_sampling_level='token' and vllm_importance_sampling_mode='token_truncate'.",
            )
        self.first_batch: BatchSummary | None = None
        self.last_batch: BatchSummary | None = None
        self._alarm = alarm
        self._on_batch = on_batch
        self._owners: list[int] = []
        self._first_rows: list[int] = []
        self._rollout_ids: list[str] = []

    def _generate(self, prompts: list[Any]) -> Any:
        """Call the rollout function, pad its rows, and let TRL process them as if each row had its own prompt."""
        self._sync_if_stale()
        output = dict(self.rollout_func(copy.deepcopy(prompts), self))
        self._owners = list(output.pop("row_rollout", range(len(prompts))))
        self._first_rows = _first_rows(self._owners, output, len(prompts))
        self._rollout_ids = [str(name) for name in output.get("rollout_id") or range(len(prompts))]
        self._pad_rows(output)
        row_prompts = [prompts[max(owner, 0)] for owner in self._owners]
        rollout_func = self.rollout_func
        self.rollout_func = lambda _prompts, _trainer: output
        try:
            generated = list(super()._generate(row_prompts))
        finally:
            self.rollout_func = rollout_func
        completions = 3  # (prompt_ids, completion_ids, tool_mask, completions, logprobs, extra_fields, ...)
        generated[completions] = [generated[completions][row] for row in self._first_rows]
        return tuple(generated)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        """Score rollouts, not rows: a rollout is represented by its first row."""
        first = [completion_ids_list[row] for row in self._first_rows]
        return super()._calculate_rewards(inputs, prompts, completions, first)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """Expand TRL's advantages, one per rollout of this rank, to the rows; padding rows get 0."""
        batch = super()._generate_and_score_completions(inputs)
        owners = torch.tensor(self._owners, device=batch["advantages"].device)
        batch["advantages"] = batch["advantages"][owners.clamp(min=0)].masked_fill(owners < 0, 0.0)
        delta = measure_delta(batch, self._owners)
        self.last_batch = BatchSummary(
            step=int(self.state.global_step),
            rollout_ids=self._rollout_ids,
            rollouts=len(self._first_rows),
            row_rollout=list(self._owners),
            trained_tokens=int(trained_mask(batch).sum()),
            advantages=[float(value) for value in batch["advantages"]],
            delta=delta,
        )
        first = self.first_batch is None
        self.first_batch = self.first_batch or self.last_batch
        if self._on_batch is not None:
            self._on_batch(self.last_batch)
        if delta is not None:
            self._report_delta(delta, batch, first)
        return batch

    def _report_delta(self, delta: LogpDelta, batch: dict[str, Any], first: bool) -> None:
        """Log the difference of all ranks; judge this rank's own, whose rows are here."""
        model: Any = self.model
        whole = merge_deltas(gather_object([delta]))
        for name, value in delta_metrics(whole).items():
            self._metrics["train" if model.training else "eval"][name].append(value)
        if self._alarm is not None:
            alarm = self._alarm if first else msgspec.structs.replace(self._alarm, action="warn")
            names = [f"rollout {self._rollout_ids[owner]}" if owner >= 0 else "padding" for owner in self._owners]
            sound_alarm(alarm, delta, batch, self.accelerator.unwrap_model(model), self.temperature, names)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **multimodal: Any,
    ) -> Any:
        """TRL's method without padding and without projecting the prompt; text-only models."""
        backbone = _backbone(self.accelerator.unwrap_model(model))
        if backbone is None or compute_aux_loss or any(value is not None for value in multimodal.values()):
            return super()._get_per_token_logps_and_entropies(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size=batch_size,
                compute_entropy=compute_entropy,
                compute_aux_loss=compute_aux_loss,
                **multimodal,
            )
        parts = []
        for rows in row_chunks(input_ids.size(0), batch_size, input_ids.device):
            with self.accelerator.autocast():
                parts.append(
                    completion_logps(
                        model, backbone, input_ids[rows], attention_mask[rows], logits_to_keep, entropy=compute_entropy
                    )
                )
        entropies = torch.cat([part[1] for part in parts if part[1] is not None]) if compute_entropy else None
        return torch.cat([part[0] for part in parts]), entropies, None

    def _sync_if_stale(self) -> None:
        """TRL's own test, done here because ``super()._generate`` only sees the stub."""
        if self.use_vllm and self.state.global_step != self._last_loaded_step:
            with profiling_context(self, "sync_weights"):
                client: Any = self.vllm_generation
                client.sync_weights()
            self._last_loaded_step = self.state.global_step

    def _pad_rows(self, output: dict[str, Any]) -> None:
        """Pad to the largest row count of any rank, rounded up so that TRL's split into micro-batches drops nothing."""
        model: Any = self.model
        args: Any = self.args
        count = torch.tensor([len(self._owners)], device=self.accelerator.device)
        target = int(self.accelerator.gather(count).max())
        if model.training:
            steps = args.steps_per_generation
            target = -(-target // steps) * steps
        missing = target - len(self._owners)
        if missing and output.get("env_mask") is None:
            output["env_mask"] = [[1] * len(ids) for ids in output["completion_ids"]]
        for _ in range(missing):
            output["prompt_ids"].append([self._tokenizer.pad_token_id])
            output["completion_ids"].append([self._tokenizer.eos_token_id])
            output["env_mask"].append([0])
            if output["logprobs"] is not None:
                output["logprobs"].append([0.0])
            self._owners.append(-1)


class EngineSync:
    """Stands where TRL expects its vLLM client: TRL calls ``sync_weights`` before rollouts of a new step."""

    def __init__(self, trainer: Any, sync: Callable[[int], None] | None) -> None:
        self._trainer = trainer
        self._sync = sync

    def sync_weights(self) -> None:
        """Publish the weights of the current step: ``sync(global_step)``."""
        if self._sync is not None:
            self._sync(int(self._trainer.state.global_step))


def attach_engine(trainer: Any, sync: Callable[[int], None] | None = None) -> None:
    """Switch on TRL's importance-sampling correction and its delta metrics without vLLM.

    TRL 1.16 gates both on ``use_vllm``, not on the presence of log-probs, and building a trainer with
    ``use_vllm=True`` needs the vllm package; setting the attributes afterwards does not.

    Args:
        trainer: a built GRPOTrainer (or ForkGRPOTrainer) whose rollout function returns log-probs.
        sync: called with the global step before the first rollout of every new step; publishes weights, closes and
            opens the fence, bumps the engine's policy version. None when the rollouts are recorded.

    Raises:
        ConfigError: another TRL minor version, or the trainer was configured with the correction off.
    """
    require_trl()
    if not trainer.vllm_importance_sampling_correction:
        raise ConfigError(
            "vllm_importance_sampling_correction is off, so nothing would be measured or corrected.",
            fix="Leave it at its default, True.",
        )
    trainer.use_vllm = True
    trainer.vllm_mode = "server"
    trainer.vllm_generation = EngineSync(trainer, sync)
    trainer._last_loaded_step = -1


def _first_rows(owners: list[int], output: dict[str, Any], rollouts: int) -> list[int]:
    """Index of the first row of each rollout; TRL would train misaligned rows in silence, so counts are checked."""
    for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask"):
        if output.get(name) is not None and len(output[name]) != len(owners):
            raise ConfigError(f"rollout_func returned {len(output[name])} {name} for {len(owners)} rows.")
    first: dict[int, int] = {}
    for row, owner in enumerate(owners):
        first.setdefault(owner, row)
    if sorted(first) != list(range(rollouts)):
        raise ConfigError(f"rollout_func returned rows for rollouts {sorted(first)}; {rollouts} prompts were given.")
    return [first[index] for index in range(rollouts)]


def _backbone(model: Any) -> torch.nn.Module | None:
    if hasattr(model, "get_base_model"):  # PEFT wraps the model whose forward TRL patched
        model = model.get_base_model()
    backbone = getattr(model, "base_model", None)
    return backbone if isinstance(backbone, torch.nn.Module) and backbone is not model else None
