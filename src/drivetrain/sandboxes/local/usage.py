"""What a process tree uses, from /proc: for machines where no control group may be made."""

from __future__ import annotations

import os
from pathlib import Path

from drivetrain.sandboxes.protocol import SandboxStats

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_usage(root: int) -> SandboxStats:
    """Processor time of a process, its descendants and what they waited for; the sum of resident sizes (pages that
    processes share count for each); how many there are. Peaks and OOM kills are unknown. Blocks for some ms.
    """
    seen: dict[int, tuple[int, int, int]] = {}  # pid -> parent, ticks, resident pages
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        seen[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])), int(fields[21]))
    inside: set[int] = set()
    frontier = {root} & set(seen)
    while frontier:
        inside |= frontier
        frontier = {pid for pid, (parent, _, _) in seen.items() if parent in frontier} - inside
    return SandboxStats(
        cpu_s=sum(seen[pid][1] for pid in inside) / _TICKS,
        memory_bytes=sum(seen[pid][2] for pid in inside) * _PAGE,
        pids=len(inside),
    )
