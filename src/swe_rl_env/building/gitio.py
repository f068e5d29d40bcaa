"""Git as an object store, deaf to every config, attribute and hook that is not ours.

Patches are taken and applied between trees in a throw-away bare repository: no file named by an agent is ever
written to the host's file system, and the agent's own ``.git`` is never read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import msgspec

from drivetrain.errors import InfrastructureError, MissingDependency

_ISOLATION = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}
# Protection of other systems' file names would refuse paths that are fine here.
_OPTIONS = ("-c", "core.protectNTFS=false", "-c", "core.protectHFS=false", "-c", "gc.auto=0", "-c", "core.hooksPath=")
# Highest-precedence attributes: whatever a tree's .gitattributes says, bytes stay bytes and diffs are built in.
_NEUTRAL_ATTRIBUTES = b"* -text !eol -filter -ident -working-tree-encoding !diff !merge !whitespace -export-subst\n"


class GitError(InfrastructureError):
    """A git command failed."""


class Entry(msgspec.Struct, frozen=True):
    """One file of a tree: octal mode as git prints it, blob id in hex."""

    mode: str
    blob: str


def git(
    args: Iterable[str],
    *,
    cwd: Path,
    git_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout_s: float = 120.0,
) -> bytes:
    """Run git with an environment made from scratch; return stdout.

    Raises:
        GitError: non-zero exit or time-out.
        MissingDependency: git is not installed.
    """
    program = shutil.which("git")
    if program is None:
        raise MissingDependency("git is not on PATH.", fix="Install git 2.30 or newer.")
    argv = [program, *_OPTIONS, *args]
    full_env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.devnull, **_ISOLATION, **(env or {})}
    if git_dir is not None:
        full_env["GIT_DIR"] = str(git_dir)
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env=full_env,
            input=stdin if stdin is not None else b"",
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        raise GitError(f"git {argv[len(_OPTIONS) + 1]} took longer than {timeout_s:g} s.") from e
    if done.returncode != 0:
        message = done.stderr.decode("utf-8", "replace").strip()[-800:]
        raise GitError(f"git {argv[len(_OPTIONS) + 1]} failed ({done.returncode}): {message}")
    return done.stdout


def blob_id(data: bytes) -> str:
    """The id git gives to these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def quote_path(path: bytes) -> bytes:
    """C-style quoting as git's plumbing reads it."""
    out = bytearray(b'"')
    for c in path:
        if c in b'"\\':
            out += b"\\" + bytes([c])
        elif 0x20 <= c < 0x7F:
            out.append(c)
        else:
            out += b"\\%03o" % c
    return bytes(out + b'"')


class Scratch:
    """A throw-away bare repository that borrows the objects of ``base`` and has an index of its own."""

    def __init__(self, base: Path) -> None:
        self._temp = tempfile.TemporaryDirectory(prefix="drivetrain-git-")
        self.root = Path(self._temp.name)
        self.git_dir = self.root / "git"
        git(["init", "-q", "--bare", "--template=", str(self.git_dir)], cwd=self.root)
        (self.git_dir / "info").mkdir()
        (self.git_dir / "info" / "attributes").write_bytes(_NEUTRAL_ATTRIBUTES)
        alternates = self.git_dir / "objects" / "info" / "alternates"
        alternates.parent.mkdir(exist_ok=True)
        alternates.write_text(f"{(base / 'objects').resolve()}\n")

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._temp.cleanup()

    def run(self, *args: str, stdin: bytes | None = None) -> bytes:
        """Run git in this repository."""
        return git(args, cwd=self.root, git_dir=self.git_dir, stdin=stdin)

    def entries(self, tree: str) -> dict[bytes, Entry]:
        """Every file below a tree or commit."""
        out: dict[bytes, Entry] = {}
        for line in self.run("ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0"):
            if line:
                head, path = line.split(b"\t", 1)
                mode, _, blob = head.decode().split(" ")
                out[path] = Entry(mode, blob)
        return out

    def changed(self, base: str, tree: str) -> list[bytes]:
        """Paths that differ between two trees, renames not considered."""
        raw = self.run("diff", "--no-renames", "--name-only", "-z", base, tree)
        return [p for p in raw.split(b"\0") if p]

    def diff(self, base: str, tree: str) -> bytes:
        """The patch from one tree to another, binary-safe and applicable byte for byte."""
        return self.run(
            "diff",
            "--binary",
            "--full-index",
            "--no-color",
            "--no-ext-diff",
            "--no-textconv",
            "--no-renames",
            base,
            tree,
        )

    def apply(self, tree: str, patch: bytes) -> str:
        """Apply a patch to a tree, without fuzz; return the new tree id.

        Raises:
            GitError: the patch does not apply.
        """
        self.run("read-tree", tree)
        # Patches from outside may have lost their final newline, which makes git call them corrupt.
        self.run(
            "apply", "--cached", "--whitespace=nowarn", "-", stdin=patch if patch.endswith(b"\n") else patch + b"\n"
        )
        return self.run("write-tree").decode().strip()

    def with_entries(self, tree: str, changes: Mapping[bytes, Entry | None]) -> str:
        """A copy of ``tree`` with some paths set or (None) removed; return its id."""
        self.run("read-tree", tree)
        # Removals first, so that a file may take the place of a folder and the other way round.
        ordered = sorted(changes.items(), key=lambda c: c[1] is not None)
        lines = b"".join(
            (f"{e.mode} {e.blob}\t".encode() if e else b"0 " + b"0" * 40 + b"\t") + path + b"\0" for path, e in ordered
        )
        self.run("update-index", "-z", "--index-info", stdin=lines)
        return self.run("write-tree").decode().strip()

    def import_files(self, base: str, files: Mapping[bytes, tuple[str, bytes]]) -> str:
        """Store a whole file list as a tree; return its id. Content equal to ``base``'s is not stored again.

        Args:
            files: path -> (mode, content).
        """
        known = {e.blob for e in self.entries(base).values()}
        stream = [b"commit refs/heads/import\ncommitter a <a@localhost> 0 +0000\ndata 0\n"]
        for path, (mode, data) in files.items():
            blob = blob_id(data)
            name = quote_path(path)
            if blob in known:
                stream.append(f"M {mode} {blob} ".encode() + name + b"\n")
            else:
                stream.append(f"M {mode} inline ".encode() + name + b"\ndata %d\n" % len(data) + data + b"\n")
        stream.append(b"\n")
        self.run("fast-import", "--quiet", "--force", "--date-format=raw", stdin=b"".join(stream))
        return self.run("rev-parse", "refs/heads/import^{tree}").decode().strip()

    def contents(self, tree: str) -> Iterator[tuple[bytes, str, bytes]]:
        """Every file of a tree as (path, mode, content)."""
        return self.contents_of(tree, self.entries(tree))

    def contents_of(self, tree: str, paths: Iterable[bytes]) -> Iterator[tuple[bytes, str, bytes]]:
        """Some files of a tree as (path, mode, content)."""
        known = self.entries(tree)
        entries = [(path, known[path]) for path in paths]
        out = self.run("cat-file", "--batch", stdin="".join(f"{e.blob}\n" for _, e in entries).encode())
        at = 0
        for path, entry in entries:
            end = out.index(b"\n", at)
            size = int(out[at:end].rsplit(b" ", 1)[1])
            yield path, entry.mode, out[end + 1 : end + 1 + size]
            at = end + 1 + size + 1


@contextmanager
def scratch(base: Path) -> Iterator[Scratch]:
    """A :class:`Scratch` over a bare repository, removed at the end."""
    with Scratch(base) as s:
        yield s
