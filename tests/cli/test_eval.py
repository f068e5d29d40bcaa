"""``drivetrain eval`` as a user types it; the agent is the reference fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drivetrain.cli.main import app

TASK = "npm__shell-quote-1.8.3"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["eval", *arguments])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-a", "pi", "-t", TASK], "no base URL"),
        (["-a", "pi", "-t", TASK, "--base-url", "http://127.0.0.1:1"], "--model"),
        (["-a", "pii", "-t", TASK, "--base-url", "http://127.0.0.1:1", "-m", "x"], "pi"),
        (["-a", "noop"], "--tasks all"),
        (["-a", "noop", "-t", "npm__shell-quote"], TASK),
        (["-a", "noop", "-t", TASK, "-n", "0"], "positive"),
        (["-a", "noop", "-t", TASK, "--network", "closed"], "model_only"),
        (["-a", "noop", "-t", "all", "--language", "js", "--max-lines", "1"], "No task is left"),
        (["-a", "noop", "-t", TASK, "--api-key-env", "DRIVETRAIN_NO_SUCH_KEY"], "is not set"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and says in errors[0], done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
def test_reference_agents(tmp_path: Path) -> None:
    folder = tmp_path / "gold"
    done = run("-a", "oracle", "-t", TASK, "-n", "2", "-o", str(folder), "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["resolved"], report["graded"], report["pass_at"]["2"]["value"]) == (2, 2, 1.0)
    assert "[2/2]" in done.stderr
    assert {"eval.json", "attempts.jsonl", "report.json", "report.md", "report.html"} <= {
        path.name for path in folder.iterdir()
    }
    again = run("-a", "oracle", "-t", TASK, "-n", "2", "-o", str(folder))
    assert again.exit_code == 0 and "2 of 2 attempts are there already" in again.stderr
    other = run("-a", "noop", "-t", TASK, "-o", str(folder))
    assert other.exit_code == 2 and "agent was 'oracle', is 'noop'" in other.stderr
    idle = run("-a", "noop", "-t", TASK, "-o", str(tmp_path / "idle"))
    assert idle.exit_code == 0 and "0 of 1 graded attempts" in idle.stdout
