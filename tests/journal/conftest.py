"""Turns to write, and a disk that can be filled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.small_disk import SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """4 MB, empty."""
    with small_disk(tmp_path / "disk") as made:
        yield made
