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


def default_cache() -> Path:
    """``$DRIVETRAIN_CACHE``, else ``~/.cache/drivetrain``."""
    return Path(os.environ.get("DRIVETRAIN_CACHE") or Path.home() / ".cache" / "drivetrain")


def content_key(*parts: object) -> str:
    """16 hex digits that change when any part changes."""
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The lock file stays: unlinking it would let a third builder lock a different inode.
    with path.open("wb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return ``target``; if it does not exist, let ``build`` fill a temporary folder and rename that into place.

    A builder that dies leaves only a temporary folder, which the next holder of the lock removes.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.tmp-"
    with _locked(target.parent / f".{target.name}.lock"):
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
