"""``drivetrain prepare``: fetch and build ahead what rollouts need."""

from __future__ import annotations

import time

import typer

from drivetrain.cli.console import out, tell
from drivetrain.engines.models import DEFAULT_MODEL, resolve_model
from swe_rl_agent.registry import get_agent, list_agents
from swe_rl_env.building.build import build_task
from swe_rl_env.tasks.catalog import get_task, load_tasks


def prepare(
    agent: list[str] = typer.Option([], "--agent", "-a", help="Agent bundle to build; all agents when none is named."),
    task: list[str] = typer.Option([], "--task", "-t", help="Task to build; may be repeated."),
    all_tasks: bool = typer.Option(False, "--all-tasks", help="Build every task."),
    model: str = typer.Option(DEFAULT_MODEL, "--model", "-m", help="Bundled model name or model directory."),
) -> None:
    """Build agent bundles, convert the model and build tasks, so that a long run starts at once and needs no network.

    What is built lies in $DRIVETRAIN_CACHE or ~/.cache/drivetrain; what is there already is only checked.
    """
    harnesses = [get_agent(name) for name in agent or list_agents()]
    tasks = (
        [known.instance_id for known in load_tasks()] if all_tasks else [get_task(name).instance_id for name in task]
    )
    started = time.monotonic()
    for harness in harnesses:
        bundle = harness.prepare(None, tell)
        out.print(f"agent {bundle.name} {bundle.version}  {bundle.bytes >> 20} MiB  {bundle.sha256[:12]}", markup=False)
    resolved = resolve_model(model, None, tell)
    out.print(f"model {resolved.name}  context {resolved.context_length}", markup=False)
    for task_id in tasks:
        built = build_task(get_task(task_id), None, tell)
        out.print(f"task {built.task.instance_id}", markup=False)
    tell(f"ready after {time.monotonic() - started:.0f} s")
