"""The GRPO settings that fit agent rollouts, and the checks that keep log-probs comparable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from drivetrain.errors import ConfigError
from drivetrain.training.versions import known_warnings, require_trl

#: Settings an override may not change: with any other value the sampler's log-probs are not those the trainer
#: recomputes (truncated sampling biases the ratio, trl issue 6789), or rows are silently dropped.
PINNED: dict[str, Any] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "disable_dropout": True,
    "vllm_importance_sampling_correction": True,
    # An agent's last token need not be an end token; TRL would zero such rows.
    "mask_truncated_completions": False,
    "remove_unused_columns": False,
}


def grpo_config(
    output_dir: str | Path,
    *,
    num_generations: int,
    prompts_per_step: int = 1,
    micro_batch: int = 1,
    steps: int = 1,
    learning_rate: float = 1e-6,
    temperature: float = 1.0,
    gradient_checkpointing: bool = False,
    use_cpu: bool = True,
    world_size: int | None = None,
    seed: int = 42,
    **overrides: Any,
) -> Any:
    """Build the ``GRPOConfig`` of one optimizer step per generation batch.

    ``micro_batch`` rollouts of a rank share a forward and backward pass; the generation batch of ``num_generations *
    prompts_per_step`` rollouts over all ``world_size`` ranks (default: torchrun's ``WORLD_SIZE``, else 1) is
    accumulated over the rest. The recipe: fp32, token-mean loss (``dapo``), no KL
    term, token-level truncated importance ratios (TRL's default ``sequence_mask`` zeroes whole long episodes: a bias
    of 0.002 nat per token over 1,000 tokens gives gradient 0), no dropout, no truncation masking, constant learning
    rate, nothing saved, nothing reported. ``temperature`` must be the sampler's.

    Raises:
        ConfigError: group size below 2, sizes that do not divide, or an override of a pinned setting.
        MissingDependency: TRL is not installed.
    """
    require_trl()
    from trl.trainer.grpo_config import GRPOConfig

    batch = num_generations * prompts_per_step
    if num_generations < 2:
        raise ConfigError(
            f"num_generations is {num_generations}; GRPO compares rollouts of one task.", fix="Use at least 2."
        )
    ranks = world_size or int(os.environ.get("WORLD_SIZE", "1"))
    if batch % (micro_batch * ranks):
        raise ConfigError(
            f"{batch} rollouts per step do not divide into micro-batches of {micro_batch} on {ranks} ranks.",
            fix="Choose a micro_batch so that micro_batch * ranks divides num_generations * prompts_per_step.",
        )
    for name, value in PINNED.items():
        if name in overrides and overrides[name] != value:
            raise ConfigError(
                f"{name}={overrides[name]!r} makes trainer and sampler disagree; it must be {value!r}.",
                fix=f"Remove {name} from the overrides.",
            )
    settings: dict[str, Any] = {
        "output_dir": str(output_dir),
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": batch // (micro_batch * ranks),
        "num_generations": num_generations,
        "max_steps": steps,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "temperature": temperature,
        "loss_type": "dapo",
        "beta": 0.0,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 2.0,
        "use_cpu": use_cpu,
        "bf16": False,
        "gradient_checkpointing": gradient_checkpointing,
        "shuffle_dataset": False,
        "logging_steps": 1,
        "disable_tqdm": True,
        "report_to": "none",
        "save_strategy": "no",
        "ddp_timeout": 7200,  # the slowest episode holds every rank; the default of 1800 s is shorter than an episode
        "seed": seed,
    }
    with known_warnings():
        return GRPOConfig(**{**settings, **PINNED, **overrides})


def check_no_dropout(model: Any) -> None:
    """Refuse a model whose config applies dropout inside attention.

    TRL rescores in train mode, so dropout reads as a difference between trainer and sampler (1.7 nat at 0.1).
    ``disable_dropout`` removes ``nn.Dropout`` modules only, not the functional dropout of attention.

    Raises:
        ConfigError: the config has a dropout other than 0.
    """
    config = model.config.get_text_config()
    for name in ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"):
        value = getattr(config, name, 0.0)
        if value:
            raise ConfigError(f"the model's {name} is {value}.", fix=f"Set {name} to 0.0 in its config.json.")
