"""``drivetrain tasks generate``: small tasks made on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast, get_args

import typer

from drivetrain.cli.console import out, print_json
from drivetrain.errors import ConfigError
from drivetrain.trace.export.files import check_free, written_whole
from swe_rl_env.sources.operators import Split, operator_rows


def generate(
    family: str = typer.Argument("operators", help="What kind of tasks: 'operators'."),
    target: Path = typer.Option(..., "--out", "-o", help="File to write, .jsonl; read it with --source."),
    count: int = typer.Option(32, "-n", "--count", min=1, help="How many."),
    split: str = typer.Option("train", help="'train' or 'heldout': their names have no overlap."),
    seed: int = typer.Option(0, help="Another seed, another family."),
    force: bool = typer.Option(False, "--force", help="Overwrite the file."),
    json_output: bool = typer.Option(False, "--json", help="Say what was written as JSON."),
) -> None:
    """Make a set of small tasks with real repositories, hidden tests and reference fixes; no network.

    operators: a Python function that applies the wrong operator; the statement says in words which result is wanted.
    The archives go to the cache folder, so the file is good on this machine; the same command makes the same tasks
    elsewhere.

    Example: drivetrain tasks generate operators -n 8 --out ops.jsonl
    then: drivetrain rollout --source ops.jsonl --all-tasks --agent oracle --agent noop
    """
    if family != "operators":
        raise ConfigError(f"there is no family {family!r}.", fix="Use operators.")
    if split not in get_args(Split):
        raise ConfigError(f"there is no split {split!r}.", fix=f"Use one of {', '.join(get_args(Split))}.")
    check_free([target], force=force)
    rows = operator_rows(count, split=cast("Split", split), seed=seed)
    with written_whole(target) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if json_output:
        print_json({"file": str(target), "tasks": [row["instance_id"] for row in rows]})
    else:
        out.print(f"{target}: {len(rows)} tasks", markup=False, highlight=False)
