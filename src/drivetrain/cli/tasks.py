"""``drivetrain tasks``: list, show and build tasks."""

from __future__ import annotations

import msgspec
import typer
from rich.table import Table

from drivetrain.cli.console import out, print_json, tell
from swe_rl_env.building.build import build_task
from swe_rl_env.tasks.catalog import get_task, load_tasks, prompt_for

app = typer.Typer(no_args_is_help=True, help="Tasks: real bug fixes between two published releases of a package.")


@app.command("ls")
def ls(json_output: bool = typer.Option(False, "--json", help="Print as JSON.")) -> None:
    """List the tasks that can be built here."""
    rows = [
        {
            "id": task.instance_id,
            "language": task.public.language,
            "difficulty": task.difficulty or "",
            "fail_to_pass": len(task.private.fail_to_pass),
            "pass_to_pass": len(task.private.pass_to_pass),
        }
        for task in load_tasks()
    ]
    if json_output:
        print_json(rows)
        return
    table = Table("task", "language", "level", "FAIL_TO_PASS", "PASS_TO_PASS")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    out.print(table)
    out.print(f"{len(rows)} tasks")


@app.command("show")
def show(
    task_id: str = typer.Argument(help="A task id from `drivetrain tasks ls`."),
    json_output: bool = typer.Option(False, "--json", help="Print the public part as JSON."),
) -> None:
    """Show a task as the agent sees it. Hidden tests and the fix are not shown."""
    task = get_task(task_id)
    if json_output:
        print_json(msgspec.to_builtins(task.public))
        return
    out.print(f"[bold]{task.instance_id}[/bold]  {task.license or ''}  base commit {task.base_commit[:12]}")
    out.print(prompt_for(task), markup=False, highlight=False)


@app.command("build")
def build(
    task_ids: list[str] = typer.Argument(None, help="Task ids; all tasks when none is named."),
) -> None:
    """Download and check the archives, make the base repository, the patches and the environment.

    Built tasks are kept in the cache ($DRIVETRAIN_CACHE or ~/.cache/drivetrain) and found there next time.
    """
    tasks = [get_task(task_id) for task_id in task_ids] if task_ids else load_tasks()
    for number, task in enumerate(tasks, 1):
        built = build_task(task, None, tell)
        out.print(f"[{number}/{len(tasks)}] {task.instance_id}  {built.task.base_commit[:12]}", markup=False)
