"""Every script of examples/ says what it is for, and runs: offline, on a CPU, in its short form."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.swe_rl_agent.test_custom_agent import example

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "short.py")
OWN_AGENT = str(FOLDER / "own_agent" / "my.toml")
pytestmark = pytest.mark.timeout(1600)
GPU = {"grpo_vllm.py", "async_grpo_vllm.py"}  # tests/training runs their dry form


def run(folder: Path, *arguments: str) -> str:
    """What a script prints, run as a user does."""
    script, *rest = arguments
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), *rest],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=1500,  # each loads torch; a busy machine takes its time
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_help_of_every_script() -> None:
    """The head of each says how it is run; every option that it names there exists."""
    for name in SCRIPTS:
        text = (FOLDER / name).read_text()
        head = text.split('"""')[1]
        lines = re.findall(rf"python examples/{name}[^\n]*(?:\\\n[^\n]*)*", head)
        assert lines, f"{name} does not say how it is run"
        for flag in re.findall(r"\s(--[a-z-]+)", " ".join(lines)):
            assert f'"{flag}"' in text, f"{name}: {flag}"
        assert "formatter_class=argparse.RawDescriptionHelpFormatter" in text and "description=__doc__" in text, name


def test_the_agent_is_the_one_of_the_docs() -> None:
    assert (FOLDER / "own_agent" / "my.toml").read_text() == example("preset")
    assert (FOLDER / "own_agent" / "my-agent" / "agent.py").read_text() == example("program")


@pytest.mark.real
def test_own_agent(tmp_path: Path) -> None:
    said = run(tmp_path, "own_agent.py")
    assert "my-agent.0: ok, reward 0.0, 3 turns, 1 rows, forks none" in said
    assert "audit: sound" in said


@pytest.mark.real
def test_own_environment(tmp_path: Path) -> None:
    said = run(tmp_path, "own_environment.py", "--out", "mine.jsonl")
    assert "oracle: reward 1.0" in said and "noop: reward 0.0" in said
    assert json.loads((tmp_path / "mine.jsonl").read_text())["FAIL_TO_PASS"] == ["tests/test_calc.py::test_odd"]


@pytest.mark.real
def test_export_to_datasets(tmp_path: Path) -> None:
    assert "rows.parquet: 2 rows" in run(tmp_path, "export_to_datasets.py", "--short")


@pytest.mark.real
def test_evaluate(tmp_path: Path) -> None:
    """With the agent of the docs, which starts sooner than Claude Code."""
    said = run(tmp_path, "evaluate_claude_code.py", "--short", "--agent", OWN_AGENT)
    assert "1 of 1 graded attempts on 1 tasks resolved" in said


@pytest.mark.real
def test_train(tmp_path: Path) -> None:
    said = run(tmp_path, "train_pi.py", "--short", "--agent", OWN_AGENT)
    report = json.loads(said.splitlines()[-1])
    assert (report["rollouts"], report["excluded"], report["steps"]) == (2, 0, 1)
    assert report["logp_diff_max"] < 1e-4 and report["trained_tokens"] > 0


def test_no_script_is_left_out() -> None:
    tested = set(re.findall(r'run\(tmp_path, "(\w+\.py)"', Path(__file__).read_text()))
    assert tested | GPU == set(SCRIPTS)
    elsewhere = "".join(path.read_text() for path in (FOLDER.parent / "tests" / "training").glob("*.py"))
    assert all(name.removesuffix(".py") in elsewhere for name in GPU)
