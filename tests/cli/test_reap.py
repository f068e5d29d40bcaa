"""``drivetrain reap``: ours and orphaned goes, the rest stays, and the exit code says whether it worked."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from drivetrain.cli.main import app
from drivetrain.sandboxes.label import new_id, new_label, started, write_label


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["reap", *arguments])


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's sandboxes but ours, and no credentials."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("E2B_API_KEY", "DOCKER_HOST", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def sandbox(temp: Path, owner: int) -> Path:
    label = new_label(new_id(), time.time() + 3600, {})
    label.owner_pid, label.owner_started = owner, started(owner) or 1
    folder = temp / f"drivetrain-{os.getuid()}" / "sandboxes" / label.id
    (folder / "work").mkdir(parents=True)
    write_label(folder, label)
    return folder


@pytest.fixture
def dead() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_orphans_go_and_the_living_stay(temp: Path, dead: int) -> None:
    orphan, living = sandbox(temp, dead), sandbox(temp, os.getpid())
    foreign = orphan.parent / "somebody-elses"
    foreign.mkdir()
    sockets = [orphan.parents[1] / f"gateway-{pid}-{started(pid) or 1}-0" for pid in (dead, os.getpid())]
    for folder in sockets:
        folder.mkdir()
    done = run("--backend", "local", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == [
        {"backend": "local", "outcome": "ok", "removed": [orphan.name], "reason": ""},
        {"backend": "gateway sockets", "outcome": "ok", "removed": [sockets[0].name], "reason": ""},
    ]
    assert [folder.exists() for folder in (orphan, living, foreign, *sockets)] == [False, True, True, False, True]


def test_without_names_what_cannot_work_here_is_skipped_with_the_reason() -> None:
    done = run("--json", "--timeout", "5")  # a service that cannot be reached is failed, not waited for
    reports = {report["backend"]: report for report in json.loads(done.stdout)}
    assert set(reports) >= {"local", "docker", "e2b", "hf", "gateway sockets"}
    assert reports["local"]["outcome"] == "ok"
    assert reports["e2b"]["outcome"] == "skipped"
    assert all(report["reason"] for report in reports.values() if report["outcome"] != "ok")
    failed = [name for name, report in reports.items() if report["outcome"] == "failed"]
    assert done.exit_code == (1 if failed else 0)


def test_a_named_backend_that_cannot_work_fails_the_command(temp: Path, dead: int) -> None:
    orphan = sandbox(temp, dead)
    done = run("-b", "e2b", "-b", "local")
    assert done.exit_code == 1
    assert "failed" in done.stdout and "E2B" in done.stdout
    assert orphan.name in done.stdout
    assert not orphan.exists()
    assert "Traceback" not in done.stderr


def test_an_unknown_backend() -> None:
    done = run("-b", "dokcer")
    assert done.exit_code == 2
    assert "Did you mean 'docker'?" in done.stderr


def test_help_teaches() -> None:
    done = run("--help")
    assert done.exit_code == 0
    for word in ("SIGKILL", "deadline", "skipped", "drivetrain reap --backend docker"):
        assert word in " ".join(done.stdout.split())
