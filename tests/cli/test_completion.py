"""``drivetrain completion``: the script, and what a shell is answered."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from drivetrain.cli.main import app


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str) -> None:
    done = CliRunner().invoke(app, ["completion", shell])
    assert done.exit_code == 0
    assert "_DRIVETRAIN_COMPLETE" in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ("drivetrain roll", ["rollout"]),
        ("drivetrain rollout --max-mask", ["--max-masked-fraction"]),
        ("drivetrain rollout --agent mini", ["mini-swe-agent"]),
        ("drivetrain tasks show pypi__xmltodict-0.14", ["pypi__xmltodict-0.14.2"]),
    ],
)
def test_answers(
    words: str, answers: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_DRIVETRAIN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit):
        app(prog_name="drivetrain")
    assert capsys.readouterr().out.split() == answers
