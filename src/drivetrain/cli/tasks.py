"""``drivetrain tasks``: list, show, count, build and validate tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.table import Table

from drivetrain.cli import task_options as options
from drivetrain.cli.completion import tasks as complete_tasks
from drivetrain.cli.console import out, print_json, tell
from drivetrain.cli.task_options import TaskChoice, make_filters
from drivetrain.cli.tasks_generate import generate
from drivetrain.cli.tasks_validate import validate_command
from swe_rl_env.building.build import build_task
from swe_rl_env.tasks.catalog import prompt_for
from swe_rl_env.tasks.model import SweTask
from swe_rl_env.tasks.select import split_of
from swe_rl_env.tasks.select import stats as count

app = typer.Typer(
    no_args_is_help=True,
    help="Tasks: real bug fixes, in SWE-rebench V2's schema. Those of this package are made from two published "
    "releases each; --source reads SWE-rebench (V2), SWE-bench, SWE-Gym and others.",
)


app.command("generate")(generate)


@app.command("ls")
def ls(
    source: str | None = options.SOURCE,
    format: str | None = options.FORMAT,
    language: list[str] = options.LANGUAGE,
    repo: list[str] = options.REPO,
    difficulty: list[str] = options.DIFFICULTY,
    min_lines: int | None = options.MIN_LINES,
    max_lines: int | None = options.MAX_LINES,
    rates: Path | None = options.RATES,
    min_pass_rate: float | None = options.MIN_RATE,
    max_pass_rate: float | None = options.MAX_RATE,
    text: str = options.TEXT,
    split: str | None = options.SPLIT,
    include_quarantined: bool = options.QUARANTINED,
    quarantine: Path | None = options.QUARANTINE,
    rejected: bool = typer.Option(False, "--rejected", help="List the rows that are no tasks, with the reason."),
    json_output: bool = options.JSON,
) -> None:
    """List tasks with language, difficulty, size and split.

    Example: drivetrain tasks ls --language python --max-lines 20 --split train
    """
    filters = make_filters(
        split,
        languages=language,
        repos=repo,
        difficulties=difficulty,
        min_lines=min_lines,
        max_lines=max_lines,
        min_pass_rate=min_pass_rate,
        max_pass_rate=max_pass_rate,
        text=text,
    )
    choice = TaskChoice(source=source, format=format, filters=filters, rates=rates, quarantine=quarantine)
    if rejected:
        _print_rejected(choice, json_output)
        return
    rows = [_brief(task) for task in choice.load(include_quarantined=include_quarantined)]
    if json_output:
        print_json(rows)
        return
    table = Table("task", "language", "level", "lines", "FAIL_TO_PASS", "PASS_TO_PASS", "split")
    for row in rows:
        table.add_row(*("" if row[name] is None else str(row[name]) for name in _COLUMNS))
    out.print(table)
    out.print(f"{len(rows)} tasks")


_COLUMNS = ("id", "language", "difficulty", "patch_lines", "fail_to_pass", "pass_to_pass", "split")


def _brief(task: SweTask) -> dict[str, Any]:
    return {
        "id": task.instance_id,
        "repo": task.public.repo,
        "language": task.public.language,
        "difficulty": task.difficulty or "",
        "patch_lines": task.patch_lines,
        "fail_to_pass": len(task.private.fail_to_pass),
        "pass_to_pass": len(task.private.pass_to_pass),
        "split": split_of(task),
        "dataset": task.dataset,
        "evaluation_only": task.evaluation_only,
    }


def _print_rejected(choice: TaskChoice, json_output: bool) -> None:
    rows = [msgspec.to_builtins(row) for row in choice.read().rejected]
    if json_output:
        print_json(rows)
        return
    for row in rows:
        line = f"{row['where']} {row['instance_id'] or '-'}: {row['code']}: {row['reason']}"
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    out.print(f"{len(rows)} rows are no tasks")


@app.command("show")
def show(
    task_id: str = typer.Argument(help="A task id from `drivetrain tasks ls`.", autocompletion=complete_tasks),
    source: str | None = options.SOURCE,
    format: str | None = options.FORMAT,
    json_output: bool = typer.Option(False, "--json", help="Print the public part as JSON."),
) -> None:
    """Show a task as the agent sees it. Hidden tests and the fix are not shown.

    Example: drivetrain tasks show pypi__xmltodict-0.14.2
    """
    (task,) = TaskChoice(source=source, format=format, ids=(task_id,)).load()
    if json_output:
        print_json(msgspec.to_builtins(task.public))
        return
    out.print(f"[bold]{task.instance_id}[/bold]  {task.license or ''}  base commit {task.base_commit[:12]}")
    out.print(prompt_for(task), markup=False, highlight=False)


@app.command("stats")
def stats(
    source: str | None = options.SOURCE,
    format: str | None = options.FORMAT,
    include_quarantined: bool = options.QUARANTINED,
    quarantine: Path | None = options.QUARANTINE,
    json_output: bool = options.JSON,
) -> None:
    """Count tasks by language, difficulty, split and repository, and the sizes of fixes and suites.

    Example: drivetrain tasks stats --source tasks.jsonl
    """
    tasks = TaskChoice(source=source, format=format, quarantine=quarantine).load(
        include_quarantined=include_quarantined
    )
    counts = count(tasks)
    if json_output:
        print_json(counts)
        return
    out.print(f"{counts['tasks']} tasks from {counts['repositories']} repositories")
    for name, values in counts.items():
        if isinstance(values, dict) and values:
            shown = ", ".join(f"{key} {value:g}" for key, value in list(values.items())[:12])
            more = f", and {len(values) - 12} more" if len(values) > 12 else ""
            out.print(f"{name}: {shown}{more}", markup=False, highlight=False, soft_wrap=True)


@app.command("build")
def build(
    task_ids: list[str] = typer.Argument(
        None, help="Task ids; all tasks when none is named.", autocompletion=complete_tasks
    ),
    source: str | None = options.SOURCE,
    format: str | None = options.FORMAT,
    json_output: bool = options.JSON,
) -> None:
    """Download and check the archives, make the base repository, the patches and the environment.

    Built tasks are kept in the cache ($DRIVETRAIN_CACHE or ~/.cache/drivetrain) and found there next time.

    Example: drivetrain tasks build pypi__xmltodict-0.14.2
    """
    tasks = TaskChoice(source=source, format=format, ids=tuple(task_ids or ())).load(include_quarantined=True)
    rows = []
    for number, task in enumerate(tasks, 1):
        built = build_task(task, None, tell)
        rows.append({"id": task.instance_id, "base_commit": built.task.base_commit, "folder": str(built.root)})
        if not json_output:
            line = f"[{number}/{len(tasks)}] {task.instance_id}  {built.task.base_commit[:12]}"
            out.print(line, markup=False)
    if json_output:
        print_json(rows)


@app.command("validate")
def validate(
    task_ids: list[str] = typer.Argument(
        None, help="Task ids; all tasks when none is named.", autocompletion=complete_tasks
    ),
    source: str | None = options.SOURCE,
    format: str | None = options.FORMAT,
    runs: int = typer.Option(3, "--runs", "-n", help="Graded runs with the reference fix, and as many without."),
    noop_runs: int | None = typer.Option(None, "--noop-runs", help="Another number of runs without the fix."),
    shuffle: bool = typer.Option(True, help="One more run with the tests in another order, where the runner can."),
    seed: int = typer.Option(0, help="Draws that order."),
    sandbox: str = typer.Option("local", "--sandbox", help="Sandbox backend."),
    image: str | None = typer.Option(None, help="Image that its sandboxes start from; default: the backend's."),
    concurrency: int = typer.Option(1, "--concurrency", "-c", help="Tasks at a time."),
    folder: Path | None = typer.Option(
        None, "--out", "-o", help="Report folder; default `validation` in the cache folder."
    ),
    report: Path | None = typer.Option(
        None,
        "--report",
        help="Write the table into this file too, with what --out knows of the same runs in other kinds of sandbox. In "
        "a document that exists it goes between the lines `<!-- tasks validate: begin -->` and `... end -->`.",
    ),
    quarantine: Path | None = options.QUARANTINE,
    json_output: bool = options.JSON,
) -> None:
    """Grade every task with the reference fix and without, several times; put what is unfit into quarantine.

    A stopped validation goes on where it was: finished tasks are not run again unless task or options change.

    Exits with 1 when a task is not fit.

    Example: drivetrain tasks validate pypi__xmltodict-0.14.2 --runs 5
    """
    validate_command(
        TaskChoice(source=source, format=format, ids=tuple(task_ids or ()), quarantine=quarantine),
        runs=runs,
        noop_runs=noop_runs,
        shuffle=shuffle,
        seed=seed,
        sandbox=sandbox,
        image=image,
        concurrency=concurrency,
        folder=folder,
        table=report,
        quarantine=quarantine,
        json_output=json_output,
    )
