"""A real cluster of two nodes, unmodified agents, one node killed: all accounted for, none counted twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROLLOUTS = 8


@pytest.mark.real
@pytest.mark.timeout(900)
def test_a_node_dies_midway() -> None:
    """``make ray`` does the same with 200 rollouts. In a process of its own: Ray takes signals and starts servers."""
    command = [sys.executable, "-m", "tests.rollout.on_ray.scenario", "--rollouts", str(ROLLOUTS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["results"] == found["different"] == ROLLOUTS
    assert found["attempts"]["counted"] == ROLLOUTS and found["attempts"]["lost"] >= 1
