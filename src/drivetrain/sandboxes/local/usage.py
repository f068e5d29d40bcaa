"""What a process tree uses, from /proc: for machines where no control group may be made."""

from __future__ import annotations

import os
from pathlib import Path

from drivetrain.sandboxes.protocol import SandboxStats

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_usage(root: int) -> SandboxStats:
    """Processor time of a process, its descendants and what they waited for; the sum of resident sizes (pages that
    processes share count for each); how many there are. Peaks and OOM kills are unknown. Blocks, for less than a
    millisecond where the kernel lists children (CONFIG_PROC_CHILDREN), else for some.
    """
    told = Path(f"/proc/{root}/task/{root}/children").exists()
    inside = _tree_by_children(root) if told else _tree_by_parents(root)
    return SandboxStats(
        cpu_s=sum(ticks for _, ticks, _ in inside) / _TICKS,
        memory_bytes=sum(pages for _, _, pages in inside) * _PAGE,
        pids=len(inside),
    )


_Seen = tuple[int, int, int]
"""Parent, ticks of processor time (its ended children's included), resident pages."""


def _seen(pid: int) -> _Seen | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), sum(map(int, fields[11:15])), int(fields[21])


def _tree_by_children(root: int) -> list[_Seen]:
    found: list[_Seen] = []
    frontier, known = [root], {root}
    while frontier:
        pid = frontier.pop()
        seen = _seen(pid)
        if seen is None:
            continue
        found.append(seen)
        # A process forked while the list is read may be missed: so it is in the other way too.
        new = _children(pid) - known
        known |= new
        frontier.extend(new)
    return found


def _children(pid: int) -> set[int]:
    """Of all threads: a child belongs to the one that forked it."""
    children: set[int] = set()
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            children.update(map(int, (task / "children").read_bytes().split()))
    except OSError:
        pass  # it ended meanwhile
    return children


def _tree_by_parents(root: int) -> list[_Seen]:
    seen: dict[int, _Seen] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (one := _seen(int(entry.name))) is not None:
            seen[int(entry.name)] = one
    inside: set[int] = set()
    frontier = {root} & set(seen)
    while frontier:
        inside |= frontier
        frontier = {pid for pid, (parent, _, _) in seen.items() if parent in frontier} - inside
    return [seen[pid] for pid in inside]
