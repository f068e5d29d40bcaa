"""From a task row to something that can be opened and graded: base repository, two patches, an environment.

The derivation is exact: the base commit and both patches have the ids that the row was measured with, or nothing is
built.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from drivetrain.cache import Progress, build_once, cache_root, content_key
from swe_rl_env.building.environment import TaskEnvironment, environment_for
from swe_rl_env.building.gitio import Scratch, blob_id, git
from swe_rl_env.building.tario import pack_folder
from swe_rl_env.errors import BuildError, ChecksumMismatch
from swe_rl_env.sources import fetch
from swe_rl_env.sources.unpack import read_archive
from swe_rl_env.tasks.model import SweTask

Files = Mapping[str, tuple[bool, bytes]]
_IDENTITY = {
    "GIT_AUTHOR_NAME": "swe-task",
    "GIT_AUTHOR_EMAIL": "swe-task@localhost",
    "GIT_COMMITTER_NAME": "swe-task",
    "GIT_COMMITTER_EMAIL": "swe-task@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00+0000",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00+0000",
}
_DIFF = ("diff", "--cached", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-renames", "HEAD", "--")


class BuiltTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task ready to use. ``root`` lies in the cache and is never written to again.

    ``git_dir`` is a bare repository that holds the base commit; ``workspace_tar`` is the checkout the agent gets,
    with its one-commit ``.git``.
    """

    task: SweTask
    root: Path
    environment: TaskEnvironment

    @property
    def git_dir(self) -> Path:
        """Bare repository with the base commit."""
        return self.root / "base.git"

    @property
    def workspace_tar(self) -> Path:
        """The agent's checkout as an uncompressed tar."""
        return self.root / "workspace.tar"

    @property
    def gold_patch(self) -> bytes:
        """The reference fix; never enters an agent's sandbox except through the oracle."""
        return (self.root / "gold.patch").read_bytes()

    @property
    def test_patch(self) -> bytes:
        """The hidden tests; applied at grading only."""
        return (self.root / "test.patch").read_bytes()


def _write(folder: Path, path: str, executable: bool, data: bytes) -> None:
    # Written with the current time: archives that stamp every file alike make git overlook equal-sized changes.
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    target.chmod(0o755 if executable else 0o644)


def commit_base(base: Files, repo: Path) -> str:
    """Write a checkout with its single commit into a new folder; the commit id, which depends on the files only."""
    repo.mkdir()
    for path, (executable, data) in base.items():
        _write(repo, path, executable, data)
    git(["init", "-q", "--template=", "--initial-branch=main", "."], cwd=repo)
    git(["config", "core.fileMode", "true"], cwd=repo)
    git(["config", "core.logAllRefUpdates", "false"], cwd=repo)
    git(["add", "-A", "-f"], cwd=repo)
    git(["commit", "-q", "--no-verify", "-m", "base"], cwd=repo, env=_IDENTITY)
    return git(["rev-parse", "HEAD"], cwd=repo).decode().strip()


def _make_base(task: SweTask, base: Files, repo: Path) -> None:
    """Write the checkout and its single commit, and check the commit id."""
    got = commit_base(base, repo)
    if got != task.base_commit:
        raise ChecksumMismatch(f"{task.instance_id}: base commit is {got}, expected {task.base_commit}.")
    for line in git(["ls-tree", "-r", "-z", "HEAD"], cwd=repo).split(b"\0"):
        if line:
            head, path_b = line.split(b"\t", 1)
            if head.split(b" ")[2].decode() != blob_id(base[path_b.decode()][1]):
                raise BuildError(f"{task.instance_id}: git attributes change the bytes of {path_b.decode()}.")


def diff_between(repo: Path, fix: Files, paths: tuple[str, ...]) -> bytes:
    """The difference between a checkout of :func:`commit_base` and ``fix`` on ``paths`` only; leaves it as it was."""
    for path in paths:
        (repo / path).unlink(missing_ok=True)
        if path in fix:
            _write(repo, path, *fix[path])
    git(["add", "-A", "-f", "--", *paths], cwd=repo)
    patch = git([*_DIFF, *paths], cwd=repo)
    git(["reset", "-q", "--hard"], cwd=repo)
    git(["clean", "-q", "-ffdx"], cwd=repo)
    return patch


def _patch(task: SweTask, repo: Path, fix: Files, paths: tuple[str, ...], sha256: str, name: str) -> bytes:
    patch = diff_between(repo, fix, paths)
    got = hashlib.sha256(patch).hexdigest()
    if got != sha256:
        raise ChecksumMismatch(f"{task.instance_id}: sha256 of the {name} patch is {got}, expected {sha256}.")
    return patch


def _check_applies(task: SweTask, git_dir: Path, gold: bytes, test: bytes, fix: Files) -> None:
    """Both patches on top of base give the fix release's bytes on their paths."""
    with Scratch(git_dir) as s:
        tree = s.apply(s.apply(task.base_commit, gold), test)
        entries = s.entries(tree)
    for path in (*task.private.gold_patch_paths, *task.private.test_patch_paths):
        entry = entries.get(path.encode())
        want = blob_id(fix[path][1]) if path in fix else None
        if (entry.blob if entry else None) != want:
            raise BuildError(f"{task.instance_id}: the patches do not reproduce {path} of the fix release.")


def _finish_repo(repo: Path) -> None:
    """Remove traces of the derivation from the agent's ``.git``: objects of the patches, reflogs, last message."""
    git(["config", "--unset", "core.logAllRefUpdates"], cwd=repo)
    git(["config", "user.name", "agent"], cwd=repo)
    git(["config", "user.email", "agent@localhost"], cwd=repo)
    git(["repack", "-q", "-a", "-d"], cwd=repo)
    git(["prune", "--expire=now"], cwd=repo)
    for name in ("COMMIT_EDITMSG", "ORIG_HEAD", "FETCH_HEAD", "logs", "hooks"):
        path = repo / ".git" / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    # The index keeps the host's inode numbers and times; refresh once so that it is at least consistent.
    git(["update-index", "-q", "--refresh"], cwd=repo)
    leftovers = git(["fsck", "--unreachable", "--no-reflogs"], cwd=repo).strip()
    if leftovers:
        raise BuildError(f"The base repository keeps unreachable objects: {leftovers[:200]!r}.")


def build_task(task: SweTask, cache: Path | None = None, progress: Progress | None = None) -> BuiltTask:
    """Fetch, derive and check everything a task needs; a second call finds it in the cache.

    Blocking (network, subprocesses): call it in a thread from async code. Safe with concurrent builders.

    Args:
        cache: cache folder; default ``$DRIVETRAIN_CACHE`` or ``~/.cache/drivetrain``.
        progress: called with a short line before each slow step.

    Raises:
        BuildError: a download, checksum or derivation failed; nothing half-written stays.
        ConfigError: the task comes as an image.
        MissingDependency: git, node or a fitting Python is missing.
    """
    cache = cache_root(cache).resolve()
    say = progress or (lambda _: None)
    archives = task.archives
    key = content_key("task-1", task.base_commit, archives.patch_sha256, archives.test_patch_sha256)

    def build(folder: Path) -> None:
        private = task.private
        say(f"{task.instance_id}: fetching {archives.base.filename} and {archives.fix.filename}")
        base = read_archive(fetch(archives.base, cache), archives.base.registry)
        fix = read_archive(fetch(archives.fix, cache), archives.fix.registry)
        say(f"{task.instance_id}: deriving the base commit and two patches")
        with TemporaryDirectory(dir=folder) as temp:
            repo = Path(temp) / "repo"
            _make_base(task, base, repo)
            git(
                ["clone", "-q", "--bare", "--no-hardlinks", "--template=", str(repo), str(folder / "base.git")],
                cwd=folder,
            )
            test = _patch(task, repo, fix, private.test_patch_paths, archives.test_patch_sha256, "test")
            gold = _patch(task, repo, fix, private.gold_patch_paths, archives.patch_sha256, "gold")
            _finish_repo(repo)
            (folder / "workspace.tar").write_bytes(pack_folder(repo))
        (folder / "gold.patch").write_bytes(gold)
        (folder / "test.patch").write_bytes(test)
        _check_applies(task, folder / "base.git", gold, test, fix)

    root = build_once(cache / "tasks" / f"{task.instance_id}-{key}", build)
    say(f"{task.instance_id}: preparing the environment")
    return BuiltTask(task=task, root=root, environment=environment_for(task, cache))
