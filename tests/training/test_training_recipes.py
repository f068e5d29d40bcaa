"""Recipes, the checks that need no GPU, and the GPU scripts' dry runs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drivetrain.cli.main import app
from drivetrain.engines.models import ModelDir
from drivetrain.errors import ConfigError
from drivetrain.rollout.config import RolloutConfig
from drivetrain.training import preflight
from drivetrain.training.recipe import PINNED, grpo_config
from drivetrain.training.recipes import RECIPES, recipe_named

TASK = "pypi__xmltodict-0.14.2"
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_recipe_is_token_level_and_keeps_what_is_pinned(name: str, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    recipe = recipe_named(name)
    settings = recipe.settings | {"use_cpu": True, "bf16": False}
    config = grpo_config(tmp_path, num_generations=4, **settings)
    assert (config.loss_type, config.vllm_importance_sampling_mode) == ("dapo", "token_truncate")
    assert (config.beta, config.importance_sampling_level) == (0.0, "token")
    assert all(getattr(config, key) == value for key, value in PINNED.items())
    assert recipe.alarm.action == "raise" and recipe.about


def test_a_recipe_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="no recipe 'best'"):
        recipe_named("best")
    done = CliRunner().invoke(app, ["train", "--run", "x", "--recipe", "best"])
    assert done.exit_code == 2 and "agent-bf16" in done.output + done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--run", "x", "--engine", "vllm"], "sampled already"),
        (["-t", TASK, "-a", "pi", "--weights-folder", "w"], "--weights-folder is for a server"),
        (["-t", TASK, "-a", "pi", "--engine", "sglang", "--weights-folder", "w"], "cannot sample from sglang"),
        (["-t", TASK, "-a", "pi", "--engine", "vllm", "--weights-folder", "w"], "needs the address"),
    ],
)
def test_weights_and_servers_that_do_not_go_together(options: list[str], message: str) -> None:
    pytest.importorskip("trl")
    done = CliRunner().invoke(app, ["train", *options])
    assert done.exit_code == 2
    assert message in done.output + done.stderr


def test_another_trl_is_noticed_before_a_gpu_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    from trl.trainer.grpo_trainer import GRPOTrainer

    monkeypatch.delattr(GRPOTrainer, "_calculate_rewards")
    with pytest.raises(ConfigError, match=r"no _calculate_rewards\."):
        preflight.check_grpo_seam()

    def changed(self: Any, rollout_worker: Any) -> None: ...

    from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

    monkeypatch.setattr(AsyncGRPOTrainer, "__init__", changed)
    with pytest.raises(ConfigError, match=r"takes no weight_transfer\."):
        preflight.check_async_seam()


def test_a_plan_that_cannot_travel_is_refused() -> None:
    config = RolloutConfig(tasks=(TASK,), agents=("pi",))
    assert preflight.check_plan(config, config) == "1 tasks, 1 agents, 1 things that travel"
    with pytest.raises(ConfigError, match="function cannot travel"):
        preflight.check_plan(config, lambda: None)
    with pytest.raises(ConfigError, match="no-such-task"):
        preflight.check_plan(RolloutConfig(tasks=("no-such-task",), agents=("pi",)))


@pytest.mark.parametrize(
    ("script", "options", "says"),
    [
        ("grpo_vllm.py", [], ["GRPOTrainer(rollout_func=...) with forks", "dapo, token_truncate, 100 steps: ready"]),
        (
            "async_grpo_vllm.py",
            [],
            ["OpenEnv session factory", "1 things that travel", "staleness 4, 200 steps: ready"],
        ),
        ("async_grpo_vllm.py", ["--lora-rank", "16"], ["ready"]),
    ],
)
def test_gpu_scripts_are_checked_without_a_gpu(
    script: str,
    options: list[str],
    says: list[str],
    tiny_model: ModelDir,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("trl")
    pytest.importorskip("openenv.core.harness")
    arguments = ["--model", str(tiny_model.path), "--task", TASK, "--agent", "pi", "--dry-run", *options]
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(text in printed for text in says), printed
