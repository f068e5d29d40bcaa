"""``SweTask``: one row in SWE-rebench V2's schema, split by who may see it.

The public part goes to the agent (statement, interface, folder name). The private part (test ids, patches, the text
that describes the fix) stays with the grader: nothing that writes into the agent's sandbox takes a
:class:`PrivatePart`, and a test greps the workspace for its sentinels.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from drivetrain.errors import ConfigError

LogParser = Literal["pytest_nodeid_exact", "tap_blocks_per_file"]
Registry = Literal["pypi", "npm"]


class InstallConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to make the environment and run the suite; ``timeout_s`` in seconds of wall clock for the whole suite.

    ``env`` values may hold ``{workdir}`` (the checkout) and ``{deps}`` (the dependency folder).
    """

    log_parser: LogParser
    test_cmd: list[str]
    timeout_s: float = 1800.0
    env: dict[str, str] = {}
    pip_packages: list[str] = []
    pip_args: list[str] = []
    npm_packages: list[str] = []
    base_image_name: str | None = None
    docker_specs: dict[str, Any] | None = None

    def pytest_arguments(self) -> list[str]:
        """The arguments of the row's ``python -m pytest ...`` command.

        Raises:
            ConfigError: the command has another shape, so its results could not be read exactly.
        """
        words = shlex.split(self.test_cmd[0]) if len(self.test_cmd) == 1 else []
        if words[:3] != ["python", "-m", "pytest"]:
            raise ConfigError(
                f"log_parser pytest_nodeid_exact needs one command `python -m pytest ...`, not {self.test_cmd!r}."
            )
        return words[3:]


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """One published source archive; ``sha256`` in hex."""

    registry: Registry
    name: str
    version: str
    filename: str
    sha256: str


class PublicPart(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the agent may see."""

    repo: str
    problem_statement: str
    language: str
    interface: str | None = None

    @property
    def workdir_name(self) -> str:
        """Folder name of the checkout: the second half of ``repo``, as in the V2 images."""
        return self.repo.rsplit("/", 1)[-1]


class PrivatePart(msgspec.Struct, frozen=True, kw_only=True):
    """Everything only the grader may see. Sizes in bytes, digests in hex."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    gold_patch_paths: tuple[str, ...]
    test_patch_paths: tuple[str, ...]
    patch_sha256: str
    test_patch_sha256: str
    base_archive: Archive
    fix_archive: Archive
    pr_description: str | None = None
    hints_text: str | None = None

    @property
    def expected(self) -> tuple[str, ...]:
        """Every id that must pass, FAIL_TO_PASS first."""
        return self.fail_to_pass + self.pass_to_pass


class SweTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task. ``source_dir`` is the import root inside the checkout (``.`` or ``src``)."""

    instance_id: str
    base_commit: str
    public: PublicPart
    private: PrivatePart
    install: InstallConfig
    license: str | None = None
    source_dir: str = "."
    python_version: str | None = None
    difficulty: str | None = None
    traits: tuple[str, ...] = ()
    extra: dict[str, Any] = {}

    @property
    def registry(self) -> Registry:
        """Where the archives were published."""
        return self.private.base_archive.registry


class _Row(msgspec.Struct, kw_only=True):
    """The columns of a row, as published; unknown ones go to ``SweTask.extra``."""

    instance_id: str
    repo: str
    language: str
    base_commit: str
    problem_statement: str
    FAIL_TO_PASS: list[str] | str | None
    PASS_TO_PASS: list[str] | str | None
    install_config: dict[str, Any]
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
    source_dir: str = "."
    python_version: str | None = None
    license: str | None = None
    interface: str | None = None
    pr_description: str | None = None
    hints_text: str | None = None
    meta: dict[str, Any] | None = None


def _ids(value: list[str] | str | None, column: str, where: str) -> tuple[str, ...]:
    """Lists come as lists, as JSON inside a string, or as null (SWE-bench); an empty expectation is a load error."""
    ids: Any = json.loads(value) if isinstance(value, str) else value
    if not isinstance(ids, list) or not ids or not all(isinstance(i, str) for i in ids):
        raise ConfigError(f"{where}: {column} is empty or not a list of test ids.", fix="Drop the row or repair it.")
    return tuple(ids)


def task_from_row(row: Mapping[str, Any], *, where: str = "row") -> SweTask:
    """Check a row of the JSON Lines file and split it.

    Args:
        row: decoded JSON object.
        where: what to call the row in an error, for example ``tasks.jsonl:12``.

    Raises:
        ConfigError: a column is missing, of the wrong type, or names an unknown parser.
    """
    try:
        r = msgspec.convert(dict(row), _Row)
        install = msgspec.convert(r.install_config, InstallConfig)
    except msgspec.ValidationError as e:
        raise ConfigError(
            f"{where}: {e}.", fix="The columns are those of SWE-rebench V2 (see swe_rl_env.tasks.model)."
        ) from e
    if install.log_parser == "pytest_nodeid_exact":
        install.pytest_arguments()  # a command whose results cannot be read is a load error, not a grading error
    if not r.problem_statement.strip():
        raise ConfigError(f"{where}: problem_statement is empty.")
    if not r.test_patch_paths or not r.gold_patch_paths:
        raise ConfigError(f"{where}: gold_patch_paths and test_patch_paths must not be empty.")
    name = r.repo.rsplit("/", 1)[-1]

    def archive(version: str, filename: str, sha256: str) -> Archive:
        return Archive(registry=r.registry, name=name, version=version, filename=filename, sha256=sha256)

    meta = r.meta or {}
    return SweTask(
        instance_id=r.instance_id,
        base_commit=r.base_commit,
        public=PublicPart(
            repo=r.repo, problem_statement=r.problem_statement, language=r.language, interface=r.interface
        ),
        private=PrivatePart(
            fail_to_pass=_ids(r.FAIL_TO_PASS, "FAIL_TO_PASS", where),
            pass_to_pass=_ids(r.PASS_TO_PASS, "PASS_TO_PASS", where),
            gold_patch_paths=tuple(r.gold_patch_paths),
            test_patch_paths=tuple(r.test_patch_paths),
            patch_sha256=r.patch_sha256,
            test_patch_sha256=r.test_patch_sha256,
            base_archive=archive(r.base_version, r.base_sdist, r.base_sdist_sha256),
            fix_archive=archive(r.fix_version, r.fix_sdist, r.fix_sdist_sha256),
            pr_description=r.pr_description,
            hints_text=r.hints_text,
        ),
        install=install,
        license=r.license,
        source_dir=r.source_dir,
        python_version=r.python_version,
        difficulty=meta.get("difficulty"),
        traits=tuple(meta.get("traits", ())),
        extra={k: v for k, v in row.items() if k not in _Row.__struct_fields__},
    )


def read_rows(path: Path) -> list[SweTask]:
    """Every task of a JSON Lines file, in file order.

    Raises:
        ConfigError: the file is missing, a line is not JSON, a row is unusable, or an id occurs twice.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as e:
        raise ConfigError(f"Cannot read the task file {path}: {e.strerror}.") from e
    tasks: dict[str, SweTask] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path.name}:{number}"
        try:
            row = msgspec.json.decode(line)
        except msgspec.DecodeError as e:
            raise ConfigError(f"{where}: not a JSON object: {e}.") from e
        task = task_from_row(row, where=where)
        if task.instance_id in tasks:
            raise ConfigError(f"{where}: instance_id {task.instance_id} occurs twice.")
        tasks[task.instance_id] = task
    return list(tasks.values())
