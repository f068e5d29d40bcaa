"""The daemon that the conformance kit starts, for the tests that are about Docker alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from drivetrain.sandboxes.docker import DockerBackend
from tests.conformance.sandbox.kits import get_kit, wanted
from tests.conformance.sandbox.kits.docker import BASE_IMAGE, DockerKit


@pytest.fixture(scope="session")
def kit() -> Iterator[DockerKit]:
    made = get_kit("docker")
    assert isinstance(made, DockerKit)
    if reason := made.missing():
        if "docker" in (wanted() or []):
            pytest.fail(f"docker was asked for: {reason}")
        pytest.skip(reason)
    made.start()
    yield made
    made.close()


@pytest.fixture
async def backend(kit: DockerKit, tmp_path: Path) -> AsyncIterator[DockerBackend]:
    """A backend of the test's own; nothing of it is left on the engine."""
    root = tmp_path / "sandboxes"
    made = DockerBackend(kit.socket, image=BASE_IMAGE, root=root)
    yield made
    await made.aclose()
    assert kit.left(root) == []
