"""Planted tests in front of the real runners of Go, Rust and JavaScript. Only where DRIVETRAIN_RUNNERS names them:

    DRIVETRAIN_RUNNERS=go,cargo,jest pytest tests/swe_rl_env/runners

Go and Rust come from the machine (Debian: golang-go, cargo), Jest from the npm registry. ``recordings`` hold what they
printed and stand in for them everywhere else; DRIVETRAIN_RECORD=1 writes the recordings anew.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from drivetrain.cache import cache_root
from swe_rl_env.grading.second_opinion import contradictions
from swe_rl_env.grading.steps import steps_of
from swe_rl_env.parsers import read_log

from .projects import JEST, PROJECTS, Project, built_of, canary_of, run

RECORDINGS = Path(__file__).parent / "recordings"
WANTED = [name for name in os.environ.get("DRIVETRAIN_RUNNERS", "").split(",") if name]

pytestmark = [
    pytest.mark.real,
    pytest.mark.case("G2"),
    pytest.mark.skipif(not WANTED, reason="DRIVETRAIN_RUNNERS names no runner"),
]


@pytest.fixture(params=WANTED)
def runner(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    assert name in PROJECTS, f"there is no runner {name}"
    assert shutil.which("npm" if name == "jest" else name), f"{name} was asked for and is not on PATH"
    return name


def test_planted_tests_in_front_of_the_runner(runner: str, tmp_path: Path) -> None:
    project = PROJECTS[runner]
    canary = canary_of(project)
    logs = {"honest": run(runner, project, tmp_path / "honest", {})}
    found = read_log(project.parser, logs["honest"])
    assert canary.check(found) == "as_planted", logs["honest"]  # type: ignore[arg-type]
    assert {i: found.get(i) for i in project.expected} == dict.fromkeys(project.expected, "PASSED"), logs["honest"]
    for number, (name, cheat) in enumerate(project.cheats.items()):
        logs[name] = run(runner, project, tmp_path / f"cheat-{number}", cheat.files)
        found = read_log(project.parser, logs[name])
        assert all(found.get(i) == "PASSED" for i in project.expected), (name, logs[name])
        assert canary.check(found) == cheat.state, (name, logs[name])  # type: ignore[arg-type]
    _record(runner, project, {name: _shortened(text, tmp_path) for name, text in logs.items()})


def _shortened(text: str, folder: Path) -> str:
    """Without paths of this machine."""
    return text.replace(str(folder), "/tmp/x").replace(str(cache_root() / "test-runners"), "/opt")


def _record(runner: str, project: Project, logs: dict[str, str]) -> None:
    canary = canary_of(project)
    recording = {
        "planted": canary.appended[project.test_file].decode(),
        "expected": dict(canary.expected),
        "logs": logs,
    }
    if os.environ.get("DRIVETRAIN_RECORD"):
        text = json.dumps(recording, indent=1, ensure_ascii=False)
        (RECORDINGS / f"{runner}.json").write_text(f"{text}\n", encoding="utf-8")


def test_jest_reads_the_same_with_a_report_beside_it(tmp_path: Path) -> None:
    if "jest" not in WANTED:
        pytest.skip("DRIVETRAIN_RUNNERS does not name jest")
    (step,) = steps_of(built_of(JEST).task.install, str(tmp_path))
    assert step.report is not None
    plain = run("jest", JEST, tmp_path / "plain", {})
    reported = run("jest", JEST, tmp_path / "reported", {}, command=step.script)
    verdicts = read_log(JEST.parser, reported)
    assert verdicts == read_log(JEST.parser, plain) and len(verdicts) == 4
    report = Path(step.report).read_bytes()
    assert contradictions(JEST.parser, verdicts, [step], [report]) == ()
    forged = contradictions(JEST.parser, {**verdicts, JEST.expected[0]: "FAILED"}, [step], [report])
    assert [f.kind for f in forged] == ["report_disagrees"]
