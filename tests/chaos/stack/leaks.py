"""What a run left on the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.leftovers import wait_until_clean
from tests.chaos.stack.checker import Finding
from tests.chaos.stack.plan import Plan
from tests.conformance.sandbox.kits.base import command_lines
from tests.conformance.sandbox.kits.local import LocalKit

_PATIENCE_S = 30.0


def leaks(plan: Plan, kit: LocalKit, sandboxes: Sequence[str], patience_s: float = _PATIENCE_S) -> list[Finding]:
    """Processes, sockets, sandboxes, control groups, mounts and folders that should be gone."""
    ends = time.monotonic() + patience_s
    while (left := _ours(plan)) and time.monotonic() < ends:
        time.sleep(0.1)
    for root in plan.sandboxes.iterdir() if plan.sandboxes.exists() else ():
        mark = str(plan.folder)
        left += wait_until_clean(kit, root, mark, sandboxes, max(0.0, ends - time.monotonic()))
    return [Finding("leaked", "machine", what) for what in sorted(set(left))]


def _ours(plan: Plan) -> list[str]:
    """By the run's folder, whose name is in the arguments of everything that a run starts."""
    name = str(plan.folder)
    found = [f"process {pid}" for pid in command_lines(name.encode()) if pid not in (os.getpid(), os.getppid())]
    found += [f"socket {line.split()[-1]}" for line in Path("/proc/net/unix").read_text().splitlines() if name in line]
    if (plan.journal.with_name(plan.journal.name + "-wal")).exists():
        found.append("the journal was not closed: its write-ahead log is still there")
    return found
