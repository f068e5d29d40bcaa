"""Find tasks by name and say what the agent is told about them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from drivetrain.errors import ConfigError
from swe_rl_env.tasks.model import SweTask
from swe_rl_env.tasks.quarantine import Entry, read_quarantine
from swe_rl_env.tasks.rows import json_lines, read_rows


@lru_cache(maxsize=8)
def _load(path: Path | None) -> tuple[SweTask, ...]:
    if path is not None:
        return tuple(read_rows(path))
    with as_file(files("swe_rl_env") / "data" / "swe_tasks_pypi.jsonl") as packaged:
        return tuple(read_rows(packaged))


def packaged_rows() -> list[tuple[str, dict[str, Any]]]:
    """The decoded rows shipped with the package, each with what to call it."""
    with as_file(files("swe_rl_env") / "data" / "swe_tasks_pypi.jsonl") as packaged:
        return json_lines(packaged)


def load_tasks(
    path: Path | None = None, *, include_quarantined: bool = False, quarantine: Path | None = None
) -> list[SweTask]:
    """Every task of ``path`` (JSON Lines in V2's schema), by default the rows shipped with the package.

    Args:
        include_quarantined: keep tasks that were found unfit on this machine.
        quarantine: the quarantine file, see :func:`~swe_rl_env.tasks.quarantine.quarantine_path`.

    Raises:
        ConfigError: the file or a row in it is unusable.
    """
    tasks = list(_load(path))
    return tasks if include_quarantined else without_quarantined(tasks, quarantine)[0]


def without_quarantined(
    tasks: Sequence[SweTask], quarantine: Path | None = None
) -> tuple[list[SweTask], dict[str, Entry]]:
    """The tasks that may be used, and why each of the others may not."""
    entries = {name: entry for name, entry in read_quarantine(quarantine).items() if entry.excludes}
    kept = [task for task in tasks if task.instance_id not in entries]
    return kept, {t.instance_id: entries[t.instance_id] for t in tasks if t.instance_id in entries}


def get_task(instance_id: str, path: Path | None = None) -> SweTask:
    """The task with that id, also one in quarantine: naming it is a decision.

    Raises:
        ConfigError: no such task; the message names close matches.
    """
    return find_task(instance_id, _load(path))


def find_task(instance_id: str, among: Sequence[SweTask]) -> SweTask:
    """The task with that id.

    Raises:
        ConfigError: no such task; the message names close matches.
    """
    tasks = {t.instance_id: t for t in among}
    if instance_id in tasks:
        return tasks[instance_id]
    close = difflib.get_close_matches(instance_id, tasks, n=5, cutoff=0.5)
    close += [i for i in tasks if instance_id.lower() in i.lower() and i not in close][: 5 - len(close)]
    known = f"{len(tasks)} tasks are known, e.g. {next(iter(tasks))}." if tasks else "The source holds no task."
    raise ConfigError(f"Unknown task {instance_id!r}.", fix=f"Did you mean: {', '.join(close)}?" if close else known)


def prompt_for(task: SweTask) -> str:
    """The task as the agent reads it: public part only, short enough for a small context."""
    p = task.public
    interface = f"\n\nInterface the tests rely on:\n{p.interface.strip()}" if p.interface else ""
    return (
        f"Fix an issue in the {p.language} project in {task.checkout}.\n\n"
        f"{p.problem_statement.strip()}{interface}\n\n"
        "Edit the source files in that folder. Hidden tests check the result; changes to tests or test settings are "
        "discarded, so they do not help. You need not commit. Stop when the fix is done."
    )
