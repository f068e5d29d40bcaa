"""Content hashing of a bundle tree: one line per file, one sha256 for the whole.

The listing (``files.txt``) is the proof; the bundle's sha256 is the hash of the listing. File modes are normalised to
0644 / 0755 and times are left out, so that two builds of the same lock on the same host agree whatever their umask.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def normalise(root: Path) -> None:
    """Set every file to 0644 or 0755 and every directory to 0755, in place."""
    root.chmod(0o755)
    for path in _walk(root):
        if path.is_symlink():
            continue
        executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
        path.chmod(0o755 if executable else 0o644)


def listing(root: Path) -> tuple[str, int]:
    """Describe a tree.

    Returns:
        The listing text (``kind sha256-or-target size path`` lines, sorted by path) and the total size in bytes.
    """
    lines: list[str] = []
    total = 0
    for path in _walk(root):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            lines.append(f"l {path.readlink().as_posix()} 0 {name}")
        elif path.is_file():
            size = path.stat().st_size
            total += size
            kind = "x" if path.stat().st_mode & stat.S_IXUSR else "f"
            with path.open("rb") as file:
                lines.append(f"{kind} {hashlib.file_digest(file, 'sha256').hexdigest()} {size} {name}")
    return "\n".join(lines) + "\n", total


def listing_hash(text: str) -> str:
    """The sha256 (hex) of a listing: the bundle's identity."""
    return hashlib.sha256(text.encode()).hexdigest()


def measure(root: Path) -> tuple[int, int]:
    """Count files and links and sum file sizes without reading contents: the cheap check on load."""
    count = total = 0
    stack = [str(root)]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                else:
                    count += 1
                    if not entry.is_symlink():
                        total += entry.stat(follow_symlinks=False).st_size
    return count, total


def _walk(root: Path) -> Iterator[Path]:
    """Everything below ``root`` in a stable order; links are not followed."""
    for folder, names, files in os.walk(root):
        names.sort()
        for name in sorted([*names, *files]):
            yield Path(folder) / name
