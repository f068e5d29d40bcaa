"""docs/agents.md is what the script makes of the presets and the recorded run, and that run is of today's versions."""

from __future__ import annotations

import json
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from swe_rl_agent import list_agents, load_preset
from swe_rl_agent.bundle import RECIPES
from swe_rl_agent.preset import PRESETS
from tests import agent_claims


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/agent-report as a module."""
    path = Path(__file__).parents[2] / "scripts" / "agent-report"
    spec = spec_from_loader("agent_report", SourceFileLoader("agent_report", str(path)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script: ModuleType) -> None:
    run, text = json.loads(script.RUN.read_text("utf-8")), script.TEXT.read_text("utf-8")
    assert script.REPORT.read_text("utf-8") == script.report(run, text), "run scripts/agent-report"


def test_the_recorded_run_is_of_these_versions(script: ModuleType) -> None:
    run = json.loads(script.RUN.read_text("utf-8"))
    assert set(run) == set(list_agents())
    versions = {name: RECIPES[load_preset(PRESETS / f"{name}.toml").bundle].version for name in list_agents()}
    assert {name: entry["version"] for name, entry in run.items()} == versions, "record again (--record-agents)"


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({}, "blocked: the task was not run"),
        ({"task": "failed"}, "blocked: the task fails"),
        ({"task": "passed"}, "unstable: not run: retry, lost reply, other connections, real model"),
        (dict.fromkeys(("task", "retry", "lost reply", "other connections", "real model"), "passed"), "validated"),
    ],
)
def test_verdicts(claims: dict[str, str], said: str, script: ModuleType) -> None:
    assert script.verdict({"pi": {"claims": claims}}, "pi") == said
    if said == "validated":
        assert script.verdict({"pi": {"claims": {**claims, "docker": "failed"}}}, "pi") == "unstable: fails: docker"


def test_a_claim_holds_when_all_its_tests_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle: dict[str, Any] = {"version": "1", "sha256": "a"}
    monkeypatch.setattr(agent_claims, "_bundle", lambda _agent: dict(bundle))

    def record(*tests: tuple[str, str, str]) -> dict[str, Any]:
        recorder = agent_claims._Recorder(tmp_path / "run.json")
        for claim, outcome, when in tests:
            facts = [("agent_claim", ["pi", claim]), ("agent_fact", ["pi", "tools", 4])]
            report: Any = SimpleNamespace(when=when, outcome=outcome, passed=outcome == "passed", user_properties=facts)
            recorder.pytest_runtest_logreport(report)
        recorder.pytest_sessionfinish()
        return dict(json.loads((tmp_path / "run.json").read_text())["pi"])

    first = record(
        ("retry", "passed", "setup"),
        ("retry", "failed", "call"),
        ("retry", "passed", "call"),
        ("x", "skipped", "setup"),
    )
    assert first["claims"] == {"retry": "failed", "x": "skipped"} and first["facts"] == {"tools": 4}
    assert record(("retry", "passed", "call"))["claims"] == {"retry": "passed", "x": "skipped"}
    bundle["version"] = "2"
    assert record(("y", "passed", "call"))["claims"] == {"y": "passed"}, "what held of another version is forgotten"
