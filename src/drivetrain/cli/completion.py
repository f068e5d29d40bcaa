"""``drivetrain completion``: what a shell needs to complete commands, options, agents and tasks."""

from __future__ import annotations

import enum
import sys

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from drivetrain.cli.console import print_json


class Shell(enum.StrEnum):
    """Shells that can complete."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    shell: Shell = typer.Argument(help="The shell that is to complete."),
    json_output: bool = typer.Option(False, "--json", help="Print the script as JSON."),
) -> None:
    """Print the script that makes a shell complete commands, options, agents and task ids.

    bash: drivetrain completion bash > ~/.local/share/bash-completion/completions/drivetrain

    zsh: drivetrain completion zsh > a file called _drivetrain in a folder of $fpath

    fish: drivetrain completion fish > ~/.config/fish/completions/drivetrain.fish

    Example: drivetrain completion bash
    """
    script = get_completion_script(prog_name="drivetrain", complete_var="_DRIVETRAIN_COMPLETE", shell=shell.value)
    if json_output:
        print_json({"shell": shell.value, "script": script})
    else:
        sys.stdout.write(f"{script}\n")


def agents(incomplete: str) -> list[str]:
    """Agents that begin so."""
    from swe_rl_agent.registry import list_agents

    return [name for name in (*list_agents(), "noop", "oracle") if name.startswith(incomplete)]


def tasks(incomplete: str) -> list[str]:
    """Tasks of this package that begin so."""
    from swe_rl_env.tasks.catalog import load_tasks

    return [task.instance_id for task in load_tasks() if task.instance_id.startswith(incomplete)]
