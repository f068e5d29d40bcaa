"""Bad input: one clear line, a non-zero exit code, nothing half-written."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.engines.models import ModelDir

TASK = "pypi__xmltodict-0.14.2"


def run(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from drivetrain.cli.main import main; main()", *arguments],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rollout", "-a", "noop", "-t", "pypi__xmltodict-0.14.3"], "pypi__xmltodict-0.14.2"),
        (["rollout", "-a", "nope", "-t", TASK], "mini-swe-agent, opencode, pi"),
        (["rollout", "-a", "pi", "-t", TASK, "--sandbox", "dokcer"], "local"),
        (["rollout", "-a", "pi", "-t", TASK, "-m", "no-such-model"], "SmolLM2-135M-Instruct"),
        (["rollout", "-a", "pi", "-t", TASK, "--variant", "tiny"], "small"),
        (["rollout", "-a", "noop"], "--all-tasks"),
        (["rollout", "-a", "noop", "-t", TASK, "-n", "0"], "positive"),
        (["rollout", "-a", "noop", "-t", TASK, "--temperature", "hot"], "temperature"),
        (["trace", "check", "nowhere"], "no run at nowhere"),
        (["trace", "show", "nowhere", "x"], "no run at nowhere"),
        (["train", "--run", "nowhere"], "no run at nowhere"),
        (["tasks", "show", "pypi__xmltodict"], "pypi__xmltodict-0.14.2"),
        (["serve", "--script", "nowhere.json"], "nowhere.json"),
    ],
)
def test_one_clear_line(arguments: list[str], says: str, tmp_path: Path, tiny_model: ModelDir) -> None:
    if arguments[0] == "serve":
        arguments = [*arguments, "--model", str(tiny_model.path)]
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith(("error:", "Error"))]
    assert len(errors) == 1 or "Usage:" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_model_directory_without_a_chat_template(tmp_path: Path, tiny_model: ModelDir) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_model.path.iterdir():
        if file.name != "chat_template.jinja":
            (model / file.name).write_bytes(file.read_bytes())
    done = run("rollout", "-a", "pi", "-t", TASK, "-m", str(model), "-o", str(tmp_path / "out"), cwd=tmp_path)
    assert done.returncode == 2
    assert "chat template" in done.stderr and "chat_template.jinja" in done.stderr
    assert not (tmp_path / "out").exists()


def test_port_in_use(tmp_path: Path, tiny_model: ModelDir) -> None:
    script = tmp_path / "script.json"
    script.write_text('["hi"]')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = ["--model", str(tiny_model.path), "--script", str(script), "--port", str(port), "--admin-port", "0"]
        done = run("serve", *options, "--journal", str(tmp_path / "j" / "journal.sqlite"), cwd=tmp_path)
    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr


@pytest.mark.parametrize("missing", ["bwrap", "npm"])
def test_missing_programs(missing: str, tmp_path: Path) -> None:
    """Neither bubblewrap nor Node: the message names the program and how to get it."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name in ("git", "sh", "tar", "env", *({"bwrap", "npm", "node"} - {missing})):
        for folder in os.environ["PATH"].split(os.pathsep):
            if (Path(folder) / name).is_file():
                (binaries / name).symlink_to(Path(folder) / name)
                break
    work = tmp_path / "work"
    work.mkdir()
    env = {"PATH": str(binaries), "DRIVETRAIN_CACHE": str(tmp_path / "cache")}
    agent = "noop" if missing == "bwrap" else "pi"
    done = run("rollout", "-a", agent, "-t", TASK, cwd=work, env=env)
    assert done.returncode != 0
    assert missing in done.stderr or {"bwrap": "bubblewrap", "npm": "Node"}[missing] in done.stderr
    assert "Traceback" not in done.stderr
    assert list(work.iterdir()) == []


def test_help_teaches(tmp_path: Path) -> None:
    for command in ([], ["rollout"], ["trace", "check"], ["train"], ["serve"], ["tasks", "build"], ["doctor"]):
        done = run(*command, "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert len(done.stdout) > 300


def test_tasks_never_show_what_is_hidden(tmp_path: Path) -> None:
    for options in ([], ["--json"]):
        done = run("tasks", "show", TASK, *options, cwd=tmp_path)
        assert "whitespace" in done.stdout
        assert "test_keep_whitespace" not in done.stdout
