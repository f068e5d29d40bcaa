"""Find tasks by name and say what the agent is told about them."""

from __future__ import annotations

import difflib
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path

from drivetrain.errors import ConfigError
from swe_rl_env.tasks.model import SweTask
from swe_rl_env.tasks.rows import read_rows


@lru_cache(maxsize=8)
def _load(path: Path | None) -> tuple[SweTask, ...]:
    if path is not None:
        return tuple(read_rows(path))
    with as_file(files("swe_rl_env") / "data" / "swe_tasks_pypi.jsonl") as packaged:
        return tuple(read_rows(packaged))


def load_tasks(path: Path | None = None) -> list[SweTask]:
    """Every task of ``path`` (JSON Lines), by default the rows shipped with the package.

    Raises:
        ConfigError: the file or a row in it is unusable.
    """
    return list(_load(path))


def get_task(instance_id: str, path: Path | None = None) -> SweTask:
    """The task with that id.

    Raises:
        ConfigError: no such task; the message names close matches.
    """
    tasks = {t.instance_id: t for t in _load(path)}
    if instance_id in tasks:
        return tasks[instance_id]
    close = difflib.get_close_matches(instance_id, tasks, n=5, cutoff=0.5)
    close += [i for i in tasks if instance_id.lower() in i.lower() and i not in close][: 5 - len(close)]
    hint = f"Did you mean: {', '.join(close)}?" if close else f"{len(tasks)} tasks are known, e.g. {next(iter(tasks))}."
    raise ConfigError(f"Unknown task {instance_id!r}.", fix=hint)


def prompt_for(task: SweTask, *, root: str = "/work") -> str:
    """The task as the agent reads it: public part only, short enough for a small context.

    Args:
        root: inside folder that holds the checkout.
    """
    p = task.public
    interface = f"\n\nInterface the tests rely on:\n{p.interface.strip()}" if p.interface else ""
    return (
        f"Fix an issue in the {p.language} project in {root}/{p.workdir_name}.\n\n"
        f"{p.problem_statement.strip()}{interface}\n\n"
        "Edit the source files in that folder. Hidden tests check the result; changes to tests or test settings are "
        "discarded, so they do not help. You need not commit. Stop when the fix is done."
    )
