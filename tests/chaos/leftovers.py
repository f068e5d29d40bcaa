"""What sandboxes left on this machine, looked for independently of the backends' own book-keeping."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from tests.conformance.sandbox.kits.base import Kit, command_lines


def leftovers(kit: Kit, root: Path, mark: str, ids: Iterable[str]) -> list[str]:
    """In words: what the kit finds; processes, cgroups, mounts, sockets and network namespaces with a name of ours."""
    names = sorted(ids)
    found = list(kit.left(root))
    found += [f"process {pid} runs inside" for pid in command_lines(mark.encode()) if pid != os.getpid()]
    found += _mount_namespaces(root)
    found += [
        f"socket {line.split()[-1]}" for line in Path("/proc/net/unix").read_text().splitlines() if str(root) in line
    ]
    wanted = {*names, *(f"drivetrain-{name}" for name in names)}
    for folder, subfolders, _ in os.walk("/sys/fs/cgroup"):
        found += [f"cgroup {folder}/{name}" for name in subfolders if name in wanted]
    for place in (Path("/run/netns"), Path("/dev/shm"), Path("/dev/mqueue")):
        if place.is_dir():
            found += [f"{entry}" for entry in place.iterdir() if any(name in entry.name for name in names)]
    return sorted(set(found))


def _mount_namespaces(root: Path) -> list[str]:
    """Processes that see a mount of something below ``root``: whatever runs in a sandbox of it, and its bubblewrap."""
    found = []
    seen: dict[str, bool] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                namespace = str((entry / "ns" / "mnt").readlink())
                if namespace not in seen:
                    seen[namespace] = str(root) in (entry / "mountinfo").read_text()
                if seen[namespace]:
                    found.append(f"process {entry.name} sees a mount of a sandbox")
    return found


def wait_until_clean(kit: Kit, root: Path, mark: str, ids: Iterable[str], patience_s: float) -> list[str]:
    """What is still there after ``patience_s`` seconds: a killed process takes a moment to be gone."""
    names = list(ids)
    until = time.monotonic() + patience_s
    while (left := leftovers(kit, root, mark, names)) and time.monotonic() < until:
        time.sleep(0.1)
    return left
