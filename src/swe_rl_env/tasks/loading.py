"""Tasks from anywhere: a hub data set at a revision, a local file or folder, or the rows shipped with the package.

Nothing is dropped silently: a row that cannot be a task is returned as :class:`Rejected`, with a code and a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from drivetrain.errors import ConfigError
from swe_rl_env.tasks.adapters import Format, Unusable, adapt, is_evaluation_set
from swe_rl_env.tasks.model import SweTask
from swe_rl_env.tasks.reading import read_hub, read_local
from swe_rl_env.tasks.rows import task_from_row

Purpose = Literal["train", "evaluate"]
RejectCode = Literal["unusable_row", "unsupported_format", "duplicate_id"]

_HUB = "hub:"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where rows come from.

    ``place`` is a local path or, for ``kind == "hub"``, a repository ``owner/name``; ``revision`` a commit, tag or
    branch. ``kind == "packaged"`` are the rows of this package.
    """

    kind: Literal["packaged", "local", "hub"]
    place: str = ""
    revision: str | None = None
    split: str | None = None
    config: str | None = None


def parse_source(text: str | None) -> Source:
    """``None`` (packaged), a path, or ``hub:owner/name[/config][@revision][#split]``.

    Raises:
        ConfigError: a hub name without an owner, or a path that does not exist.
    """
    if not text:
        return Source(kind="packaged")
    if not text.startswith(_HUB):
        path, _, split = text.partition("#")
        if not Path(path).exists():
            raise ConfigError(
                f"There is no task file or folder {path}.", fix="Name a .jsonl or .parquet file, or hub:owner/name."
            )
        return Source(kind="local", place=path, split=split or None)
    rest, _, split = text[len(_HUB) :].partition("#")
    name, _, revision = rest.partition("@")
    parts = name.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise ConfigError(f"{text!r} names no data set.", fix="Write hub:owner/name[/config][@revision][#split].")
    return Source(
        kind="hub",
        place="/".join(parts[:2]),
        config=parts[2] if len(parts) == 3 else None,
        revision=revision or None,
        split=split or None,
    )


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A row that is no task: where it stood, its id if it has one, and why."""

    where: str
    instance_id: str
    code: RejectCode
    reason: str


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks in the order of their rows, and every row that is none."""

    tasks: tuple[SweTask, ...]
    rejected: tuple[Rejected, ...]


def load_source(
    source: Source,
    *,
    purpose: Purpose = "evaluate",
    force: bool = False,
    fmt: Format | None = None,
    install_config: Mapping[str, Any] | None = None,
) -> Loaded:
    """Read, adapt and check every row.

    Args:
        purpose: ``train`` refuses tasks of public benchmarks, unless ``force``.
        fmt: the rows' format; default by their columns.
        install_config: for rows that have none (it then says ``test_cmd`` and ``log_parser``).

    Raises:
        ConfigError: the source cannot be read, or benchmark tasks would be trained on.
        MissingDependency: Parquet without pyarrow, the hub without huggingface_hub.
    """
    evaluation = source.kind == "hub" and is_evaluation_set(source.place, source.split)
    loaded = tasks_from_rows(_rows(source), evaluation=evaluation, fmt=fmt, install_config=install_config)
    held = [task.instance_id for task in loaded.tasks if task.evaluation_only]
    if purpose == "train" and held and not force:
        raise ConfigError(
            f"{len(held)} of {len(loaded.tasks)} tasks belong to a public benchmark ({held[0]}, ...): training on them "
            "would make every later result on it worthless.",
            fix="Use another set, or say that this is meant (--allow-benchmarks, force=True).",
        )
    return loaded


def tasks_from_rows(
    rows: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    evaluation: bool = False,
    fmt: Format | None = None,
    install_config: Mapping[str, Any] | None = None,
) -> Loaded:
    """Adapt and check decoded rows; each comes with what to call it in a reason."""
    tasks: dict[str, SweTask] = {}
    rejected: list[Rejected] = []

    def reject(where: str, row: Mapping[str, Any], code: RejectCode, reason: str) -> None:
        name = str(row.get("instance_id") or "")
        rejected.append(Rejected(where=where, instance_id=name, code=code, reason=reason))

    for where, row in rows:
        given = (
            row if row.get("install_config") or install_config is None else {**row, "install_config": install_config}
        )
        try:
            adapted, dataset, benchmark = adapt(given, fmt)
            task = task_from_row(
                adapted,
                where=where,
                dataset=dataset,
                evaluation_only=evaluation or benchmark,
                require_pass_to_pass=dataset == "archives",
            )
        except Unusable as e:
            reject(where, row, "unsupported_format", str(e))
        except ConfigError as e:
            reject(where, row, "unusable_row", e.what.removeprefix(f"{where}: "))
        else:
            if task.instance_id in tasks:
                reject(where, row, "duplicate_id", f"instance_id {task.instance_id} occurs twice")
            else:
                tasks[task.instance_id] = task
    return Loaded(tasks=tuple(tasks.values()), rejected=tuple(rejected))


def _rows(source: Source) -> Iterable[tuple[str, Mapping[str, Any]]]:
    if source.kind == "hub":
        return read_hub(source.place, source.revision, source.config, source.split)
    if source.kind == "local":
        return read_local(Path(source.place), source.split)
    from swe_rl_env.tasks.catalog import packaged_rows

    return packaged_rows()
