"""A file system of a few megabytes that a test fills and empties."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class SmallDisk:
    """A mounted tmpfs; ``path`` is empty at first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Take every byte that is left."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)

    def free(self, size: int | None = None) -> None:
        """Give back so many bytes; all that were taken when it is not said."""
        if size is None:
            self._filler.unlink()
        else:
            with self._filler.open("r+b") as file:
                file.truncate(self._filler.stat().st_size - size)


@contextlib.contextmanager
def small_disk(path: Path, size: str = "4m") -> Iterator[SmallDisk]:
    """Mount one at ``path``; skips the test where that is not permitted."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


async def until(holds: Callable[[], Any]) -> None:
    """Wait until a condition holds, at most 60 s."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 (any condition, bounded)
            await asyncio.sleep(0.01)
