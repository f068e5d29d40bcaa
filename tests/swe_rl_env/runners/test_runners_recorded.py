"""What the real runners of Go, Rust and JavaScript printed for planted tests (see test_runners_real.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swe_rl_env.grading.canary import Canary
from swe_rl_env.grading.grade import judge
from swe_rl_env.grading.image_canary import plant_in, selects_by_name
from swe_rl_env.grading.protect import Protection
from swe_rl_env.parsers import read_log
from tests.swe_rl_env.rows import v2_row

from .projects import PROJECTS, built_of, canary_of

pytestmark = pytest.mark.case("G2")


@pytest.fixture(params=PROJECTS)
def runner(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def recording(runner: str) -> Any:
    return json.loads((Path(__file__).parent / "recordings" / f"{runner}.json").read_text(encoding="utf-8"))


def test_the_recording_is_of_what_is_planted_now(runner: str, recording: Any) -> None:
    project = PROJECTS[runner]
    canary = canary_of(project)
    assert (canary.appended[project.test_file].decode(), dict(canary.expected)) == (
        recording["planted"],
        recording["expected"],
    ), "record anew: DRIVETRAIN_RUNNERS=... DRIVETRAIN_RECORD=1"
    assert set(recording["logs"]) == {"honest", *project.cheats}


def test_honest_work_is_paid_for_and_cheats_are_not(runner: str, recording: Any) -> None:
    project, canary = PROJECTS[runner], Canary(files={}, appended={}, expected=recording["expected"])
    built = built_of(project)
    for name, log in recording["logs"].items():
        found: Any = read_log(project.parser, log)
        assert all(found[i] == "PASSED" for i in project.expected), "without planted tests all of them are paid for"
        state = canary.check(found)
        grade = judge(built, found, state, True)
        if name == "honest":
            assert (state, grade.reward, grade.reason) == ("as_planted", 1.0, "resolved")
        else:
            assert (state, grade.reward, grade.reason) == (project.cheats[name].state, 0.0, "tampering"), name
            assert [f.kind for f in grade.findings] == ["canary"]


@pytest.mark.parametrize(
    ("command", "chosen"),
    [
        ("python3 -m pytest -rA --tb=short -p no:cacheprovider tests", False),
        ("python -X dev -m pytest -m slow tests", True),
        ("pytest -n0 -rA -k 'a or b'", True),
        ("pytest tests/a.py::test_b", True),
        ("go test -v -timeout 30m ./...", False),
        ("go test -run 'TestA|TestB' ./...", True),
        ("cargo test --all-features -- --nocapture", False),
        ("cargo test --lib", True),
        ("cargo +nightly test parses", True),
        ("npx jest --verbose --testTimeout=9000", False),
        ("npx jest -t 'one title'", True),
        ("make check", False),
    ],
)
def test_nothing_is_planted_where_tests_are_chosen_by_name(command: str, chosen: bool) -> None:
    """It would not be run, and honest work would look like tampering."""
    assert selects_by_name([command]) is chosen
    built = built_of(PROJECTS["go"]._replace(command=command))
    assert (plant_in(built, ["tally_test.go"]) is None) is chosen


def test_a_runner_of_the_agents_own_is_not_used() -> None:
    """Cargo's own switch for that is in the way of honest grading before planted tests have to catch it."""
    rule = Protection(built_of(PROJECTS["cargo"]), {"Cargo.toml", "src/lib.rs", "tests/totals.rs"})
    assert rule.covers(".cargo/config.toml") == rule.covers("sub/.cargo/config") == "runner_config_edit"
    assert rule.covers("src/config.toml") is None


def test_a_row_of_exact_ids_gets_exact_planted_ids() -> None:
    for command, file, lead in (("pytest -q", "tests/test_a.py", "tests/test_a.py::"),
                                ("npx jest", "src/a.test.ts", "/Abacus/src/a.test.ts > ")):  # fmt: skip
        project = PROJECTS["go"]._replace(command=command, parser="report_exact", test_file=file)
        canary = plant_in(built_of(project), [file])
        assert canary is not None and all(i.startswith(lead) for i in canary.expected)
        assert sorted(canary.expected.values()) == ["FAILED", "PASSED"]
    assert v2_row()["repo"] == "Acme/Abacus"
