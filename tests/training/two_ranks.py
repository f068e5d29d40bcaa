"""Run by torchrun from ``test_training_ranks``: one step on this rank's rollouts, gradient written by rank 0."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import TrainerCallback

from drivetrain.rollout.result import RolloutResult
from drivetrain.training.groups import prompt_dataset, training_groups
from drivetrain.training.grpo import attach_engine
from drivetrain.training.recipe import grpo_config
from drivetrain.training.sources import RecordedSource
from drivetrain.training.train import build_trainer, load_model


class Keep(TrainerCallback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        gradient = {
            name.removeprefix("module."): p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
        }
        if os.environ["RANK"] == "0":
            torch.save(gradient, self.path)


def main(model_dir: str, rollouts: str, out: str) -> None:
    torch.set_num_threads(1)
    results = msgspec.json.decode(Path(rollouts).read_bytes(), type=list[RolloutResult])
    groups = training_groups(results)
    model, tokenizer = load_model(model_dir)
    config = grpo_config(out, num_generations=len(results), max_grad_norm=0.0)
    trainer = build_trainer(RecordedSource(results), model, tokenizer, prompt_dataset(groups), config)
    attach_engine(trainer)
    trainer.add_callback(Keep(Path(out) / "gradient.pt"))
    trainer.train()
    batch = trainer.first_batch
    assert batch is not None
    Path(out, f"rank{os.environ['RANK']}.json").write_bytes(msgspec.json.encode(batch))


if __name__ == "__main__":
    main(*sys.argv[1:])
