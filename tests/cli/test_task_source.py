"""``--source`` of the commands that make and use training data: other tasks than those of this package."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drivetrain.cli.main import app
from drivetrain.rollout.config import RolloutConfig
from swe_rl_env.tasks.catalog import packaged_rows
from tests.swe_rl_env.rows import swe_bench_row, v2_row

needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="drivetrain train needs trl")
TASK = "pypi__xmltodict-0.14.2"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_QUARANTINE", str(tmp_path / "quarantine.json"))
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """A file with a task of our own, which can be built, and one in another language."""
    row = next(row for _, row in packaged_rows() if row["instance_id"] == TASK)
    return write(tmp_path / "mine.jsonl", {**row, "instance_id": "mine-1"}, v2_row(language="go"))


@pytest.fixture
def verified(tmp_path: Path) -> str:
    return write(tmp_path / "verified.jsonl", swe_bench_row(difficulty="<15 min fix"))


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.real
def test_rollouts_on_tasks_from_a_file(mine: str, tmp_path: Path) -> None:
    done = run("rollout", "-a", "noop", "--source", mine, "--all-tasks", "-l", "python", "-o", "out", "--json")
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert (result["task_id"], result["reward"], result["grade"]["reason"]) == ("mine-1", 0.0, "empty_patch")
    config = json.loads((tmp_path / "out" / "run.json").read_text())["config"]
    assert (config["source"], config["tasks"]) == (mine, ["mine-1"])


def test_names_are_looked_up_in_the_source(mine: str) -> None:
    done = run("rollout", "-a", "noop", "--source", mine, "-t", TASK)
    assert done.exit_code == 2 and "mine-1" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("rollout", "-a", "noop", "--all-tasks"),
        ("rollout", "-a", "noop", "-t", "acme__abacus-12"),
        pytest.param(("train", "-a", "pi", "-t", "acme__abacus-12"), marks=needs_trl),
    ],
)
def test_benchmarks_are_refused_as_training_data(command: tuple[str, ...], verified: str) -> None:
    done = run(*command, "--source", verified)
    assert done.exit_code == 2
    assert "belong to a public benchmark" in done.stderr and "--allow-benchmarks" in done.stderr


@needs_trl
def test_a_recorded_run_has_no_source(mine: str) -> None:
    done = run("train", "--run", "runs/x", "--source", mine)
    assert done.exit_code == 2 and "--source goes with live tasks" in done.stderr


@needs_trl
def test_live_training_hands_its_tasks_on(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, Any] = {}

    def live(config: RolloutConfig, tasks: list[Any], *_: Any) -> Any:
        got.update(config=config, tasks=tasks)
        raise KeyboardInterrupt

    monkeypatch.setattr("drivetrain.cli.train._live", live)
    run("train", "-a", "pi", "-t", "mine-1", "--source", mine)
    assert (got["config"].source, got["config"].tasks) == (mine, ("mine-1",))
    assert [task.instance_id for task in got["tasks"]] == ["mine-1"]
