"""``drivetrain train``: GRPO on recorded rollouts, or on episodes run between the updates."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from drivetrain.cli import engine_options as engines
from drivetrain.cli import task_options as options
from drivetrain.cli.completion import agents as complete_agents
from drivetrain.cli.completion import tasks as complete_tasks
from drivetrain.cli.console import out, print_json, tell
from drivetrain.cli.quickstart import run_quickstart
from drivetrain.cli.task_options import TaskChoice
from drivetrain.engines.models import DEFAULT_MODEL, resolve_model
from drivetrain.engines.open import REMOTE
from drivetrain.errors import ConfigError
from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.run_dir import RunDir
from drivetrain.training.file_transfer import FileTransfer
from drivetrain.training.recipes import RECIPES, Recipe, recipe_named
from drivetrain.training.report import TrainReport
from drivetrain.training.versions import require_trl
from swe_rl_env.tasks.model import SweTask

QUICKSTART = "quickstart"


def train(
    run_dir: Path | None = typer.Option(None, "--run", "-r", help="Train on this run of `drivetrain rollout`."),
    task: list[str] = typer.Option(
        [], "--task", "-t", help="Or: run episodes of this task now; may be repeated.", autocompletion=complete_tasks
    ),
    source: str | None = options.SOURCE,
    format: str | None = options.FORMAT,
    allow_benchmarks: bool = options.ALLOW_BENCHMARKS,
    agent: list[str] = typer.Option(
        [], "--agent", "-a", help="Agent of the live episodes; may be repeated.", autocompletion=complete_agents
    ),
    n: int = typer.Option(2, "-n", help="Live: rollouts per task and agent in a step (the GRPO group)."),
    model: str = typer.Option(DEFAULT_MODEL, "--model", "-m", help="Live: bundled model name or model directory."),
    steps: int = typer.Option(1, help="GRPO updates. On recorded rollouts those after the first are off-policy."),
    learning_rate: float = typer.Option(1e-6, "--lr", help="Learning rate."),
    temperature: float = typer.Option(1.0, help="Live: sampling temperature."),
    max_turns: int = typer.Option(20, help="Live: model calls per rollout."),
    max_tokens: int = typer.Option(512, help="Live: sampled tokens per model call."),
    deadline: float = typer.Option(1800.0, help="Live: seconds of wall time for the agent."),
    variant: str | None = typer.Option(None, help="Live: preset variant, e.g. 'small' for short prompts."),
    concurrency: int = typer.Option(2, "--concurrency", "-c", help="Live: rollouts in flight."),
    recipe: str = typer.Option(
        "agent", help=f"Settings: {', '.join(RECIPES)} (docs/training.md); or {QUICKSTART}: the learning demo."
    ),
    engine: str = engines.ENGINE,
    engine_url: list[str] = engines.URL,
    engine_api_key_env: str = engines.API_KEY_ENV,
    engine_model: str = engines.SERVED,
    engine_boot_timeout: float = engines.BOOT_TIMEOUT,
    weights_folder: Path | None = typer.Option(
        None, help="Live, with --engine vllm: where weights are left for the server after each update."
    ),
    threads: int | None = engines.THREADS,
    out_dir: Path | None = typer.Option(None, "--out", "-o", help="Save the trained model in this folder."),
    short: bool = typer.Option(False, "--short", help=f"{QUICKSTART}: less than half of the episodes."),
    seed: int = typer.Option(42, help="Seed of the trainer."),
    json_output: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> None:
    """Run GRPO (TRL) in fp32 on the CPU: on recorded rollouts (--run), or on episodes run between the updates (--task).

    Every group (task x agent) needs at least two rollouts and all groups equally many. Live episodes are sampled from
    the trainer's own weights and recorded under runs/. Prints the largest |log-prob difference| between trainer and
    sampler. Where it is more than the recipe allows the recorded tokens are not what this model sampled: nothing is
    trained, and the cause is named.

    Example: drivetrain train -t pypi__xmltodict-0.14.2 -a pi -n 4 --steps 3 --variant small --out trained

    `drivetrain train --recipe quickstart --out FOLDER` needs no task, agent or model: a small policy imitates a
    mediocre agent and is then trained on generated bugs through Pi; what it learned is measured on held-out ones
    (docs/learning.md). Only --out, --seed, --short and --json apply.
    """
    require_trl()
    if recipe == QUICKSTART:
        if run_dir is not None or task or agent or source is not None:
            raise ConfigError(
                f"recipe {QUICKSTART} brings its own tasks and agent.",
                fix="Give --out, --seed, --short and --json only.",
            )
        if out_dir is None:
            raise ConfigError(f"recipe {QUICKSTART} leaves a model and a curve.", fix="Name a folder with --out.")
        run_quickstart(out_dir, seed=seed, short=short, json_output=json_output)
        return
    if short:
        raise ConfigError(
            f"--short goes with --recipe {QUICKSTART}.", fix="Leave it out; --steps says how long to train."
        )
    if (run_dir is None) == (not task):
        raise ConfigError("name a recorded run with --run, or live tasks with --task and --agent (not both).")
    if run_dir is not None and source is not None:
        raise ConfigError("--source goes with live tasks (--task): a recorded run has its tasks in it.")
    chosen_recipe = recipe_named(recipe)
    _check_engine(engine, run_dir, weights_folder)
    spec = engines.engine_spec(engine, engine_url, engine_api_key_env, engine_model, False, engine_boot_timeout)
    with ExitStack() as stack:
        folder = out_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drivetrain-train-")))
        common: dict[str, Any] = {"out_dir": folder, "steps": steps, "learning_rate": learning_rate, "seed": seed}
        common |= {"save_model": out_dir is not None, "progress": tell}
        common |= {"alarm": chosen_recipe.alarm, "settings": chosen_recipe.settings}
        if run_dir is not None:
            report = _recorded(RunDir.open(run_dir), common)
        else:
            choice = TaskChoice(
                source=source, format=format, ids=tuple(task), purpose="train", allow_benchmarks=allow_benchmarks
            )
            tasks = choice.load()
            config = RolloutConfig(
                tasks=tuple(chosen.instance_id for chosen in tasks),
                agents=tuple(agent),
                n=n,
                model=model,
                concurrency=concurrency,
                temperature=temperature,
                max_turns=max_turns,
                max_tokens=max_tokens,
                deadline_s=deadline,
                variant=variant,
                threads=threads,
                engine=spec,
                source=source,
            )
            report = _live(config, tasks, weights_folder, chosen_recipe, common)
    if json_output:
        print_json(report)
    else:
        _print(report)


def _check_engine(engine: str, run_dir: Path | None, weights_folder: Path | None) -> None:
    """Live episodes are sampled from the trainer's own weights: in its process, or by a server that is sent them.

    Raises:
        ConfigError: nobody would send weights to the server, or there is none to send them to.
    """
    remote = engine in REMOTE
    if remote and run_dir is not None:
        raise ConfigError("--engine goes with live tasks (--task): recorded rollouts were sampled already.")
    if remote and (engine != "vllm" or weights_folder is None):
        raise ConfigError(
            f"live training cannot sample from {engine}: without --weights-folder, which only vLLM takes, this command "
            "sends no weights to a server, so that every step after the first would be off-policy.",
            fix="With vLLM on this machine give --weights-folder (docs/training.md); or leave --engine out; or record "
            "with `drivetrain rollout --engine` and train with --run.",
        )
    if weights_folder is not None and not remote:
        raise ConfigError("--weights-folder is for a server.", fix="Leave it out, or give --engine vllm.")


def _recorded(run: RunDir, common: dict[str, Any]) -> TrainReport:
    from drivetrain.training.delta_log import delta_writer
    from drivetrain.training.train import train_recorded

    info: dict[str, Any] = run.info()
    if info.get("model") is None:
        raise ConfigError(f"the rollouts in {run.path} made no model calls.", fix="Run an agent that uses the model.")
    return train_recorded(
        run.results(),
        info["model"]["path"],
        temperature=info["config"]["temperature"],
        policy_version=info.get("policy_version"),
        on_batch=delta_writer(run),
        **common,
    )


def _live(
    config: RolloutConfig, tasks: list[SweTask], weights_folder: Path | None, recipe: Recipe, common: dict[str, Any]
) -> TrainReport:
    from drivetrain.training.delta_log import delta_writer
    from drivetrain.training.episodes import LiveRollouts
    from drivetrain.training.live import train_live

    run = RunDir.create()
    resolved = resolve_model(config.model, None, tell)
    transfer: FileTransfer | None = None
    if weights_folder is not None:
        transfer = FileTransfer(config.engine.urls, weights_folder, api_key=config.engine.api_key())
    with LiveRollouts(config, resolved, run, tell, tasks, transfer=transfer, tolerance=recipe.tolerance) as live:
        report = train_live(
            live.make_source,
            live.tasks,
            resolved.path,
            num_generations=config.n,
            temperature=config.temperature,
            sync=live.sync,
            on_batch=delta_writer(run),
            **common,
        )
    tell(f"episodes: {run.path}")
    return report


def _print(report: TrainReport) -> None:
    table = Table("GRPO", "")
    table.add_row("steps", str(report.steps))
    table.add_row("rollouts, rows, trained tokens", f"{report.rollouts}, {report.rows}, {report.trained_tokens}")
    table.add_row("reward mean, std", f"{_number(report.reward_mean)}, {_number(report.reward_std)}")
    table.add_row("loss, gradient norm", f"{report.loss:.3g}, {report.grad_norm:.3g}")
    table.add_row("largest |log-prob difference|", f"{report.logp_diff_max:.3g}")
    table.add_row("mean |log-prob difference|", f"{report.logp_diff_mean:.3g}")
    table.add_row("seconds, peak memory", f"{report.seconds:.1f}, {report.peak_memory / 2**30:.1f} GiB")
    out.print(table)
    for note in report.notes:
        out.print(note, markup=False)
    if report.saved_to:
        out.print(f"model: {report.saved_to}", markup=False)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
