"""Memory and process limits of a whole sandbox, where this process may make control groups (v2 or v1).

Groups are made below the caller's own group, so limits already set on the caller keep holding; in v2, where a group
that holds processes cannot have limited children, beside it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from pathlib import Path

from drivetrain.sandboxes.protocol import Limits

# Room for PID 1, the relay and one keeper per command; not counted against the sandbox's own limit.
PIDS_OVERHEAD = 16


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


def _make(folder: Path, values: dict[str, int]) -> bool:
    try:
        folder.mkdir()
    except OSError:
        return False
    try:
        for name, value in values.items():
            (folder / name).write_text(str(value))
    except OSError:
        folder.rmdir()
        return False
    return True


class Groups:
    """The control groups of one sandbox; ``memory`` and ``pids`` say which limits they enforce."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.memory = False
        self.pids = False

    def add(self, pid: int) -> None:
        """Move a process in; its future children follow. Raises OSError."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))


def make_groups(sandbox_id: str, limits: Limits) -> Groups:
    """Control groups with the limits set, as far as this machine lets us."""
    groups = Groups()
    name = f"drivetrain-{sandbox_id}"
    pids = limits.pids + PIDS_OVERHEAD
    parent = _v2_parent()
    if parent is not None:
        folder = parent / name
        if _make(folder, {"memory.max": limits.memory_bytes, "pids.max": pids}):
            groups.folders.append(folder)
            groups.memory = groups.pids = True
            with contextlib.suppress(OSError):  # a kernel without swap accounting
                (folder / "memory.swap.max").write_text("0")
            return groups
    for controller, file, value in (
        ("memory", "memory.limit_in_bytes", limits.memory_bytes),
        ("pids", "pids.max", pids),
    ):
        own = _own_folder(controller)
        if own is not None and _make(own / name, {file: value}):
            groups.folders.append(own / name)
            setattr(groups, controller, True)
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
