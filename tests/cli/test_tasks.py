"""``drivetrain tasks`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drivetrain.cli.main import app
from swe_rl_env.grading import campaign
from swe_rl_env.grading.validate import Validation
from swe_rl_env.tasks.model import SweTask
from tests.swe_rl_env.rows import swe_gym_row, v2_row

TASK = "pypi__xmltodict-0.14.2"


@pytest.fixture(autouse=True)
def _own_quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_QUARANTINE", str(tmp_path / "quarantine.json"))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["tasks", *arguments])


def listed(*arguments: str) -> list[str]:
    done = run("ls", "--json", *arguments)
    assert done.exit_code == 0, done.output
    return [row["id"] for row in json.loads(done.stdout)]


def test_ls_filters() -> None:
    assert len(listed()) == 31
    assert listed("-l", "js", "--max-lines", "4") == ["npm__shell-quote-1.7.3", "npm__shell-quote-1.8.3"]
    parts = [listed("--split", name) for name in ("train", "validation", "test")]
    assert sorted(name for part in parts for name in part) == sorted(listed())
    assert "31 tasks" in run("ls").stdout
    assert json.loads(run("stats", "--json").stdout)["tasks"] == 31
    assert "python 28" in run("stats").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ls", "-l", "pythn"], "Did you mean: python"),
        (["ls", "--split", "tran"], "train, validation, test"),
        (["ls", "--source", "nowhere.jsonl"], "no task file"),
        (["ls", "--format", "swe"], "swe-rebench-v2"),
        (["ls", "--min-pass-rate", "0.5"], "A pass rate needs"),
        (["show", "pypi__xmltodict-0.14.3"], TASK),
        (["validate", TASK, "--runs", "0"], "must be positive"),
        (["validate", TASK, "--sandbox", "locl"], "local"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    errors = done.stderr.strip().splitlines()
    assert len(errors) == 1 and says in errors[0], done.stderr


def test_another_source(tmp_path: Path) -> None:
    rows = [v2_row(), swe_gym_row(instance_id="gym"), v2_row(instance_id="bad", patch="")]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert listed("--source", str(file)) == ["acme__abacus-12", "gym"]
    assert "1 rows are no tasks" in run("ls", "--source", str(file)).stderr
    (rejected,) = json.loads(run("ls", "--source", str(file), "--rejected", "--json").stdout)
    assert (rejected["where"], rejected["instance_id"], rejected["code"]) == ("rows.jsonl:3", "bad", "unusable_row")
    shown = run("show", "acme__abacus-12", "--source", str(file)).stdout
    assert "Adding two numbers" in shown and "SECRET" not in shown and "return a + b" not in shown


def test_validate_fills_the_quarantine_that_ls_respects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[str, Any] = {TASK: "flaky"}

    async def fake(built: Any, _backend: Any, **options: Any) -> Validation:
        kind = kinds.get(built.instance_id, "fit")
        problems = () if kind == "fit" else ("because",)
        assert (options["gold_runs"], options["noop_runs"], options["shuffle_seed"]) == (2, 2, None)
        assert options["image"] == "some/image"
        return Validation(instance_id=built.instance_id, kind=kind, problems=problems, flaky=(), gold=(), noop=())

    async def same(task: SweTask, _backend: Any, _cache: Any, _tell: Any) -> SweTask:
        return task

    monkeypatch.setattr(campaign, "prepare_task", same)
    monkeypatch.setattr(campaign, "validate_task", fake)
    page = tmp_path / "page.md"
    options = ["-n", "2", "--no-shuffle", "-o", str(tmp_path / "report"), "-c", "4", "--image", "some/image"]
    options += ["--report", str(page)]
    page.write_text("no place for a table")
    assert run("validate", *options).exit_code == 2 and not (tmp_path / "report").exists(), "before anything is run"
    page.unlink()
    done = run("validate", *options)
    assert done.exit_code == 1, done.output
    assert "30 of 31 tasks are fit" in done.stdout
    assert (tmp_path / "report" / "report.md").read_text() in page.read_text()
    assert f"{TASK}: flaky (because)" in done.stderr
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [
        "checked.jsonl",
        "report.json",
        "report.md",
    ]
    stored = json.loads((tmp_path / "quarantine.json").read_text())
    assert stored["tasks"][TASK]["reasons"] == ["because"]
    assert TASK not in listed() and len(listed()) == 30
    assert TASK in listed("--include-quarantined")
    assert run("show", TASK).exit_code == 0
    kinds.clear()
    assert run("validate", *options).exit_code == 1, "the verdict is known, and not asked for again"
    (tmp_path / "report" / "checked.jsonl").unlink()
    assert run("validate", *options).exit_code == 0
    assert len(listed()) == 31, "what is fit now is released"
