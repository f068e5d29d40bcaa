"""Reaping in several backends: each says how it went, and none hides another."""

from __future__ import annotations

import asyncio

import pytest

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.sandboxes import SandboxBackend, SandboxError
from drivetrain.sandboxes import reaper as reaper_module
from drivetrain.sandboxes.reaper import ReapReport, reap_backends
from tests.sandboxes.pool_kit import FakeBackend

TROUBLE: dict[str, Exception] = {
    "no-engine": MissingDependency("There is no engine.", fix="Start one."),
    "no-key": ConfigError("No key.", fix="Set KEY."),
    "no-package": ModuleNotFoundError("No module named 'e2b'"),
    "down": SandboxError("The service answered 503.", fix="Try later."),
    "bug": ZeroDivisionError("division by zero"),
}


class Backend(FakeBackend):
    def __init__(self, error: Exception | None = None, hangs: bool = False) -> None:
        super().__init__()
        self._error = error
        self._hangs = hangs

    async def reap(self) -> list[str]:
        if self._hangs:
            await asyncio.sleep(1000)
        if self._error is not None:
            raise self._error
        return ["dt-2", "dt-1"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Backend]:
    monkeypatch.setattr(reaper_module, "backend_names", lambda: ["fine", *TROUBLE, "hangs"])
    return {}


async def reap(made: dict[str, Backend], names: list[str] | None = None) -> dict[str, ReapReport]:
    def make(name: str) -> SandboxBackend:
        if name == "no-package":
            raise TROUBLE[name]
        made[name] = Backend(TROUBLE.get(name), hangs=name == "hangs")
        return made[name]

    reports = await reap_backends(names, timeout_s=0.5, make=make)
    return {report.backend: report for report in reports}


async def test_every_backend_says_how_it_went(made: dict[str, Backend]) -> None:
    reports = await reap(made)
    assert reports["fine"] == ReapReport(backend="fine", outcome="ok", removed=("dt-1", "dt-2"))
    assert {name: report.outcome for name, report in reports.items()} == {
        "fine": "ok",
        "no-engine": "skipped",
        "no-key": "skipped",
        "no-package": "skipped",
        "down": "failed",
        "bug": "failed",
        "hangs": "failed",
    }
    assert reports["no-engine"].reason == "There is no engine. Start one."
    assert reports["bug"].reason == "ZeroDivisionError: division by zero"
    assert "did not finish within 0.5 s" in reports["hangs"].reason
    assert all(backend.closings == 1 for backend in made.values())


async def test_a_named_backend_has_to_work(made: dict[str, Backend]) -> None:
    reports = await reap(made, ["no-key", "fine", "no-package", "fine"])
    assert [(report.backend, report.outcome) for report in reports.values()] == [
        ("no-key", "failed"),
        ("fine", "ok"),
        ("no-package", "failed"),
    ]


async def test_an_unknown_name_is_said_before_anything_is_done(made: dict[str, Backend]) -> None:
    with pytest.raises(ConfigError, match="no sandbox backend 'nope'"):
        await reap(made, ["fine", "nope"])
    assert made == {}
