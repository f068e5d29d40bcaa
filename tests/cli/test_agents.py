"""``drivetrain agents``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drivetrain.cli.main import app
from swe_rl_agent import list_agents
from swe_rl_agent.bundle import RECIPES


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_CACHE", str(tmp_path))


def test_every_agent_is_listed_and_nothing_is_built(empty_cache: None) -> None:
    shown = CliRunner().invoke(app, ["agents", "ls"])
    assert shown.exit_code == 0
    assert all(name[:8] in shown.output for name in list_agents())
    listed = json.loads(CliRunner().invoke(app, ["agents", "ls", "--json"]).stdout)
    assert [line["name"] for line in listed] == list(list_agents())
    assert {(line["status"], line["sha256"]) for line in listed} == {("not built", None)}
    codex = next(line for line in listed if line["name"] == "codex")
    assert (codex["version"], codex["dialect"]) == (RECIPES["codex"].version, "openai_responses")
    assert (codex["variants"], codex["mcp"]) == (["small"], True)


@pytest.mark.real
def test_a_built_bundle_is_found_and_checked() -> None:
    built = CliRunner().invoke(app, ["agents", "build", "pi", "--check", "--json"])
    (line,) = json.loads(built.stdout)
    listed = json.loads(CliRunner().invoke(app, ["agents", "ls", "--json"]).stdout)
    assert line in listed
    assert line["status"] == "built"
    assert len(line["sha256"]) == 64
    assert line["glibc"] == "2.28"


def test_an_unknown_agent_is_answered_with_close_ones(empty_cache: None) -> None:
    done = CliRunner().invoke(app, ["agents", "build", "codx"])
    assert done.exit_code != 0
    assert "codex" in done.output
