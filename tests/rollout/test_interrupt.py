"""A run that is told to stop, or killed, leaves no process; a stopped one leaves no folder either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from drivetrain.sandboxes.local.reaper import reap
from swe_rl_env.building.build import build_task
from swe_rl_env.tasks.catalog import get_task

SLOW_TASK = "pypi__click-8.1.3"


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_runs_on(number: signal.Signals, tmp_path: Path) -> None:
    build_task(get_task(SLOW_TASK))
    temp = tmp_path / "tmp"
    temp.mkdir()
    command = [sys.executable, "-c", "from drivetrain.cli.main import main; main()", "rollout", "-a", "oracle"]
    process = subprocess.Popen(
        [*command, "-t", SLOW_TASK, "-o", str(tmp_path / "run")],
        env={**os.environ, "TMPDIR": str(temp)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        inside = _wait_for_suite(process.pid)
        process.send_signal(number)
        assert process.wait(timeout=30) != 0
    finally:
        process.kill()
    _, alive = psutil.wait_procs(inside, timeout=10)
    assert alive == []
    left = list(temp.rglob("dt-*"))
    if number == signal.SIGKILL:
        assert [path.name for path in left if path.is_dir()] == reap(left[0].parent)
    assert [path for path in temp.rglob("dt-*") if path.is_dir()] == []


def _wait_for_suite(pid: int) -> list[psutil.Process]:
    """Processes below the run once a test suite works in its sandbox."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = psutil.Process(pid).children(recursive=True)
        for child in children:
            try:
                if any(part.endswith("/run.json") for part in child.cmdline()):
                    return children
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.05)
    raise AssertionError("no test suite was started")
