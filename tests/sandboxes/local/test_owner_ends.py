"""A local sandbox ends with its owner, before anybody reaps; its folder and groups are the reaper's."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.sandboxes.local.reaper import reap
from tests.conformance.sandbox.kits.base import command_lines

OWNER = """
import asyncio, sys
from pathlib import Path
from drivetrain.sandboxes import SandboxSpec
from drivetrain.sandboxes.local import LocalBackend

async def main():
    box = await LocalBackend(Path(sys.argv[1])).create(SandboxSpec(labels={"rollout": "r1"}))
    job = await box.start(["sh", "-c", "trap '' TERM HUP; setsid sleep 4712471 & echo; sleep 4712471; sleep 4712471"])
    while not job.tail():
        await asyncio.sleep(0.01)
    print(box.id, job.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.mark.case("F1")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_its_owner(tmp_path: Path, number: signal.Signals) -> None:
    root = tmp_path / "sandboxes"
    command = [sys.executable, "-c", OWNER, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        name, pid = owner.stdout.readline().split()
        assert Path(f"/proc/{pid}").exists()
        until(lambda: len(command_lines(b"sleep\x004712471\0")) >= 1, "nothing runs inside")
        assert reap(root) == []  # its owner lives
        owner.send_signal(number)
    until(lambda: not Path(f"/proc/{pid}").exists(), "the command outlives its owner")
    until(lambda: not command_lines(b"sleep\x004712471\0"), "processes outlive their owner")
    assert [entry.name for entry in root.iterdir()] == [name]
    assert reap(root) == [name]
    assert list(root.iterdir()) == []
    assert reap(root) == []
