"""Planted tests for suites that run in an image: appended to the files that the hidden test patch brings.

Those files are run by the row's own command, whatever it names. For a runner that is not known here nothing is
planted, and the grade says so.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from functools import partial

from swe_rl_env.building.build import BuiltTask
from swe_rl_env.grading.canary import Canary, Names
from swe_rl_env.grading.verdicts import Verdict
from swe_rl_env.parsers import reports, structured_for
from swe_rl_env.tasks.log_parsers import REPORT_EXACT
from swe_rl_env.tasks.model import SweTask

_Planted = tuple[bytes, dict[str, Verdict]]


def plant_in(built: BuiltTask, files: Iterable[str], draw: random.Random | None = None) -> Canary | None:
    """A fresh canary, or None when the runner is not known or its command chooses tests by name.

    Args:
        files: paths of the files to append to (those of the test patch that exist after it).
        draw: where names come from; default the system's randomness.
    """
    if selects_by_name(built.task.install.test_cmd):
        return None
    names = Names(built.task.private.expected, draw or random.SystemRandom())
    appended: dict[str, bytes] = {}
    expected: dict[str, Verdict] = {}
    for path in files:
        how = _how(built.task, path)
        if how is not None:
            appended[path], ids = how(path, names)
            expected |= ids
    return Canary(files={}, appended=appended, expected=expected) if expected else None


# Options and arguments that leave a planted test out of the run.
_BY_NAME = re.compile(
    r"(?<!\S)(-k|-m|--deselect|-run|--run|-t|--testNamePattern|--grep|-g|--filter|--lib|--bins?|--doc)([\s=]|$)|\S\.py::"
    r"|\bcargo\s+(\+\S+\s+)?test\s+(?!-)\w"
)
_MODULE = re.compile(r"python[\d.]*\s+(\S+\s+)*?-m(?=\s)")


def selects_by_name(commands: Iterable[str]) -> bool:
    """Whether commands run chosen tests only, so that others in the same file would not be run."""
    return any(_BY_NAME.search(_MODULE.sub("python", command)) for command in commands)


def _how(task: SweTask, path: str) -> Callable[[str, Names], _Planted] | None:
    parser, name = task.install.log_parser, path.rsplit("/", 1)[-1]
    python = re.fullmatch(r"test_.*\.py|.*_test\.py", name)
    script = re.search(r"\.(test|spec)\.[cm]?[jt]sx?$", name)
    if parser == REPORT_EXACT:
        structured = structured_for(task.install.test_cmd, "report")
        read = structured.read if structured is not None else None
        if read is reports.pytest_xml and python:
            return _pytest
        return partial(_jest, lead=f"{task.checkout}/{path} > ") if read is reports.jest_json and script else None
    if parser.startswith("parse_log_pytest") and python:
        return _pytest
    if parser == "parse_log_gotest" and name.endswith("_test.go"):
        return _go
    if parser == "parse_log_cargo" and name.endswith(".rs") and re.search(r"(^|/)tests/[^/]+\.rs$", path):
        return _cargo
    return _jest if parser == "parse_log_jest" and script else None


def _pytest(path: str, names: Names) -> _Planted:
    bad, good = f"test_{names.name()}", f"test_{names.name()}"
    text = f"\n\ndef {bad}():\n    assert [] == [0]\n\n\ndef {good}():\n    assert [] == []\n"
    return text.encode(), {f"{path}::{bad}": "FAILED", f"{path}::{good}": "PASSED"}


def _go(_path: str, names: Names) -> _Planted:
    bad, good = "Test" + names.name("").title(), "Test" + names.name("").title()
    text = f'\nfunc {bad}(t *testing.T) {{ t.Fatal("x") }}\n\nfunc {good}(t *testing.T) {{ t.Log("x") }}\n'
    return text.encode(), {bad: "FAILED", good: "PASSED"}


def _cargo(_path: str, names: Names) -> _Planted:
    bad, good = names.name(), names.name()
    text = f"\n#[test]\nfn {bad}() {{\n    panic!()\n}}\n\n#[test]\nfn {good}() {{}}\n"
    return text.encode(), {bad: "FAILED", good: "PASSED"}


def _jest(_path: str, names: Names, lead: str = "") -> _Planted:
    bad, good = names.name(" "), names.name(" ")
    text = f"\ntest('{bad}', () => {{ throw new Error('x'); }});\ntest('{good}', () => {{}});\n"
    return text.encode(), {lead + bad: "FAILED", lead + good: "PASSED"}
