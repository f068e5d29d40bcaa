"""Tasks that come as a container image with the repository in it (SWE-rebench V2 and its relatives).

The image's own history holds the fix: tags, later branches and unreachable objects stay in its ``.git``. So every
sandbox made from it, the agent's and the grader's, gets a new repository of one commit first, and says so itself.
"""

from __future__ import annotations

import asyncio
import io
import posixpath
import shutil
import tarfile
import tempfile
from pathlib import Path

import msgspec

from drivetrain.cache import cache_root, content_key
from drivetrain.errors import ConfigError
from drivetrain.sandboxes.protocol import SandboxBackend, SandboxHandle, SandboxSpec
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.building.environment import TaskEnvironment
from swe_rl_env.building.gitio import Scratch, git
from swe_rl_env.building.tario import MODE_EXEC, MODE_FILE, MODE_LINK
from swe_rl_env.errors import BuildError
from swe_rl_env.tasks.model import SweTask

_TREE_BYTES = 2 << 30
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
# Tracked files stay tracked, ignored ones ignored; nested repositories become plain folders.
_FLATTEN = r"""
set -eu
export HOME="${HOME:-/tmp}" GIT_CONFIG_NOSYSTEM=1 LC_ALL=C
git config --global --add safe.directory '*'
list=$(mktemp)
git ls-files -z >"$list"
find . -name .git -prune -exec rm -rf {} +
git init -q --template= .
git symbolic-ref HEAD refs/heads/main
git config user.name agent
git config user.email agent@localhost
git config core.fileMode false
git config core.logAllRefUpdates false
tr '\0' '\n' <"$list" | grep -c . >/dev/null || { echo "nothing is tracked" >&2; exit 3; }
git -c core.hooksPath= add -f --ignore-errors --pathspec-from-file="$list" --pathspec-file-nul || true
GIT_AUTHOR_DATE=2000-01-01T00:00:00+0000 GIT_COMMITTER_DATE=2000-01-01T00:00:00+0000 \
  git commit -q --no-verify -m base
rm -rf .git/logs .git/COMMIT_EDITMSG "$list"
[ "$(git rev-list --all --count)" = 1 ]
[ -z "$(git rev-list --all --not HEAD)" ]
[ -z "$(git remote)$(git tag)$(git stash list)$(git reflog)" ]
[ -z "$(git fsck --unreachable --no-reflogs 2>/dev/null)" ]
echo flat
"""


async def flatten(box: SandboxHandle, repo: str, *, timeout_s: float = 600.0) -> None:
    """Replace the history in ``repo`` by one commit (case row G1).

    Raises:
        BuildError: there is no repository, git is missing, or something of the history would be left.
        SandboxError: the sandbox failed.
    """
    done = await box.exec(["/bin/sh", "-c", _FLATTEN], cwd=repo, timeout_s=timeout_s)
    if done.exit_code != 0 or not done.stdout.endswith(b"flat\n"):
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-500:]
        raise BuildError(f"The history in {repo} cannot be flattened (exit {done.exit_code}): {said}")


async def build_image_task(task: SweTask, backend: SandboxBackend, cache: Path | None = None) -> BuiltTask:
    """Take the image's checkout as the base that patches are made against; a second call finds it in the cache.

    Everything in the repository's folder is part of the base, ignored files too, so that what the image's set-up left
    there is never taken for somebody's work. The base commit of the result is the id of that snapshot.

    Raises:
        ConfigError: the task names no image, or carries no patches.
        BuildError: the checkout cannot be read, or the row's patches do not apply to it.
        SandboxError: the sandbox failed.
    """
    if task.image is None or task.private.test_patch is None or task.private.patch is None:
        raise ConfigError(f"{task.instance_id} has no image or no patches, so it cannot be made from an image.")
    key = content_key("image-1", task.image, task.base_commit, task.private.patch, task.private.test_patch)
    root = cache_root(cache).resolve() / "tasks" / f"{task.instance_id}-{key}"
    if not root.exists():
        box = await backend.create(SandboxSpec(image=task.image, workdir=task.checkout, labels={"role": "build"}))
        try:
            await flatten(box, task.checkout)
            tar = await box.download(task.checkout, max_bytes=_TREE_BYTES)
        finally:
            await box.close()
        await asyncio.to_thread(_store, task, tar, root)
    base = _base_commit(root)
    environment = TaskEnvironment(folder=root, mounts=(), path="", python=None)
    task = msgspec.structs.replace(task, base_commit=base, extra={**task.extra, "image_commit": task.base_commit})
    return BuiltTask(task=task, root=root, environment=environment)


def _base_commit(root: Path) -> str:
    return git(["rev-parse", "refs/heads/import"], cwd=root, git_dir=root / "base.git").decode().strip()


def _store(task: SweTask, tar: bytes, root: Path) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".image-", dir=root.parent))
    try:
        git(["init", "-q", "--bare", "--template=", str(folder / "empty.git")], cwd=folder)
        with Scratch(folder / "empty.git") as s:
            s.import_files(_EMPTY_TREE, _files(tar))
            (s.git_dir / "objects" / "info" / "alternates").unlink()
            shutil.copytree(s.git_dir, folder / "base.git")
        shutil.rmtree(folder / "empty.git")
        for name, text in (("gold.patch", task.private.patch), ("test.patch", task.private.test_patch)):
            (folder / name).write_bytes((text or "").encode("utf-8", "surrogateescape"))
        with Scratch(folder / "base.git") as s:
            tree = _base_commit(folder)
            for name in ("gold.patch", "test.patch"):
                tree = s.apply(tree, (folder / name).read_bytes())
        folder.rename(root)
    except OSError:
        if not root.exists():  # else someone else has built the same
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _files(tar: bytes, limit: int = _TREE_BYTES) -> dict[bytes, tuple[str, bytes]]:
    """The files of a checkout as path -> (git mode, content), ``limit`` bytes together.

    Raises:
        BuildError: it is no archive, or unpacks to more: hard links repeat a file, sparse files say zeros.
    """
    files: dict[bytes, tuple[str, bytes]] = {}
    held = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                name = posixpath.normpath(member.name)
                if ".git" in name.split("/"):
                    continue
                path = name.encode("utf-8", "surrogateescape")
                if member.issym():
                    files[path] = (MODE_LINK, member.linkname.encode("utf-8", "surrogateescape"))
                    continue
                within = not member.isdir() and held + member.size <= limit
                stream = archive.extractfile(member) if within else None
                data = stream.read() if stream is not None else b""
                held += max(len(data), member.size)
                if held > limit:
                    raise BuildError(f"The image's checkout unpacks to more than {limit} bytes.")
                if stream is not None:
                    files[path] = (MODE_EXEC if member.mode & 0o100 else MODE_FILE, data)
    except (tarfile.TarError, KeyError) as error:
        raise BuildError(f"The archive of the image's checkout cannot be read: {error}.") from error
    return files
