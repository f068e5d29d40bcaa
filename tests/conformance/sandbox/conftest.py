"""Every backend goes through this suite; add one to BACKENDS and to ``make_backend``."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from drivetrain.sandboxes import SandboxBackend, SandboxHandle, SandboxSpec
from drivetrain.sandboxes.local import LocalBackend

BACKENDS = ["local"]


def children() -> set[int]:
    """Pids of this process's children, zombies included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a worker thread that just ended
            found.update(int(pid) for pid in (task / "children").read_text().split())
    return found


@pytest.fixture(params=BACKENDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "local" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    return name


@pytest.fixture
def sandbox_root(tmp_path: Path) -> Path:
    return tmp_path / "sandboxes"


def mentioned(text: bytes) -> list[bytes]:
    """Command lines on this machine that contain ``text``."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            if text in line:
                found.append(line)
    return found


@pytest.fixture
def nothing_left(sandbox_root: Path) -> Iterator[None]:
    """After the test: no folder, no process and no mount."""
    before, mounts = children(), Path("/proc/self/mounts").read_text()
    yield
    assert not sandbox_root.exists() or list(sandbox_root.iterdir()) == []
    assert children() <= before
    assert mentioned(bytes(sandbox_root)) == []
    assert Path("/proc/self/mounts").read_text() == mounts


@pytest.fixture
async def backend(
    backend_name: str,
    sandbox_root: Path,
    nothing_left: None,  # its check runs after the backend is closed
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[SandboxBackend]:
    made = make_backend(backend_name, sandbox_root)
    names: list[str] = []
    create = made.create

    async def recording(spec: SandboxSpec) -> SandboxHandle:
        handle = await create(spec)
        names.append(handle.id)
        return handle

    monkeypatch.setattr(made, "create", recording)
    yield made
    await made.aclose()
    groups = {folder.name for folder in Path("/sys/fs/cgroup").glob("**/drivetrain-*")}
    assert groups.isdisjoint(f"drivetrain-{name}" for name in names)


def make_backend(name: str, root: Path) -> SandboxBackend:
    assert name == "local"
    return LocalBackend(root)


@pytest.fixture
async def box(backend: SandboxBackend) -> SandboxHandle:
    """A sandbox with the default spec; the backend closes it."""
    return await backend.create(SandboxSpec())


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a host pid is a live process (a zombie is not)."""

    def check(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    return check
