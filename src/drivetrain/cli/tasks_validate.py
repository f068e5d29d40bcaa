"""``drivetrain tasks validate``: is each task fit on this machine? What is not goes to the quarantine file."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer

from drivetrain.cache import cache_root
from drivetrain.cli.console import out, print_json, tell
from drivetrain.cli.task_options import TaskChoice
from drivetrain.errors import ConfigError
from drivetrain.sandboxes.registry import get_backend
from swe_rl_env.grading.campaign import Checked, Plan, known_elsewhere, validate_tasks
from swe_rl_env.grading.campaign_report import check_place, markdown, quarantined, summary, write_table
from swe_rl_env.tasks.model import SweTask
from swe_rl_env.tasks.quarantine import update_quarantine


def validate_command(
    choice: TaskChoice,
    *,
    runs: int,
    noop_runs: int | None,
    shuffle: bool,
    seed: int,
    sandbox: str,
    image: str | None,
    concurrency: int,
    folder: Path | None,
    table: Path | None,
    quarantine: Path | None,
    json_output: bool,
) -> None:
    """Validate, write the report and the quarantine file, print the table.

    Raises:
        ConfigError: a number that makes no sense, an unknown task or sandbox, or no place for the table in a document.
    """
    if runs < 1 or (noop_runs is not None and noop_runs < 1) or concurrency < 1:
        raise ConfigError("--runs, --noop-runs and --concurrency must be positive.")
    plan = Plan(
        gold_runs=runs, noop_runs=runs if noop_runs is None else noop_runs, shuffle_seed=seed if shuffle else None
    )
    if table is not None:
        check_place(table)
    tasks = choice.load(include_quarantined=True)  # a task that is in quarantine is validated again, and may come out
    folder = folder or cache_root() / "validation"
    results = asyncio.run(_run(tasks, plan, sandbox, image, concurrency, folder))
    report = summary(results, plan)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    (folder / "report.md").write_text(markdown(results, plan), encoding="utf-8")
    if table is not None:
        elsewhere = known_elsewhere(folder, tasks, plan, sandbox)
        write_table(table, markdown(sorted([*elsewhere, *results], key=_local_first), plan))
    fit = [c.instance_id for c in results if c.kind == "fit"]
    where = update_quarantine(quarantine, quarantined(results), fit)
    if json_output:
        print_json({**report, "folder": str(folder), "quarantine": str(where)})
    else:
        sys.stdout.write(markdown(results, plan))
        out.print(f"report: {folder}/report.md, quarantine: {where}", markup=False, highlight=False, soft_wrap=True)
    if len(fit) < len(results):
        raise typer.Exit(1)


def _local_first(c: Checked) -> tuple[bool, str]:
    return c.backend != "local", c.backend


async def _run(
    tasks: Sequence[SweTask], plan: Plan, sandbox: str, image: str | None, concurrency: int, folder: Path
) -> list[Checked]:
    backend = get_backend(sandbox)

    def done(checked: Checked, number: int, total: int) -> None:
        why = f" ({checked.reasons[0]})" if checked.reasons else ""
        tell(f"[{number}/{total}] {checked.instance_id}: {checked.kind}{why}, {checked.seconds:.0f} s")

    try:
        return await validate_tasks(
            tasks, backend, folder, plan=plan, image=image, concurrency=concurrency, on_done=done, tell=tell
        )
    finally:
        await backend.aclose()
