"""A local backend of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drivetrain.sandboxes import SandboxBackend, SandboxHandle, SandboxSpec
from drivetrain.sandboxes.local import LocalBackend


@pytest.fixture
def sandbox_root(tmp_path: Path) -> Path:
    return tmp_path / "sandboxes"


@pytest.fixture
async def backend(sandbox_root: Path) -> AsyncIterator[SandboxBackend]:
    made = LocalBackend(sandbox_root)
    yield made
    await made.aclose()


@pytest.fixture
async def box(backend: SandboxBackend) -> SandboxHandle:
    return await backend.create(SandboxSpec())
