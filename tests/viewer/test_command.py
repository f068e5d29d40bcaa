"""``drivetrain trace view``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drivetrain.cli.trace import app
from drivetrain.errors import ConfigError
from drivetrain.rollout.run_dir import RunDir


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["view", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_one_page_per_rollout(run: RunDir, tmp_path: Path) -> None:
    (one,) = json.loads(invoke(run.path, "fix.a.0", "--json"))
    page = run.path / "views" / "fix.a.0.html"
    assert one == {
        "rollout": "fix.a.0",
        "file": str(page),
        "size": page.stat().st_size,
        "turns": 2,
        "rows": 2,
        "trained_tokens": sum(sum(row.loss_mask) for row in run.results()[0].rows),
    }
    assert page.read_bytes().startswith(b"<!doctype html>")
    assert json.loads(invoke(run.path, "fix.a.0", "--json")) == [one]  # written again
    everything = json.loads(invoke(run.path, "--all", "--out", tmp_path / "pages", "--json"))
    assert len(everything) == len(list((tmp_path / "pages").iterdir())) == 4


async def test_a_named_file_is_not_overwritten_unasked(run: RunDir, tmp_path: Path) -> None:
    target = tmp_path / "look.html"
    target.write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        invoke(run.path, "fix.a.0", "--out", target)
    assert target.read_text() == "mine"
    invoke(run.path, "fix.a.0", "--out", target, "--force")
    assert target.read_bytes().startswith(b"<!doctype html>")
    with pytest.raises(ConfigError, match="--all writes several"):
        invoke(run.path, "--all", "--out", target)
    with pytest.raises(ConfigError, match=r"holds 4 rollouts.*--all"):
        invoke(run.path)


async def test_it_opens_the_page(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: not opened.append(url))
    invoke(run.path, "fix.a.0", "--open")
    assert opened == [(run.path / "views" / "fix.a.0.html").as_uri()]
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    with pytest.raises(ConfigError, match="no browser could be started"):
        invoke(run.path, "fix.a.0", "--open")
