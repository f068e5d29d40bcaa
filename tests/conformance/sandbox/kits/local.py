"""The local backend under test."""

from __future__ import annotations

import functools
import os
import shutil
import signal
from pathlib import Path

from drivetrain.sandboxes import Feature, SandboxBackend, SandboxHandle, SandboxSpec
from drivetrain.sandboxes.label import read_label
from drivetrain.sandboxes.local import LocalBackend
from tests.conformance.sandbox.kits.base import BaseKit, command_lines


class _Recording(LocalBackend):
    """Remembers the names of its sandboxes: their control groups are named after them."""

    def __init__(self, root: Path, ids: set[str]) -> None:
        super().__init__(root)
        self._ids = ids

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        handle = await super().create(spec)
        self._ids.add(handle.id)
        return handle


@functools.cache
def may_group(controller: str) -> bool:
    """Whether this process may limit what ``controller`` counts (version 1: a folder of it; version 2: enabled)."""
    enabled = Path("/sys/fs/cgroup/cgroup.controllers")
    if enabled.exists():
        return controller in enabled.read_text().split() and os.access(enabled.parent, os.W_OK)
    return os.access(f"/sys/fs/cgroup/{controller}", os.W_OK)


class LocalKit(BaseKit):
    name = "local"

    def __init__(self) -> None:
        self._ids: dict[Path, set[str]] = {}

    @property
    def measured(self) -> frozenset[str]:  # type: ignore[override]
        grouped = {"memory_bytes", "memory_peak_bytes", "oom_kills"} if may_group("memory") else set[str]()
        return frozenset(
            grouped | ({"pids"} if may_group("pids") else set()) | ({"cpu_s"} if may_group("cpuacct") else set())
        )

    def missing(self) -> str | None:
        return None if shutil.which("bwrap") else "bubblewrap is not installed"

    def promised(self) -> frozenset[Feature]:
        found: set[Feature] = {"mount", "writable_mount", "overlay", "snapshot", "network_policy", "pids_limit"}
        found.add("host_pids")
        if may_group("memory"):
            found.add("memory_limit")
        if may_group("cpu"):
            found.add("cpu_limit")
        if os.getuid() == 0 and Path("/dev/loop-control").exists() and shutil.which("mkfs.ext4"):
            found.add("disk_limit")
        return frozenset(found)

    def make(self, root: Path) -> SandboxBackend:
        return _Recording(root, self._ids.setdefault(root, set()))

    def vanish(self, handle: SandboxHandle) -> None:
        root = next(root for root, ids in self._ids.items() if handle.id in ids)
        label = read_label(root / handle.id)
        assert label is not None
        assert label.init_pid is not None
        os.kill(label.init_pid, signal.SIGKILL)

    def left(self, root: Path) -> list[str]:
        found = [f"folder {entry}" for entry in root.iterdir()] if root.exists() else []
        for mentioned in (str(root), *self._ids.get(root, ())):  # bubblewrap's arguments name the folder or the sandbox
            found += [f"process {pid}" for pid in command_lines(mentioned.encode())]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found += [f"mount {line}" for line in mounts if str(root) in line]
        files = [path for path in Path("/sys/block").glob("loop*/loop/backing_file") if str(root) in path.read_text()]
        found += [f"loop device {path.parts[3]}" for path in files]
        groups = {f"drivetrain-{name}" for name in self._ids.get(root, ())}
        for folder, names, _ in os.walk("/sys/fs/cgroup"):  # unlike glob it takes groups that vanish meanwhile
            found += [f"group {folder}/{name}" for name in names if name in groups]
        return found
