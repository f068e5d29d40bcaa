"""A double of E2B for the tests of this folder, one per module; a backend of its own for each test."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from drivetrain.sandboxes import SandboxHandle, SandboxSpec
from drivetrain.sandboxes.e2b import E2BBackend
from tests.sandboxes.doubles import box as boxes
from tests.sandboxes.doubles.e2b_server import API_KEY, E2BServer, Faults


@pytest.fixture(scope="module")
def server() -> Iterator[E2BServer]:
    pytest.importorskip("e2b")
    if reason := boxes.missing():
        pytest.skip(reason)
    # Not below pytest's folder: root in a box is nobody outside and could not pass.
    with tempfile.TemporaryDirectory(prefix="double-") as folder:
        Path(folder).chmod(0o755)
        made = E2BServer(Path(folder) / "boxes")
        made.start()
        yield made
        made.stop()


def connection(server: E2BServer) -> dict[str, str]:
    """The SDK's own options that lead to the double."""
    return {"api_key": API_KEY, "api_url": server.url, "sandbox_url": server.url}


@pytest.fixture
async def backend(server: E2BServer, tmp_path: Path) -> AsyncIterator[E2BBackend]:
    server.faults = Faults()
    server.calls.clear()
    made = E2BBackend(scope=tmp_path.name, relay_port=0, dial_port=0, **connection(server))
    yield made
    server.faults = Faults()
    await made.aclose()
    assert server.made == {}, "a box is left"


@pytest.fixture
async def box(backend: E2BBackend) -> SandboxHandle:
    return await backend.create(SandboxSpec())
