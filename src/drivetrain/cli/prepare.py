"""``drivetrain prepare``: fetch and build ahead what rollouts need."""

from __future__ import annotations

import time
from typing import Any

import typer

from drivetrain.cli.completion import agents as complete_agents
from drivetrain.cli.completion import tasks as complete_tasks
from drivetrain.cli.console import out, print_json, tell
from drivetrain.engines.models import DEFAULT_MODEL, resolve_model
from swe_rl_agent.registry import get_agent, list_agents
from swe_rl_env.building.build import build_task
from swe_rl_env.tasks.catalog import get_task, load_tasks


def prepare(
    agent: list[str] = typer.Option(
        [],
        "--agent",
        "-a",
        help="Agent bundle to build; all agents when none is named.",
        autocompletion=complete_agents,
    ),
    task: list[str] = typer.Option(
        [], "--task", "-t", help="Task to build; may be repeated.", autocompletion=complete_tasks
    ),
    all_tasks: bool = typer.Option(False, "--all-tasks", help="Build every task."),
    model: str = typer.Option(DEFAULT_MODEL, "--model", "-m", help="Bundled model name or model directory."),
    json_output: bool = typer.Option(False, "--json", help="Print what is there as JSON."),
) -> None:
    """Build agent bundles, convert the model and build tasks, so that a long run starts at once and needs no network.

    What is built lies in $DRIVETRAIN_CACHE or ~/.cache/drivetrain; what is there already is only checked.

    Example: drivetrain prepare --agent pi --task pypi__xmltodict-0.14.2
    """
    harnesses = [get_agent(name) for name in agent or list_agents()]
    tasks = (
        [known.instance_id for known in load_tasks()] if all_tasks else [get_task(name).instance_id for name in task]
    )
    started = time.monotonic()
    ready = _Ready(say=not json_output)
    for harness in harnesses:
        bundle = harness.prepare(None, tell)
        said = f"agent {bundle.name} {bundle.version}  {bundle.bytes >> 20} MiB  {bundle.sha256[:12]}"
        ready.add("agents", said, name=bundle.name, version=bundle.version, sha256=bundle.sha256, bytes=bundle.bytes)
    resolved = resolve_model(model, None, tell)
    said = f"model {resolved.name}  context {resolved.context_length}"
    ready.add("models", said, name=resolved.name, context_length=resolved.context_length, path=str(resolved.path))
    for task_id in tasks:
        built = build_task(get_task(task_id), None, tell)
        ready.add("tasks", f"task {built.task.instance_id}", id=built.task.instance_id, folder=str(built.root))
    if json_output:
        print_json(ready.parts)
    tell(f"ready after {time.monotonic() - started:.0f} s")


class _Ready:
    """What is there by now, said line by line or collected."""

    def __init__(self, *, say: bool) -> None:
        self._say = say
        self.parts: dict[str, list[dict[str, Any]]] = {"agents": [], "models": [], "tasks": []}

    def add(self, kind: str, said: str, **fields: Any) -> None:
        self.parts[kind].append(fields)
        if self._say:
            out.print(said, markup=False)
