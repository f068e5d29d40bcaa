"""Reports beside the log: contradictions are findings, and rows of exact ids are read from the report alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from drivetrain.errors import ConfigError
from drivetrain.sandboxes import SandboxBackend, SandboxSpec
from swe_rl_env import BuiltTask
from swe_rl_env.building.tario import pack
from swe_rl_env.grading.image_run import run_in_image
from swe_rl_env.grading.second_opinion import contradictions
from swe_rl_env.grading.steps import steps_of
from swe_rl_env.grading.suite import SuiteRun
from swe_rl_env.tasks.model import InstallConfig
from swe_rl_env.tasks.rows import task_from_row

from .rows import v2_row

A, B, C = "t.py::test_a", "t.py::test_b", "t.py::test_c[x"
PYTEST = "pytest -rA t.py"


def xml(**tests: str) -> bytes:
    cases = "".join(
        f'<testcase file="t.py" classname="t" name="test_{name}">{f"<{said}/>" if said else ""}</testcase>'
        for name, said in tests.items()
    )
    return f"<testsuites><testsuite>{cases}</testsuite></testsuites>".encode()


def said(verdicts: Mapping[str, str], *reports: bytes | None, command: Any = PYTEST, **options: Any) -> list[str]:
    commands = [command] if isinstance(command, str) else command
    steps = steps_of(InstallConfig(log_parser="parse_log_pytest", test_cmd=commands), "/f")
    found = contradictions("parse_log_pytest", verdicts, steps, reports, **options)
    assert {f.kind for f in found} <= {"report_disagrees"} and len(found) <= 1
    return [f.detail for f in found]


def test_a_contradiction_is_a_finding() -> None:
    good = {A: "PASSED", B: "FAILED"}
    assert said(good, xml(a="", b="failure")) == []
    assert said(good, xml(a="failure", b="failure")) == [f"{A}: PASSED in the log, FAILED in the report"]
    assert said(good, xml(a="", b="")) == [f"{B}: FAILED in the log, PASSED in the report"]
    assert said(good, xml(b="failure")) == [f"{A}: PASSED in the log, not in the report"]
    assert said(good, None) == ["there is no report, though the log says that 1 tests passed"]
    assert said({B: "FAILED"}, None) == [], "a run that passed nothing need not have come to its report"
    assert said(good, b"<cut") == [f"{A}: PASSED in the log, not in the report"]
    many = said({f"t.py::test_{n}": "PASSED" for n in range(9)}, xml())
    assert many[0].count("not in the report") == 5 and many[0].endswith(", and 4 more")


def test_what_is_no_contradiction() -> None:
    cut = xml(**{"c[x y]": "failure", "c[x z]": ""})
    assert said({C: "PASSED"}, cut) == said({C: "FAILED"}, cut) == [], "one cut id stands for both"
    assert said({A: "FAILED"}, xml(a="error")) == [], "failed is failed"
    assert said({A: "PASSED"}, b"") == [], "the runner cannot report"
    assert said({A: "PASSED", B: "PASSED"}, None, xml(a=""), command=["make check", PYTEST]) == []
    assert said({A: "PASSED"}, xml(a="skipped"), xfail_passes=True) == []
    assert said({A: "PASSED"}, xml(a="skipped")) != []
    assert said({A: "PASSED"}, None, command="make check") == [], "it was not asked for one"


@pytest.mark.parametrize(
    ("parser", "command", "reports"),
    [
        ("parse_log_pytest", ". /opt/miniconda3/bin/activate testbed && pytest -rA t.py", True),
        ("parse_log_pytest", "cd x && pytest -rA t.py", False),
        ("parse_log_pytest_nebo", "pytest -v t.py", False),
        ("parse_log_jest", "npx jest --verbose", True),
        ("parse_log_jest", "npx vitest run", False),
        ("parse_log_gotest", "go test -v ./...", False),
        ("parse_log_phpunit", "vendor/bin/phpunit --testdox", False),
    ],
)
def test_a_report_is_asked_for_only_where_the_log_stays_as_it_was(parser: str, command: str, reports: bool) -> None:
    (step,) = steps_of(InstallConfig(log_parser=parser, test_cmd=[command]), "/f")
    assert (step.report is not None) is reports
    assert reports or step.script == command


def test_exact_rows_name_a_runner_that_reports() -> None:
    good = {"test_cmd": "go test ./...", "log_parser": "report_exact"}
    task = task_from_row(v2_row(install_config=good))
    (step,) = steps_of(task.install, "/f")
    assert (step.script, step.report) == ("go test -json ./...", None), "its report is its output"
    for bad in ({**good, "test_cmd": "make check"}, {**good, "log_parser": "pytest_nodeid_exact"}):
        with pytest.raises(ConfigError, match="log_parser"):
            task_from_row(v2_row(install_config=bad))


_TESTS = """import pytest
import mod

@pytest.mark.parametrize("word", ["a b", "c"])
def test_word(word):
    assert mod.value() == 1

@pytest.mark.xfail
def test_known():
    assert 0
"""
_FORGED = (
    "import os\nos.write(1, b'PASSED tests/test_mod.py::test_word[a\\nPASSED tests/test_mod.py::test_word[c]\\n')\n"
)


async def ran(
    xmltodict: BuiltTask, backend: SandboxBackend, files: Mapping[str, str], dataset: str = "", **install: Any
) -> SuiteRun:
    """A run of tests/test_mod.py in a local sandbox, as in an image."""
    environment = xmltodict.environment
    config = {"test_cmd": "python -m pytest -rA -s tests", "log_parser": "parse_log_pytest", **install}
    config["env"] = {"PATH": f"{{workdir}}/bin:{environment.path}", "PYTHONPATH": "{workdir}"}
    ids = ["tests/test_mod.py::test_word[a", "tests/test_mod.py::test_word[c]", "tests/test_mod.py::test_known"]
    task = task_from_row(v2_row(workdir="/work/mod", install_config=config, FAIL_TO_PASS=ids), dataset=dataset or None)
    all_files = {"tests/test_mod.py": _TESTS, "mod.py": "def value():\n    return 1\n", **files}
    box = await backend.create(SandboxSpec(workdir="/work", mounts=environment.mounts, network="none"))
    try:
        modes = {name: "100755" if name.startswith("bin/") else "100644" for name in all_files}
        await box.upload(pack((n.encode(), modes[n], t.encode()) for n, t in all_files.items()), task.checkout)
        built = msgspec.structs.replace(xmltodict, task=task)
        return await run_in_image(box, built, None, 60.0)
    finally:
        await box.close()


@pytest.mark.real
async def test_an_honest_run_has_nothing_to_explain(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    run = await ran(xmltodict, backend, {})
    assert run.complete and run.findings == ()
    assert dict(run.verdicts) == dict.fromkeys(
        ("tests/test_mod.py::test_word[a", "tests/test_mod.py::test_word[c]"), "PASSED"
    )
    gym = await ran(xmltodict, backend, {}, dataset="swe-gym")
    assert gym.findings == () and gym.verdicts["tests/test_mod.py::test_known"] == "PASSED", "an expected failure"


@pytest.mark.real
@pytest.mark.case("G2", "G9")
async def test_forged_lines_are_found_out_and_change_no_verdict(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    run = await ran(xmltodict, backend, {"mod.py": f"{_FORGED}os._exit(0)\n"})
    assert [f.kind for f in run.findings] == ["report_disagrees"] and "there is no report" in run.findings[0].detail
    assert set(run.verdicts.values()) == {"PASSED"}, "the named parser decides; planted tests catch this"


@pytest.mark.real
async def test_a_pytest_that_cannot_report_runs_as_the_row_says(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    old = '#!/bin/sh\ncase "$*" in *junitxml*) echo "no such option" >&2; exit 4;; esac\nexec python -m pytest "$@"\n'
    run = await ran(xmltodict, backend, {"bin/pytest": old}, test_cmd="pytest -rA -s tests")
    assert run.complete and run.findings == () and len(run.verdicts) == 2
    assert "no such option" in run.log_tail


@pytest.mark.real
@pytest.mark.case("G2")
async def test_exact_ids_come_from_the_report_alone(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    exact = {"log_parser": "report_exact", "test_cmd": "python -m pytest -s tests"}
    run = await ran(xmltodict, backend, {}, **exact)
    assert run.complete and run.verdicts["tests/test_mod.py::test_word[a b]"] == "PASSED"
    assert run.verdicts["tests/test_mod.py::test_known"] == "SKIPPED"
    report = xml().decode().replace("</testsuite>", '<testcase file="tests/test_mod.py" classname="tests.test_mod" '
                                    'name="test_word[a b]"/></testsuite>')  # fmt: skip
    forged = dict.fromkeys(("report", "report.xml", "junit.xml", "tests/report"), report)
    run = await ran(xmltodict, backend, {**forged, "mod.py": f"{_FORGED}os._exit(0)\n"}, **exact)
    assert (dict(run.verdicts), run.complete) == ({}, False), "neither a file at a guessed place nor lines count"
