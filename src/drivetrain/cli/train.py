"""``drivetrain train``: GRPO on recorded rollouts."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from drivetrain.cli.console import out, print_json, tell
from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.rollout.run_dir import RunDir

TOLERANCE = 1e-4
"""Largest |log-prob difference| between trainer and sampler that fp32 explains on one machine (engines.md, 5)."""


def train(
    run_dir: Path = typer.Option(..., "--run", "-r", help="Run folder that `drivetrain rollout` wrote."),
    steps: int = typer.Option(1, help="GRPO updates on these rollouts; those after the first are off-policy."),
    learning_rate: float = typer.Option(1e-6, "--lr", help="Learning rate."),
    out_dir: Path | None = typer.Option(None, "--out", "-o", help="Save the trained model in this folder."),
    seed: int = typer.Option(42, help="Seed of the trainer."),
    json_output: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> None:
    """Run GRPO (TRL) on the rollouts of a run, on the model that sampled them, in fp32 on the CPU.

    Every group (task x agent) needs at least two rollouts and all groups equally many. Prints the largest
    |log-prob difference| between trainer and sampler and exits with 1 when it exceeds 1e-4: then the recorded tokens
    are not what this model sampled, and training on them would be wrong.
    """
    try:
        from drivetrain.training.train import train_recorded
    except ImportError as error:
        raise MissingDependency("training needs TRL.", fix="Install it: pip install 'drivetrain[trl]'.") from error
    run = RunDir.open(run_dir)
    info: dict[str, Any] = run.info()
    if info.get("model") is None:
        raise ConfigError(f"the rollouts in {run_dir} made no model calls.", fix="Run an agent that uses the model.")
    with ExitStack() as stack:
        folder = out_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drivetrain-train-")))
        report = train_recorded(
            run.results(),
            info["model"]["path"],
            out_dir=folder,
            steps=steps,
            learning_rate=learning_rate,
            temperature=info["config"]["temperature"],
            policy_version=info.get("policy_version"),
            save_model=out_dir is not None,
            seed=seed,
            progress=tell,
        )
    if json_output:
        print_json(report)
    else:
        table = Table("GRPO", "")
        table.add_row("steps", str(report.steps))
        table.add_row("rollouts, rows, trained tokens", f"{report.rollouts}, {report.rows}, {report.trained_tokens}")
        table.add_row("reward mean, std", f"{_number(report.reward_mean)}, {_number(report.reward_std)}")
        table.add_row("loss, gradient norm", f"{report.loss:.3g}, {report.grad_norm:.3g}")
        table.add_row("largest |log-prob difference|", f"{report.logp_diff_max:.3g} (allowed {TOLERANCE:g})")
        table.add_row("mean |log-prob difference|", f"{report.logp_diff_mean:.3g}")
        table.add_row("seconds, peak memory", f"{report.seconds:.1f}, {report.peak_memory / 2**30:.1f} GiB")
        out.print(table)
        for note in report.notes:
            out.print(note, markup=False)
        if report.saved_to:
            out.print(f"model: {report.saved_to}", markup=False)
    if report.logp_diff_max > TOLERANCE:
        out.print(f"worst rollout: {report.worst_rollout}", markup=False)
        raise typer.Exit(1)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
