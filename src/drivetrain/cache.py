"""A folder of finished things: each entry appears whole or not at all, and is built by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

Progress = Callable[[str], None]
"""Receives one line per step of long work."""


def silent(_line: str) -> None:
    """A :data:`Progress` that says nothing."""


def cache_root(cache: Path | None = None) -> Path:
    """``cache``, else ``$DRIVETRAIN_CACHE``, else ``~/.cache/drivetrain``; absolute."""
    return (cache or Path(os.environ.get("DRIVETRAIN_CACHE") or Path.home() / ".cache" / "drivetrain")).absolute()


def content_key(*parts: object) -> str:
    """16 hex digits that change when any part changes."""
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]


def build_once(target: Path, build: Callable[[Path], None], progress: Progress = silent) -> Path:
    """Return ``target``; if it does not exist, let ``build`` fill a temporary folder and rename that into place.

    Other processes that want the same entry wait and find it. A builder that dies leaves only a temporary folder,
    which the next holder of the lock removes.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.tmp-"
    with _locked(target.parent / f".{target.name}.lock", progress):
        if target.exists():
            return target
        for stale in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(stale, ignore_errors=True)
        temp = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            build(temp)
            temp.chmod(0o755)  # mkdtemp makes 0700; a mounted folder must be readable by the sandbox user
            temp.rename(target)
        except BaseException:
            shutil.rmtree(temp, ignore_errors=True)
            raise
    return target


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    # The lock file stays: unlinking it would let a third builder lock a different inode.
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that builds {path.name.strip('.').removesuffix('.lock')}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
