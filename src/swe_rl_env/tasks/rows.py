"""A row in SWE-rebench V2's schema -> :class:`SweTask`, checked: what cannot be graded is an error here, not later.

Rows come in two shapes. *Inline* rows are the dataset's own: both patches as text, an image. *Archive* rows are ours:
two published releases with digests, from which the patches are derived.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.errors import ConfigError
from swe_rl_env.tasks.diffs import patch_lines, patch_paths
from swe_rl_env.tasks.log_parsers import check_log_parser
from swe_rl_env.tasks.model import Archive, Archives, InstallConfig, PrivatePart, PublicPart, Registry, SweTask

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Names become parts of paths: of the cache, of a run's files, of the checkout inside.
_ID = re.compile(r"[A-Za-z0-9][\w.+@-]{0,199}", re.ASCII)
_REPO = re.compile(r"[\w.+-]+(?:/[\w.+-]+)*", re.ASCII)
_LANGUAGES = {"python": "python", "py": "python", "javascript": "js", "typescript": "ts", "golang": "go", "c++": "cpp"}


class _Row(msgspec.Struct, kw_only=True):
    """The columns every row has; others are read by shape or go to ``SweTask.extra``."""

    instance_id: str
    repo: str
    language: str
    base_commit: str
    problem_statement: str
    install_config: dict[str, Any] | str
    FAIL_TO_PASS: list[str] | str | None = None
    PASS_TO_PASS: list[str] | str | None = None
    license: str | None = None
    interface: str | None = None
    pr_description: str | None = None
    hints_text: str | None = None
    image_name: str | None = None
    workdir: str | None = None
    created_at: Any = None
    meta: dict[str, Any] | list[dict[str, Any]] | str | None = None
    patch: str | None = None
    test_patch: str | None = None
    source_dir: str = "."
    python_version: str | None = None


class _ArchiveRow(msgspec.Struct, kw_only=True):
    """The columns of an archive row besides."""

    registry: Registry
    base_version: str
    fix_version: str
    base_sdist: str
    base_sdist_sha256: str
    fix_sdist: str
    fix_sdist_sha256: str
    gold_patch_paths: list[str]
    test_patch_paths: list[str]
    patch_sha256: str
    test_patch_sha256: str
    gold_lines_added: int = 0
    gold_lines_removed: int = 0


_KNOWN = frozenset(_Row.__struct_fields__) | frozenset(_ArchiveRow.__struct_fields__)


def task_from_row(
    row: Mapping[str, Any],
    *,
    where: str = "row",
    dataset: str | None = None,
    evaluation_only: bool = False,
    require_pass_to_pass: bool = True,
) -> SweTask:
    """Check a row in V2's schema and split it into what the agent may see and what not.

    Args:
        row: decoded JSON object.
        where: what to call the row in an error, for example ``tasks.jsonl:12``.
        dataset: where the row came from; default by shape.
        evaluation_only: the row belongs to a public benchmark.
        require_pass_to_pass: whether an empty PASS_TO_PASS is an error. Some upstream tasks have none.

    Raises:
        ConfigError: a column is missing, of the wrong type, or names an unknown parser.
    """
    try:
        r = msgspec.convert(dict(row), _Row)
        archive = msgspec.convert(dict(row), _ArchiveRow) if row.get("registry") is not None else None
        install = _install(r.install_config)
    except (msgspec.ValidationError, ValueError) as e:
        raise ConfigError(
            f"{where}: {e}.", fix="The columns are those of SWE-rebench V2 (see swe_rl_env.tasks.rows)."
        ) from e
    _check_names(r, where)
    try:
        check_log_parser(install.log_parser, install.test_cmd, archive=archive is not None)
    except ConfigError as e:
        raise ConfigError(f"{where}: log_parser: {e.what}", fix=e.fix) from e
    if not any(command.strip() for command in install.test_cmd):
        raise ConfigError(f"{where}: install_config.test_cmd is empty.")
    if install.log_parser == "pytest_nodeid_exact":
        install.pytest_arguments()  # a command whose results cannot be read is a load error, not a grading error
    if not r.problem_statement.strip():
        raise ConfigError(f"{where}: problem_statement is empty.")
    meta = _meta(r.meta)
    parts = _archive_part(r, archive, where) if archive is not None else _inline_part(r, where)
    p2p = _ids(r.PASS_TO_PASS, "PASS_TO_PASS", where, empty=not require_pass_to_pass)
    details = _llm_metadata(meta)
    return SweTask(
        instance_id=r.instance_id,
        base_commit=r.base_commit,
        public=PublicPart(
            repo=r.repo,
            problem_statement=r.problem_statement,
            language=_LANGUAGES.get(r.language.lower(), r.language.lower()),
            interface=r.interface or None,
        ),
        private=PrivatePart(
            fail_to_pass=_ids(r.FAIL_TO_PASS, "FAIL_TO_PASS", where),
            pass_to_pass=p2p,
            pr_description=r.pr_description,
            hints_text=r.hints_text,
            **parts,
        ),
        install=install,
        dataset=dataset or ("archives" if archive is not None else "swe-rebench-v2"),
        image=None if archive is not None else r.image_name,
        workdir=r.workdir or (None if archive is not None else f"/{r.repo.rsplit('/', 1)[-1]}"),
        evaluation_only=evaluation_only,
        license=r.license,
        source_dir=r.source_dir,
        python_version=r.python_version,
        difficulty=_text(meta.get("difficulty"))
        or _text(details.get("difficulty"))
        or _text(details.get("difficulty_score")),
        traits=tuple(meta.get("traits") or ()),
        created_at=_iso(r.created_at, where),
        patch_lines=_size(r, archive),
        meta=meta,
        extra={k: v for k, v in row.items() if k not in _KNOWN},
    )


def _check_names(r: _Row, where: str) -> None:
    if not _ID.fullmatch(r.instance_id):
        raise ConfigError(f"{where}: instance_id {r.instance_id[:80]!r} is no name (letters, digits and ._+@-).")
    if not _REPO.fullmatch(r.repo) or {".", ".."} & set(r.repo.split("/")):
        raise ConfigError(f"{where}: repo {r.repo[:80]!r} is no owner/name.")


def _archive_part(r: _Row, a: _ArchiveRow, where: str) -> dict[str, Any]:
    if not a.test_patch_paths or not a.gold_patch_paths:
        raise ConfigError(f"{where}: gold_patch_paths and test_patch_paths must not be empty.")
    name = r.repo.rsplit("/", 1)[-1]

    def archive(version: str, filename: str, sha256: str) -> Archive:
        return Archive(registry=a.registry, name=name, version=version, filename=filename, sha256=sha256)

    archives = Archives(
        base=archive(a.base_version, a.base_sdist, a.base_sdist_sha256),
        fix=archive(a.fix_version, a.fix_sdist, a.fix_sdist_sha256),
        patch_sha256=a.patch_sha256,
        test_patch_sha256=a.test_patch_sha256,
    )
    return {
        "archives": archives,
        "gold_patch_paths": tuple(a.gold_patch_paths),
        "test_patch_paths": tuple(a.test_patch_paths),
    }


def _inline_part(r: _Row, where: str) -> dict[str, Any]:
    if not r.image_name:
        raise ConfigError(f"{where}: neither image_name nor the archives of a registry.", fix="Name an image.")
    parts: dict[str, Any] = {}
    for column, paths_name in (("patch", "gold_patch_paths"), ("test_patch", "test_patch_paths")):
        text = getattr(r, column)
        paths = patch_paths(text) if text else ()
        if not paths:
            raise ConfigError(f"{where}: {column} is empty or has no `diff --git` header.")
        parts |= {column: text, paths_name: paths}
    return parts


def _ids(value: list[str] | str | None, column: str, where: str, *, empty: bool = False) -> tuple[str, ...]:
    """Lists come as lists, as JSON inside a string, or as null (SWE-bench); an empty expectation is a load error.

    Colour codes are no part of a name: parsers remove them from the log, so they must go here as well.
    """
    try:
        ids: Any = json.loads(value) if isinstance(value, str) and value.strip() else value
    except ValueError:
        ids = None
    if empty and (ids is None or ids in ([], "")):
        return ()
    if not isinstance(ids, list) or not ids or not all(isinstance(i, str) for i in ids):
        raise ConfigError(f"{where}: {column} is empty or not a list of test ids.", fix="Drop the row or repair it.")
    clean = tuple(dict.fromkeys(_ANSI.sub("", i) for i in ids))
    if not all(i.strip() for i in clean):
        raise ConfigError(f"{where}: {column} holds an empty test id.", fix="Drop the row or repair it.")
    return clean


def _install(value: dict[str, Any] | str) -> InstallConfig:
    """``install_config`` as a struct or as JSON in a string; commands as a string or a list; null = not given."""
    config: Any = json.loads(value) if isinstance(value, str) else value
    if not isinstance(config, dict):
        raise ValueError("install_config is no object")
    fields = {k: v for k, v in config.items() if v is not None}
    if "base_image_name" not in fields and "image_name" in fields:
        fields["base_image_name"] = fields["image_name"]  # the builder's template reads it under this name
    for name in ("test_cmd", "install", "pip_packages", "npm_packages", "pip_args"):
        if isinstance(fields.get(name), str):
            fields[name] = [fields[name]]
    return msgspec.convert(fields, InstallConfig)


def _meta(value: dict[str, Any] | list[dict[str, Any]] | str | None) -> dict[str, Any]:
    """``meta`` as one object: a list holds one per annotation, the first counts."""
    found: Any = json.loads(value) if isinstance(value, str) and value.strip() else value
    if isinstance(found, list):
        found = found[0] if found else {}
    return found if isinstance(found, dict) else {}


def _llm_metadata(meta: Mapping[str, Any]) -> dict[str, Any]:
    found = meta.get("llm_metadata") or meta.get("llm_score") or {}
    if isinstance(found, list):
        found = found[0] if found else {}
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) and value != "" else None


def _iso(value: Any, where: str) -> str | None:
    """V2 has epoch milliseconds, SWE-bench an ISO text, Parquet a timestamp."""
    if value is None or value == "":
        return None
    try:
        if isinstance(value, int | float):
            moment = datetime.fromtimestamp(value / 1000, UTC)
        else:
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(value.replace("Z", "+00:00"))
            moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, TypeError, AttributeError, OverflowError, OSError) as e:
        raise ConfigError(f"{where}: created_at {value!r} is no time (milliseconds or ISO 8601).") from e
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _size(r: _Row, archive: _ArchiveRow | None) -> int | None:
    if archive is not None:
        return archive.gold_lines_added + archive.gold_lines_removed or None
    return patch_lines(r.patch) if r.patch else None


def read_rows(path: Path) -> list[SweTask]:
    """Every task of a JSON Lines file in V2's schema, in file order.

    Raises:
        ConfigError: the file is missing, a line is not JSON, a row is unusable, or an id occurs twice.
    """
    tasks: dict[str, SweTask] = {}
    for where, row in json_lines(path):
        task = task_from_row(row, where=where)
        if task.instance_id in tasks:
            raise ConfigError(f"{where}: instance_id {task.instance_id} occurs twice.")
        tasks[task.instance_id] = task
    return list(tasks.values())


def json_lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Objects of a JSON Lines file with ``name:line``.

    Raises:
        ConfigError: the file is missing or a line is no JSON object.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as e:
        raise ConfigError(f"Cannot read the task file {path}: {e.strerror}.") from e
    rows: list[tuple[str, dict[str, Any]]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path.name}:{number}"
        try:
            rows.append((where, msgspec.json.decode(line, type=dict[str, Any])))
        except msgspec.DecodeError as e:
            raise ConfigError(f"{where}: not a JSON object: {e}.") from e
    return rows
