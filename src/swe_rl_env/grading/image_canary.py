"""Planted tests for suites that run in an image: appended to the files that the hidden test patch brings.

Those files are run by the row's own command, whatever it names. For a runner that is not known here nothing is
planted, and the grade says so.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable

from swe_rl_env.building.build import BuiltTask
from swe_rl_env.grading.canary import Canary, Names
from swe_rl_env.grading.verdicts import Verdict

_Planted = tuple[bytes, dict[str, Verdict]]


def plant_in(built: BuiltTask, files: Iterable[str]) -> Canary | None:
    """A fresh canary, or None when the runner is not known.

    Args:
        files: paths of the files to append to (those of the test patch that exist after it).
    """
    names = Names(built.task.private.expected, random.SystemRandom())
    appended: dict[str, bytes] = {}
    expected: dict[str, Verdict] = {}
    for path in files:
        how = _how(built.task.install.log_parser, path)
        if how is not None:
            appended[path], ids = how(path, names)
            expected |= ids
    return Canary(files={}, appended=appended, expected=expected) if expected else None


def _how(parser: str, path: str) -> Callable[[str, Names], _Planted] | None:
    name = path.rsplit("/", 1)[-1]
    if parser.startswith("parse_log_pytest") and re.fullmatch(r"test_.*\.py|.*_test\.py", name):
        return _pytest
    if parser == "parse_log_gotest" and name.endswith("_test.go"):
        return _go
    if parser == "parse_log_cargo" and name.endswith(".rs") and re.search(r"(^|/)tests/[^/]+\.rs$", path):
        return _cargo
    if parser == "parse_log_jest" and re.search(r"\.(test|spec)\.[cm]?[jt]sx?$", name):
        return _jest
    return None


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


def _jest(_path: str, names: Names) -> _Planted:
    bad, good = names.name(" "), names.name(" ")
    text = f"\ntest('{bad}', () => {{ throw new Error('x'); }});\ntest('{good}', () => {{}});\n"
    return text.encode(), {bad: "FAILED", good: "PASSED"}
