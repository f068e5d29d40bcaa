"""The benchmark of a sandbox's life runs and says what it promises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sandbox_lifecycle.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_quick(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    done = run("--quick", "--out", str(out))
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert [side["side"] for side in results["sides"]] == ["local cold", "local pool", "local pool, async"]
    for side in results["sides"]:
        for step in ("create", "exec", "close", "total", "gone", "cpu"):
            assert 0 <= side[step]["min"] <= side[step]["p50"] <= side[step]["p95"]
        assert side["side"] in done.stdout
    cold, pool, _ = results["sides"]
    assert pool["create"]["min"] < cold["create"]["min"]  # two orders of magnitude, however busy the machine is


def test_help_teaches() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "close_in_background" in done.stdout


def test_a_backend_that_cannot_run_here_says_so() -> None:
    done = run("--quick", "--backends", "docker", "--docker-socket", f"/nonexistent-{os.getpid()}/docker.sock")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
