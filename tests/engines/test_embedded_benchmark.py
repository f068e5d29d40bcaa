"""The benchmark of the embedded engine runs, in its quick form, and says what it should."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "engine_embedded.py"

pytest.importorskip("torch")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=110)


def test_quick(tmp_path: Path) -> None:
    done = run("--quick", "--dtype", "float32,bfloat16", "--out", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert [setting["dtype"] for setting in found["settings"]] == ["float32", "bfloat16"]
    for setting in found["settings"]:
        assert [run["side"] for run in setting["runs"]] == ["embedded", "plain generate"]
        assert all(run["tokens"] == 3 * 2 * 5 and run["cpu_s"] > 0 for run in setting["runs"])
    rows = [
        line for line in done.stdout.splitlines() if line.startswith("| float32 ") or line.startswith("| bfloat16 ")
    ]
    assert len(rows) == 4
    assert "x (" in rows[1] and "x (" not in rows[0]


def test_an_unknown_side_is_refused() -> None:
    done = run("--sides", "embedded,plane")
    assert done.returncode == 2
    assert "plane" in done.stderr
