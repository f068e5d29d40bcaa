"""``drivetrain train --recipe quickstart``: a policy that learns through a real agent, in minutes, on a CPU."""

from __future__ import annotations

from pathlib import Path

import msgspec
import typer
from rich.table import Table

from drivetrain.cli.console import out, print_json, tell
from drivetrain.training.quickstart.settings import SHORT, QuickstartSettings

_FULL = "This was the short form. The full one: drivetrain train --recipe quickstart --out FOLDER (docs/learning.md)."


def run_quickstart(folder: Path, *, seed: int, short: bool, json_output: bool) -> None:
    """Learn, print what was learned, and exit with 1 when the policy did not improve. The short form measures too few
    episodes to say that, and exits with 0.

    Raises:
        ConfigError, MissingDependency: see :func:`drivetrain.training.quickstart.learn.learn`.
    """
    from drivetrain.training.quickstart.learn import learn

    settings = QuickstartSettings(seed=seed)
    report = learn(msgspec.structs.replace(settings, **SHORT) if short else settings, folder, tell)
    if json_output:
        print_json(report)
    else:
        table = Table("quickstart", "")
        table.add_row("the recorded agent", f"{report.oracle_reward:.2f}")
        for at in report.heldout:
            said = f"{at.reward:.2f} ± {at.stderr:.2f} ({at.episodes} episodes)"
            table.add_row(f"held-out, after {at.step} updates", said)
        table.add_row("largest |log-prob difference|", f"{report.logp_diff_max:.3g}")
        table.add_row("episodes, ungraded", f"{report.episodes}, {report.failed}")
        table.add_row("seconds", ", ".join(f"{name} {value:.0f}" for name, value in report.seconds.items()))
        table.add_row("peak memory", f"{report.peak_memory / 2**30:.1f} GiB")
        out.print(table)
        out.print(f"curve: {report.curve}\nmodel: {report.model}", markup=False, soft_wrap=True)
    if short:
        tell(_FULL)
    elif not report.after > report.before:
        raise typer.Exit(1)
