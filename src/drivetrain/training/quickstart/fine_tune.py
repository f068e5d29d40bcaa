"""Supervised fine-tuning (TRL's SFTTrainer) on token ids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drivetrain.engines.models import ModelDir
from drivetrain.errors import ConfigError
from drivetrain.training.train import load_model
from drivetrain.training.versions import known_warnings, require_trl


def fine_tune(
    model_dir: ModelDir,
    lines: Sequence[dict[str, Any]],
    *,
    out_dir: Path,
    epochs: float,
    learning_rate: float,
    batch: int,
    seed: int,
) -> list[float]:
    """Train ``model_dir`` in place; the losses that TRL logged (nats per token).

    Args:
        lines: ``input_ids`` and ``labels``, see :func:`drivetrain.trace.export.sft_tokens.sft_token_lines`.
        out_dir: where TRL may write.
        batch: lines per update.

    Raises:
        ConfigError: no lines.
        MissingDependency: TRL is not installed.
    """
    require_trl()
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    if not lines:
        raise ConfigError("there is nothing to fine-tune on.", fix="Record episodes that the agent completes.")
    model, tokenizer = load_model(model_dir.path)
    updates = math.ceil(math.ceil(len(lines) / batch) * epochs)
    config: dict[str, Any] = {
        "output_dir": str(out_dir),
        "per_device_train_batch_size": batch,
        "num_train_epochs": epochs,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": updates // 4},
        # With 0.999 the large gradients of the first steps, which learn spelling, drown what comes later.
        "adam_beta2": 0.95,
        "warmup_steps": min(10, updates // 4),
        "max_length": None,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "disable_tqdm": True,
        "report_to": "none",
        "save_strategy": "no",
        "seed": seed,
    }
    with known_warnings():
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(**config),
            train_dataset=Dataset.from_list(list(lines)),
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    model.save_pretrained(model_dir.path, safe_serialization=True)
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
