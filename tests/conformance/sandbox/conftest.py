"""Every backend goes through this suite: see ``kits``.

A case that needs a feature says so with ``@pytest.mark.needs("mount")``, one about a backend without it with
``@pytest.mark.lacks("mount")``; nothing else skips, so ``test_sandbox_features.py`` can tell which backend skips what.

``box`` is a sandbox that the cases of a module share, clean at the start of each; ``backend`` is one of the case's own,
and whatever that leaves behind fails the case.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from drivetrain.sandboxes import SandboxBackend, SandboxError, SandboxHandle
from tests.conformance.sandbox.kits import get_kit, kit_names, wanted
from tests.conformance.sandbox.kits.base import Kit

# find's own -delete: no shell pattern reaches hidden files everywhere.
_CLEAN = 'find "$HOME" "$TMPDIR" . -mindepth 1 -delete'


def children() -> set[int]:
    """Pids of this process's children, zombies included."""
    return {child.pid for child in psutil.Process().children()}


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


@pytest.fixture(autouse=True)
def needs(request: pytest.FixtureRequest) -> None:
    """Skip a case that is about features the backend does not have, or about one without a feature that it has."""
    marks = {name: {word for mark in request.node.iter_markers(name) for word in mark.args} for name in MARKS}
    if not any(marks.values()):
        return
    kit: Kit = request.getfixturevalue("kit")
    has = kit.promised()
    if lacking := sorted(marks["needs"] - has):
        pytest.skip(f"{kit.name} has no {', '.join(lacking)}")
    if surplus := sorted(marks["lacks"] & has):
        pytest.skip(f"{kit.name} has {', '.join(surplus)}")


MARKS = ("needs", "lacks")


def check_nothing_left(kit: Kit, root: Path, before: set[int]) -> None:
    """Nothing of these sandboxes is left, and no child of this process that was not there before."""
    until = time.monotonic() + 30
    while left := [*kit.left(root), *(f"child {pid}" for pid in children() - before)]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


@pytest.fixture
def sandbox_root(tmp_path: Path) -> Path:
    return tmp_path / "sandboxes"


@pytest.fixture
def nothing_left(kit: Kit, sandbox_root: Path) -> Iterator[None]:
    """After the case: no folder, process, mount or container."""
    before = children()
    yield
    check_nothing_left(kit, sandbox_root, before)


@pytest_asyncio.fixture(loop_scope="module")
async def backend(kit: Kit, sandbox_root: Path, nothing_left: None) -> AsyncIterator[SandboxBackend]:
    """A backend of the case's own; nothing is left of its sandboxes after ``aclose``."""
    made = kit.make(sandbox_root)
    yield made
    await made.aclose()


class House:
    """The sandbox that the cases of a module share; a new one when a case has ended it."""

    def __init__(self, kit: Kit, backend: SandboxBackend) -> None:
        self._kit = kit
        self._backend = backend
        self._box: SandboxHandle | None = None

    async def take(self) -> SandboxHandle:
        """The sandbox, with nothing in HOME, TMPDIR and workdir."""
        if self._box is not None:
            try:
                done = await self._box.exec(["sh", "-c", _CLEAN])
                if done.exit_code == 0:
                    return self._box
            except SandboxError:
                pass
            await self._box.close()
        self._box = await self._backend.create(self._kit.spec())
        return self._box


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    before, root = children(), tmp_path_factory.mktemp("house") / "sandboxes"
    made = kit.make(root)
    yield House(kit, made)
    await made.aclose()
    check_nothing_left(kit, root, before)
    shutil.rmtree(root.parent)


@pytest_asyncio.fixture(loop_scope="module")
async def box(house: House) -> SandboxHandle:
    """A sandbox with the default spec that cases of a module share; empty at the start."""
    return await house.take()


@pytest.fixture
def nap() -> str:
    """Seconds that no other process on this machine sleeps: ``sleep NAP`` can be counted inside and outside."""
    return str(random.randrange(10**7, 10**9))


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a host pid is a live process (a zombie is not)."""

    def check(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    return check
