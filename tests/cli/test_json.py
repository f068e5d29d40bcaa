"""``--json`` on every command: standard output is one JSON document, and everything else goes to standard error."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from drivetrain.cli import surface
from drivetrain.cli.main import app
from drivetrain.engines.models import ModelDir
from drivetrain.journal.writer import Journal
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from tests.cli.parsing import ROOT
from tests.cli.test_export import add, moves
from tests.trace.test_graph_properties import play
from tests.training.conftest import make_group, make_row, model_dir, score  # noqa: F401 (fixtures)

TASK = "pypi__xmltodict-0.14.2"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recorded run and a file of one generated task."""
    folder = tmp_path_factory.mktemp("json")
    run = RunDir.create(folder / "run")
    run.write_info({"model": None})

    async def record() -> None:
        journal = Journal(run.journal)
        await add(run, journal, "good", play(moves("continue", "branch")), reward=1.0)
        journal.close()

    asyncio.run(record())
    made = CliRunner().invoke(app, ["tasks", "generate", "-n", "1", "--out", str(folder / "ops.jsonl")])
    assert made.exit_code == 0, made.output
    return folder


CASES: dict[tuple[str, ...], list[str]] = {
    ("doctor",): [],
    ("init",): [],
    ("completion",): ["bash"],
    ("reap",): ["--backend", "local"],
    ("prepare",): ["--agent", "pi", "--task", TASK],
    ("rollout",): ["-a", "noop", "--source", "{place}/ops.jsonl", "--all-tasks"],
    ("eval",): ["-a", "noop", "--source", "{place}/ops.jsonl", "-t", "all"],
    ("probe",): ["--embedded", "{model}"],
    ("template-check",): ["{model}"],
    ("openapi",): ["--out", "openapi.json"],
    ("tasks", "ls"): [],
    ("tasks", "show"): [TASK],
    ("tasks", "stats"): [],
    ("tasks", "build"): ["--source", "{place}/ops.jsonl"],
    ("tasks", "validate"): ["--source", "{place}/ops.jsonl", "--runs", "1", "--no-shuffle", "--out", "validation"],
    ("tasks", "generate"): ["-n", "1", "--out", "made.jsonl"],
    ("agents", "ls"): [],
    ("agents", "build"): ["pi"],
    ("trace", "ls"): ["{place}/run"],
    ("trace", "show"): ["{place}/run", "good", "--text"],
    ("trace", "check"): ["{place}/run"],
    ("trace", "view"): ["{place}/run", "good"],
    ("trace", "export"): ["{place}/run", "--format", "rows", "--out", "rows.jsonl"],
    ("trace", "why-forked"): ["{place}/run"],
    ("trace", "stats"): ["{place}/run"],
}
ELSEWHERE = {("train",), ("serve",), ("dashboard",)}
"""Below, and tests/dashboard/test_command.py: they need a model that learns, or a process that stays."""


def test_no_command_is_left_out() -> None:
    assert {*CASES, *ELSEWHERE} == {path for path, _ in surface.walk(ROOT)}


@pytest.mark.real
@pytest.mark.parametrize("path", CASES, ids=" ".join)
def test_one_document(
    path: tuple[str, ...], place: Path, tiny_model: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRIVETRAIN_QUARANTINE", str(tmp_path / "quarantine.json"))
    arguments = [each.format(place=place, model=tiny_model.path) for each in CASES[path]]
    done = CliRunner().invoke(app, [*path, *arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)


@pytest.mark.parametrize("path", [("trace", "check"), ("trace", "export"), ("rollout",)], ids=" ".join)
def test_an_error_leaves_standard_output_empty(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"check": ["nowhere"], "export": ["nowhere", "--format", "rows"], "rollout": ["-a", "noop"]}[path[-1]]
    done = CliRunner().invoke(app, [*path, *options, "--json"])
    assert done.exit_code == 2 and done.stdout == "" and done.stderr.startswith("error: ")


def test_train(
    make_group: Callable[..., list[RolloutResult]],  # noqa: F811
    model_dir: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The trainer's own progress and logs stay out of standard output."""
    run = RunDir.create(tmp_path / "run")
    config = {"temperature": 1.0}
    run.write_info({"model": {"path": str(model_dir), "name": "m"}, "config": config, "policy_version": 0})
    for result in make_group([1.0, 0.0]):
        run.append(result)
    done = CliRunner().invoke(app, ["train", "--run", str(run.path), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps"] == 1


def test_serve(tiny_model: ModelDir, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_bytes(msgspec.json.encode(["hi"]))
    command = [sys.executable, "-c", "from drivetrain.cli.main import main; main()", "serve", "--json"]
    command += ["--model", str(tiny_model.path), "--script", str(script), "--port", "0", "--admin-port", "0"]
    process = subprocess.Popen(
        [*command, "--journal", str(tmp_path / "gateway" / "journal.sqlite")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DRIVETRAIN_ADMIN_KEY": "k" * 40},
    )
    try:
        assert process.stdout is not None
        document = ""
        while not _is_whole(document):
            line = process.stdout.readline()
            assert line, f"it ended before it was ready: {process.wait(60)}"
            document += line
        told: dict[str, Any] = json.loads(document)
        assert told["harness"].startswith("http://127.0.0.1:") and told["admin"].endswith("/admin")
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=120)
        assert rest == ""
    finally:
        process.kill()
        process.wait()


def _is_whole(document: str) -> bool:
    try:
        return bool(json.loads(document))
    except json.JSONDecodeError:
        return False
