"""Memory, process and processor limits of a whole sandbox, where this process may make control groups (v2 or v1).

Groups are made below the caller's own group, so limits already set on the caller keep holding; in v2, where a group
that holds processes cannot have limited children, beside it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from pathlib import Path

from drivetrain.sandboxes.protocol import Limits, SandboxStats

# Room for PID 1, the relay and one keeper per command; not counted against the sandbox's own limit.
PIDS_OVERHEAD = 16
CPU_PERIOD_US = 100_000
_V1_CONTROLLERS = ("memory", "pids", "cpu")


def _unescape(field: str) -> str:
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _mounts() -> dict[str, tuple[str, Path]]:
    """Controller name (``""`` for v2) -> (root of the mount inside the hierarchy, mount point)."""
    found: dict[str, tuple[str, Path]] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        fields = left.split(" ")
        place = (_unescape(fields[3]), Path(_unescape(fields[4])))
        if kind == "cgroup2":
            found.setdefault("", place)
        elif kind == "cgroup":
            for option in options.split(","):
                found.setdefault(option, place)
    return found


@functools.cache
def _own_folder(controller: str) -> Path | None:
    """This process's group in the hierarchy of ``controller`` (``""`` for v2)."""
    place = _mounts().get(controller)
    if place is None:
        return None
    root, point = place
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == controller or (controller and controller in controllers.split(",")):
            inside = Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path(path.lstrip("/"))
            folder = point / str(inside).lstrip("/")
            return folder if folder.is_dir() else None
    return None


@functools.cache
def _v2_parent() -> Path | None:
    """A v2 group whose children get the memory and pids controllers."""
    own = _own_folder("")
    if own is None:
        return None
    for folder in (own, own.parent):
        try:
            enabled = (folder / "cgroup.subtree_control").read_text().split()
        except OSError:
            continue
        if {"memory", "pids"} <= set(enabled):
            return folder
    return None


def _make(folder: Path, values: dict[str, str]) -> bool:
    try:
        folder.mkdir()
    except OSError:
        return False
    if not _set(folder, values):
        folder.rmdir()
        return False
    return True


def _set(folder: Path, values: dict[str, str]) -> bool:
    try:
        for name, value in values.items():
            (folder / name).write_text(value)
    except OSError:
        return False
    return True


class Groups:
    """The control groups of one sandbox; ``memory``, ``pids`` and ``cpu`` say which limits they enforce."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.memory = False
        self.pids = False
        self.cpu = False

    def missing(self, limits: Limits) -> list[str]:
        """Limits asked for and not enforced, in words."""
        held = {"memory": self.memory, "process": self.pids, "processor": self.cpu or limits.cpus is None}
        return [name for name, enforced in held.items() if not enforced]

    def add(self, pid: int) -> None:
        """Move a process in; its future children follow. Raises OSError."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def stats(self) -> SandboxStats:
        """Use so far; None where no group tells."""
        seen: dict[str, int] = {}
        for folder in self.folders:
            for what, file, field in _STATS:
                value = _number(folder / file, field)
                if value is not None:
                    seen[what] = value
        cpu_ns = seen.get("cpu_ns", seen["cpu_us"] * 1000 if "cpu_us" in seen else None)
        return SandboxStats(
            cpu_s=None if cpu_ns is None else cpu_ns / 1e9,
            memory_bytes=seen.get("memory"),
            memory_peak_bytes=seen.get("peak"),
            pids=seen.get("pids"),
            oom_kills=seen.get("oom"),
        )


# (what, file of v2 or v1, field in it or "" for a single number)
_STATS = (
    ("cpu_us", "cpu.stat", "usage_usec"),
    ("cpu_ns", "cpuacct.usage", ""),
    ("memory", "memory.current", ""),
    ("memory", "memory.usage_in_bytes", ""),
    ("peak", "memory.peak", ""),
    ("peak", "memory.max_usage_in_bytes", ""),
    ("pids", "pids.current", ""),
    ("oom", "memory.events", "oom_kill"),
    ("oom", "memory.oom_control", "oom_kill"),
)


def _number(file: Path, field: str) -> int | None:
    try:
        text = file.read_text()
    except OSError:
        return None
    if not field:
        return int(text)
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[0] == field), None)


def _name(sandbox_id: str) -> str:
    return f"drivetrain-{sandbox_id}"


def possible_folders(sandbox_id: str) -> list[Path]:
    """Every folder :func:`make_groups` may make: known before, so that what a crash leaves can be found."""
    parents = [_v2_parent(), *(_own_folder(controller) for controller in _V1_CONTROLLERS)]
    return list(dict.fromkeys(parent / _name(sandbox_id) for parent in parents if parent is not None))


def make_groups(sandbox_id: str, limits: Limits) -> Groups:
    """Control groups with the limits set, as far as this machine lets us."""
    groups = Groups()
    name = _name(sandbox_id)
    pids = limits.pids + PIDS_OVERHEAD
    quota = None if limits.cpus is None else max(int(limits.cpus * CPU_PERIOD_US), 1000)
    parent = _v2_parent()
    if parent is not None:
        folder = parent / name
        if _make(folder, {"memory.max": str(limits.memory_bytes), "pids.max": str(pids)}):
            groups.folders.append(folder)
            groups.memory = groups.pids = True
            with contextlib.suppress(OSError):  # a kernel without swap accounting
                (folder / "memory.swap.max").write_text("0")
            with contextlib.suppress(OSError):  # the controller is not enabled for us
                if quota is not None:
                    (folder / "cpu.max").write_text(f"{quota} {CPU_PERIOD_US}")
                    groups.cpu = True
            return groups
    return _make_v1_groups(name, limits.memory_bytes, pids, quota)


def _make_v1_groups(name: str, memory: int, pids: int, quota: int | None) -> Groups:
    groups = Groups()
    wanted: dict[str, dict[str, str]] = {
        "memory": {"memory.limit_in_bytes": str(memory)},
        "pids": {"pids.max": str(pids)},
    }
    if quota is not None:
        wanted["cpu"] = {"cpu.cfs_period_us": str(CPU_PERIOD_US), "cpu.cfs_quota_us": str(quota)}
    made: dict[Path, None] = {}  # controllers may share a hierarchy
    for controller, values in wanted.items():
        own = _own_folder(controller)
        if own is None:
            continue
        folder = own / name
        if _set(folder, values) if folder in made else _make(folder, values):
            made[folder] = None
            setattr(groups, controller, True)
    groups.folders = list(made)
    return groups


def remove_cgroups(folders: list[Path], patience_s: float = 2.0) -> None:
    """Remove groups whose processes are dead or dying; blocks for ``patience_s`` seconds at most. Missing is fine."""
    until = time.monotonic() + patience_s
    for folder in folders:
        while True:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                if time.monotonic() < until:
                    time.sleep(0.005)
                    continue
            break
