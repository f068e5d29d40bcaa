"""``SweTask``: one row in SWE-rebench V2's schema, split by who may see it.

The public part goes to the agent (statement, interface, folder name). The private part (test ids, patches, the text
that describes the fix) stays with the grader: nothing that writes into the agent's sandbox takes a
:class:`PrivatePart`, and a test greps the workspace for its sentinels.
"""

from __future__ import annotations

import shlex
from typing import Any, Literal

import msgspec

from drivetrain.errors import ConfigError

Registry = Literal["pypi", "npm", "local"]
"""``local``: archives that a generator of this package put into the cache (:mod:`swe_rl_env.sources.generated`)."""


class InstallConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to make the environment and run the suite; ``timeout_s`` in seconds of wall clock for the whole suite.

    ``log_parser`` names a reader of the suite's results (:mod:`swe_rl_env.tasks.log_parsers`). ``test_cmd`` are shell
    commands, run one after the other whatever they return. ``install`` are commands that were run when the image was
    made. ``env`` values may hold ``{workdir}`` (the checkout) and ``{deps}`` (the dependency folder).
    """

    log_parser: str
    test_cmd: list[str]
    timeout_s: float = 1800.0
    env: dict[str, str] = {}
    pip_packages: list[str] = []
    pip_args: list[str] = []
    npm_packages: list[str] = []
    install: list[str] = []
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


class Archives(msgspec.Struct, frozen=True, kw_only=True):
    """The two releases that a task is derived from; digests in hex, of the patches between them."""

    base: Archive
    fix: Archive
    patch_sha256: str
    test_patch_sha256: str


class PrivatePart(msgspec.Struct, frozen=True, kw_only=True):
    """Everything only the grader may see.

    A task has either ``archives``, from which its patches are derived, or ``patch`` and ``test_patch`` themselves
    (unified diffs with ``diff --git`` headers). The paths are what the two patches touch.
    """

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    gold_patch_paths: tuple[str, ...]
    test_patch_paths: tuple[str, ...]
    archives: Archives | None = None
    patch: str | None = None
    test_patch: str | None = None
    pr_description: str | None = None
    hints_text: str | None = None

    @property
    def expected(self) -> tuple[str, ...]:
        """Every id that must pass, FAIL_TO_PASS first."""
        return self.fail_to_pass + self.pass_to_pass


class SweTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task.

    ``image`` is the container image with the repository in ``workdir`` (inside path); None for a task made from
    archives, whose ``source_dir`` is then the import root inside the checkout (``.`` or ``src``). ``dataset`` is the
    format its row came in (:mod:`swe_rl_env.tasks.adapters`). ``evaluation_only`` tasks belong to a public benchmark:
    loaders refuse them as training data. ``created_at`` is ISO 8601, UTC. ``patch_lines`` are lines that the reference
    fix adds and removes, None where the row does not say. ``meta`` and ``extra`` keep the row's own.
    """

    instance_id: str
    base_commit: str
    public: PublicPart
    private: PrivatePart
    install: InstallConfig
    dataset: str = "archives"
    image: str | None = None
    workdir: str | None = None
    evaluation_only: bool = False
    license: str | None = None
    source_dir: str = "."
    python_version: str | None = None
    difficulty: str | None = None
    traits: tuple[str, ...] = ()
    created_at: str | None = None
    patch_lines: int | None = None
    meta: dict[str, Any] = {}
    extra: dict[str, Any] = {}

    @property
    def checkout(self) -> str:
        """Inside path of the repository: ``/`` and the second half of its name in an image, unless the row says
        otherwise; below ``/work`` for a task made from archives."""
        name = self.public.workdir_name
        return (self.workdir or f"/{name}") if self.image is not None else f"/work/{name}"

    @property
    def archives(self) -> Archives:
        """The two releases.

        Raises:
            ConfigError: the task comes as an image.
        """
        if self.private.archives is None:
            raise ConfigError(
                f"{self.instance_id} comes as the image {self.image}, not as two archives.",
                fix="Use a sandbox backend that runs images, such as docker.",
            )
        return self.private.archives

    @property
    def registry(self) -> Registry | None:
        """Where the archives were published; None for a task that comes as an image."""
        return self.private.archives.base.registry if self.private.archives else None
