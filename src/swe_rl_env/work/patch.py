"""Take the agent's work as a patch, without trusting anything in its sandbox.

The tree comes out as a tar and goes straight into a git object store of ours as blobs; the agent's ``.git``, config,
attributes, filters, hooks and index have no say, and no file of its choosing is written on the host. So commits,
a deleted ``.git``, ``assume-unchanged`` bits and clean filters change nothing about the result.
"""

from __future__ import annotations

import asyncio
import io
import posixpath
import tarfile
from collections.abc import Iterable

import msgspec

from drivetrain.sandboxes.protocol import SandboxError, SandboxGone
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.building.gitio import Entry, Scratch
from swe_rl_env.building.tario import MODE_EXEC, MODE_FILE, MODE_LINK
from swe_rl_env.errors import PatchRejected
from swe_rl_env.work.findings import Finding, in_git_folder, in_patch
from swe_rl_env.work.survey import is_full, settle
from swe_rl_env.work.workspace import Workspace

# Generated while working; left out unless base has the very path.
_GENERATED_FOLDERS = frozenset(
    {
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
        ".tox",
        ".nox",
        ".venv",
        "venv",
        "node_modules",
        ".nyc_output",
        ".cache",
        ".eggs",
    }
)
_GENERATED_SUFFIXES = (".pyc", ".pyo", ".swp")
_ESCAPES = "link leaves the checkout"
_GIT_FILES, _GIT_FILE_BYTES = 2000, 8 << 20


class PatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Caps in bytes and counts. A new file above ``new_file_bytes`` is left out; the other caps reject the patch."""

    tree_bytes: int = 256 << 20
    patch_bytes: int = 4 << 20
    files: int = 2000
    new_file_bytes: int = 1 << 20


class CollectedPatch(msgspec.Struct, frozen=True, kw_only=True):
    """A patch against the base commit, what was not taken as (path, reason) pairs, and what was noticed."""

    patch: bytes
    left_out: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...] = ()


async def collect_patch(workspace: Workspace, built: BuiltTask, *, limits: PatchLimits | None = None) -> bytes:
    """The agent's work as patch bytes; see :func:`collect`."""
    return (await collect(workspace, built, limits=limits)).patch


async def collect(workspace: Workspace, built: BuiltTask, *, limits: PatchLimits | None = None) -> CollectedPatch:
    """Everything that differs between the base commit and the checkout as it is now.

    What still runs inside is killed first, so the tree cannot change while it is read.

    Raises:
        PatchRejected: a cap is exceeded or the tree cannot be represented; ``reason`` says which.
        SandboxError: the sandbox failed.
    """
    limits = limits or PatchLimits()
    noticed = await _settle(workspace)
    tar = await _download(workspace, limits)
    taken = await asyncio.to_thread(patch_from_tar, tar, built, limits)
    return msgspec.structs.replace(taken, findings=(*noticed, *taken.findings))


async def _settle(workspace: Workspace) -> list[Finding]:
    try:
        return await settle(workspace.sandbox, workspace.resident)
    except SandboxGone:
        raise
    except SandboxError as error:
        # No room for one more process: the work of whoever filled it, not of the machinery.
        if not await is_full(workspace.sandbox, workspace.pids):
            raise
        raise PatchRejected(
            "workspace_exhausted", f"Processes fill the sandbox (limit {workspace.pids}): nothing can be taken."
        ) from error


async def _download(workspace: Workspace, limits: PatchLimits) -> bytes:
    box, repo = workspace.sandbox, workspace.repo
    try:
        return await box.download(repo, max_bytes=limits.tree_bytes)
    except (SandboxError, OSError):
        # Either the agent's doing (folder gone, or grown past the cap) or a sandbox that broke: ask it.
        there = await box.exec(["/usr/bin/test", "-d", repo], cwd="/")
        if there.exit_code == 1:  # anything else is no answer, and a killed `test` must not read as "all files deleted"
            return _EMPTY_TAR
        usage = await box.exec(["/usr/bin/du", "-sb", repo], cwd="/")
        size = usage.stdout.split()[:1]
        if size and size[0].isdigit() and int(size[0]) > limits.tree_bytes:
            raise PatchRejected(
                "workspace_too_large", f"The checkout holds {int(size[0])} bytes, the cap is {limits.tree_bytes}."
            ) from None
        raise


def _empty_tar() -> bytes:
    buffer = io.BytesIO()
    tarfile.open(fileobj=buffer, mode="w").close()
    return buffer.getvalue()


_EMPTY_TAR = _empty_tar()


def patch_from_tar(tar: bytes, built: BuiltTask, limits: PatchLimits | None = None) -> CollectedPatch:
    """The patch that turns the base commit into the tree of a tar (untrusted bytes; blocking).

    Raises:
        PatchRejected: see :func:`collect`.
    """
    limits = limits or PatchLimits()
    base = built.task.base_commit
    with Scratch(built.git_dir) as s:
        entries = s.entries(base)
        files, left_out = _read_tree(tar, entries, limits)
        if built.task.image is not None:
            files = {p: (_mode(entries.get(p), mode), data) for p, (mode, data) in files.items()}
        tree = s.import_files(base, files)
        if compiled := _compiled(entries, files):
            tree = s.with_entries(tree, compiled)
        changed = s.changed(base, tree)
        if len(changed) > limits.files:
            raise PatchRejected("too_many_files", f"{len(changed)} files changed, the cap is {limits.files}.")
        patch = s.diff(base, tree)
    if len(patch) > limits.patch_bytes:
        raise PatchRejected("patch_too_large", f"The patch has {len(patch)} bytes, the cap is {limits.patch_bytes}.")
    found = [
        *(Finding(kind="escaping_link", path=p) for p, reason in left_out if reason == _ESCAPES),
        *in_git_folder(_git_folder(tar)),
        *in_patch(patch),
    ]
    return CollectedPatch(patch=patch, left_out=tuple(sorted(left_out)), findings=tuple(found))


def _git_folder(tar: bytes) -> dict[str, bytes]:
    """The small files of the checkout's ``.git``, to look at; objects are left alone."""
    files: dict[str, bytes] = {}
    left = len(tar)  # what is larger is sparse
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            name = posixpath.normpath(member.name)
            if not (member.isreg() and name.startswith(".git/") and member.size <= min(_GIT_FILE_BYTES, left)):
                continue
            if name.startswith(".git/objects/") and not name.startswith(".git/objects/info/"):
                continue
            stream = archive.extractfile(member)
            if stream is not None and len(files) < _GIT_FILES:
                files[name[5:]] = stream.read()
                left -= member.size
    return files


def _mode(base: Entry | None, mode: str) -> str:
    """Images make every file executable: whoever writes one anew, git included, would seem to change its mode."""
    return base.mode if base and {base.mode, mode} == {MODE_FILE, MODE_EXEC} else mode


def _compiled(base: dict[bytes, Entry], files: dict[bytes, tuple[str, bytes]]) -> dict[bytes, Entry | None]:
    """Byte code that the release ships: running the project rewrites it, which is no part of anybody's work."""
    shipped = {p: e for p, e in base.items() if is_compiled(p.decode("utf-8", "surrogateescape"))}
    return {p: e for p, e in shipped.items() if not any(p.startswith(f + b"/") for f in files)}


def is_compiled(path: str) -> bool:
    """Whether the path is Python byte code."""
    return path.endswith((".pyc", ".pyo"))


def _read_tree(
    tar: bytes, base: dict[bytes, Entry], limits: PatchLimits
) -> tuple[dict[bytes, tuple[str, bytes]], list[tuple[str, str]]]:
    """Members of the tar worth keeping as path -> (git mode, content), and what was left out."""
    files: dict[bytes, tuple[str, bytes]] = {}
    left_out: list[tuple[str, str]] = []
    held = 0
    try:
        # errors=surrogateescape: names are bytes, whatever the agent called its files.
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                name = posixpath.normpath(member.name)
                path = name.encode("utf-8", "surrogateescape")
                shown = path.decode("utf-8", "backslashreplace")
                if member.isdir():
                    continue
                reason = _unwanted(name, member, path in base, limits)
                if reason == "git":
                    continue
                if reason:
                    left_out.append((shown, reason))
                    continue
                if member.issym():
                    files[path] = (MODE_LINK, member.linkname.encode("utf-8", "surrogateescape"))
                    continue
                # A hard link is read as a copy of the member it points to.
                stream = archive.extractfile(member) if member.size <= limits.tree_bytes else None
                data = stream.read() if stream is not None else b""
                held += max(len(data), member.size)
                if held > limits.tree_bytes:  # the archive is smaller: hard links repeat, sparse files say zeros
                    raise PatchRejected(
                        "workspace_too_large", f"The checkout unpacks to more than {limits.tree_bytes} bytes."
                    )
                files[path] = (MODE_EXEC if member.mode & 0o100 else MODE_FILE, data)
    except (tarfile.TarError, KeyError, UnicodeError) as e:
        raise PatchRejected("unreadable_tree", f"The checkout's archive cannot be read: {e}.") from e
    return files, left_out


def _unwanted(name: str, member: tarfile.TarInfo, in_base: bool, limits: PatchLimits) -> str:
    """Why a member is not taken; empty when it is. ``git`` = silently, it is the agent's own bookkeeping."""
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or name == ".":
        return "path leaves the checkout"
    # Also nested repositories: as gitlinks they would lose their content. git itself refuses the name in any case.
    if any(p.lower() == ".git" for p in parts):
        return "git"
    if not (member.isreg() or member.issym() or member.islnk()):
        return "not a regular file or link"
    if member.issym() and escapes(name, member.linkname):
        return _ESCAPES
    if in_base:
        return ""
    if not _GENERATED_FOLDERS.isdisjoint(parts[:-1]) or name.endswith(_GENERATED_SUFFIXES):
        return "generated"
    if any(p.endswith(".egg-info") for p in parts[:-1]):
        return "generated"
    if member.isreg() and member.size > limits.new_file_bytes:
        return f"larger than {limits.new_file_bytes} bytes"
    return ""


def escapes(path: str, target: str) -> bool:
    """Whether a link at ``path`` (relative to the checkout) points out of it."""
    if target.startswith("/") or not target:
        return True
    return _climbs([*posixpath.dirname(path).split("/"), *target.split("/")])


def _climbs(parts: Iterable[str]) -> bool:
    depth = 0
    for part in parts:
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            return True
    return False
