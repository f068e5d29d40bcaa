"""``--record-agents FILE``: what the tests say about each agent, as JSON that ``scripts/agent-report`` reads.

A test about agents carries ``@pytest.mark.agent_claim("retry", ...)``: what holds if it passes. It is about the agents
that ``agents=`` names, else about its parameter ``name``. A fact goes in with ``note(record_property, ...)``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_CLAIM, _FACT = "agent_claim", "agent_fact"
_WORST = ("skipped", "passed", "failed")


def note(record: Callable[[str, object], None], agent: str, **facts: str | int) -> None:
    """Record facts about an agent, with pytest's ``record_property``."""
    for name, value in facts.items():
        record(_FACT, [agent, name, value])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-agents", metavar="FILE", type=Path, help="update FILE with what holds of each agent")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "agent_claim(*claims, agents=()): what holds of agents if the test passes")
    if config.getoption("--record-agents") is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(config.getoption("--record-agents")))


def pytest_itemcollected(item: pytest.Item) -> None:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    for mark in item.iter_markers("agent_claim"):
        for agent in mark.kwargs.get("agents") or (parameters["name"],):
            item.user_properties += [(_CLAIM, [agent, claim]) for claim in mark.args]


class _Recorder:
    """Collects in the process that reports (with workers: not theirs)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._claims: dict[str, dict[str, str]] = {}
        self._facts: dict[str, dict[str, str | int]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        for name, value in report.user_properties:
            if name == _CLAIM:
                agent, claim = value
                known = self._claims.setdefault(agent, {})
                known[claim] = max(known.get(claim, "skipped"), report.outcome, key=_WORST.index)
            elif name == _FACT and report.passed:
                agent, fact, content = value
                self._facts.setdefault(agent, {})[fact] = content

    def pytest_sessionfinish(self) -> None:
        before = json.loads(self._path.read_text()) if self._path.exists() else {}
        for agent, claims in self._claims.items():
            entry = _bundle(agent)
            old = before.get(agent, {})
            same = all(old.get(name) == value for name, value in entry.items())
            for part, found in (("claims", claims), ("facts", self._facts.get(agent, {}))):
                entry[part] = {**(old.get(part, {}) if same else {}), **found}
            before[agent] = entry
        self._path.write_text(json.dumps(before, indent=1, sort_keys=True) + "\n")


def _bundle(agent: str) -> dict[str, Any]:
    from swe_rl_agent import get_agent

    bundle = get_agent(agent).prepare()
    names = ("version", "runtime", "sha256", "bytes", "glibc")
    return {name: getattr(bundle, name) for name in names}
