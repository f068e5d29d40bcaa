"""Every backend goes through this suite: see ``kits``.

A case that needs a feature says so with ``@pytest.mark.needs("mount")`` and in no other way, so that
``test_sandbox_features.py`` can tell which backend skips which case.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from drivetrain.sandboxes import SandboxBackend, SandboxHandle
from tests.conformance.sandbox.kits import get_kit, kit_names, wanted
from tests.conformance.sandbox.kits.base import Kit


def children() -> set[int]:
    """Pids of this process's children, zombies included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a worker thread that just ended
            found.update(int(pid) for pid in (task / "children").read_text().split())
    return found


@pytest.fixture(scope="session", params=kit_names())
def kit(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """The backend under test; skipped with a reason where it cannot run."""
    made = get_kit(request.param)
    if reason := made.missing():
        if wanted():
            pytest.fail(f"the {made.name} backend was asked for: {reason}")
        pytest.skip(f"{made.name}: {reason}")
    made.start()
    yield made
    made.close()


@pytest.fixture
def sandbox_root(tmp_path: Path) -> Path:
    return tmp_path / "sandboxes"


def check_nothing_left(kit: Kit, root: Path, before: set[int]) -> None:
    """Nothing of these sandboxes is left, and no child of this process that was not there before."""
    until = time.monotonic() + 5
    while left := [*kit.left(root), *(f"child {pid}" for pid in children() - before)]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


@pytest.fixture
def nothing_left(kit: Kit, sandbox_root: Path) -> Iterator[None]:
    """After the test: no folder, process, mount or container."""
    before = children()
    yield
    check_nothing_left(kit, sandbox_root, before)


@pytest.fixture
async def backend(
    kit: Kit, request: pytest.FixtureRequest, sandbox_root: Path, nothing_left: None
) -> AsyncIterator[SandboxBackend]:
    """A backend of its own; what it leaves behind after ``aclose`` fails the test."""
    made = kit.make(sandbox_root)
    needs(request.node, kit, made)
    yield made
    await made.aclose()


def needs(item: pytest.Item, kit: Kit, backend: SandboxBackend) -> None:
    """Skip a case whose features the backend does not have."""
    wants = [feature for mark in item.iter_markers("needs") for feature in mark.args]
    if lacking := sorted(set(wants) - backend.features):
        pytest.skip(f"{kit.name} has no {', '.join(lacking)}")


@pytest.fixture
async def box(backend: SandboxBackend, kit: Kit) -> SandboxHandle:
    """A sandbox with the default spec; the backend closes it."""
    return await backend.create(kit.spec())


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a host pid is a live process (a zombie is not)."""

    def check(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    return check
