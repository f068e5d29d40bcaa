"""Readers of machine-readable reports: exact ids, nothing cut; of contradicting words about one id the worse counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from swe_rl_env.parsers.junit import ERROR, FAILURE, SKIPPED, Case, cases_of
from swe_rl_env.parsers.results import Status, merge_worse

_GO: dict[str, Status] = {"pass": "PASSED", "fail": "FAILED", "skip": "SKIPPED"}
_JEST: dict[str, Status] = {
    "passed": "PASSED", "failed": "FAILED", "pending": "SKIPPED", "skipped": "SKIPPED", "todo": "SKIPPED",
    "disabled": "SKIPPED",
}  # fmt: skip
_MOCHA: dict[str, Status] = {"passes": "PASSED", "failures": "FAILED", "pending": "SKIPPED"}
_LIBTEST: dict[str, Status] = {"ok": "PASSED", "failed": "FAILED", "ignored": "SKIPPED", "timeout": "FAILED"}
_PYTEST: dict[str, Status] = {
    "passed": "PASSED", "failed": "FAILED", "error": "ERROR", "skipped": "SKIPPED", "xfailed": "SKIPPED",
    "xpassed": "PASSED",
}  # fmt: skip
_RSPEC: dict[str, Status] = {"passed": "PASSED", "failed": "FAILED", "pending": "SKIPPED"}


def junit_xml(report: str) -> dict[str, Status]:
    """JUnit XML -> ``classname::name``, or the bare name without a class. A malformed report says nothing: ``{}``.

    CTest has no element for a test that is switched off, only its ``status`` attribute.
    """
    return merge_worse((_class_and_name(case.attributes), _case_status(case)) for case in cases_of(report) or ())


def _class_and_name(attributes: dict[str, str]) -> str:
    owner, name = attributes.get("classname"), attributes.get("name", "")
    return f"{owner}::{name}" if owner else name


def _case_status(case: Case) -> Status:
    if case.attributes.get("status") in ("disabled", "notrun"):
        return "SKIPPED"
    return case.status(ERROR, FAILURE, SKIPPED)


def pytest_xml(report: str) -> dict[str, Status]:
    """pytest's ``--junitxml`` with ``-o junit_family=xunit1`` -> node ids.

    The file stands in its own attribute, and the class name repeats it with dots before the classes.
    """
    return merge_worse((_node_id(c.attributes), c.status(ERROR, FAILURE, SKIPPED)) for c in cases_of(report) or ())


def _node_id(attributes: dict[str, str]) -> str:
    file, owner, name = (attributes.get(key, "") for key in ("file", "classname", "name"))
    if not file:
        return f"{owner}::{name}" if owner else name
    module = file.removesuffix(".py").replace("/", ".")
    classes = owner.removeprefix(module).strip(".").split(".") if owner.startswith(module) else []
    return "::".join([file, *(c for c in classes if c), name])


def pytest_json(report: str) -> dict[str, Status]:
    """pytest-json-report's document -> node ids."""
    return merge_worse(
        (str(t.get("nodeid", "")), _PYTEST.get(str(t.get("outcome")), "ERROR")) for t in _items(_load(report), "tests")
    )


def jest_json(report: str) -> dict[str, Status]:
    """Jest's or Vitest's JSON report -> ``describe > describe > title`` below its file's path."""
    found: list[tuple[str, Status]] = []
    for file in _items(_load(report), "testResults"):
        tests = _items(file, "assertionResults")
        for test in tests:
            path = [str(p) for p in test.get("ancestorTitles") or [] if p]
            name = " > ".join([str(file.get("name", "")), *path, str(test.get("title", ""))])
            found.append((name, _JEST.get(str(test.get("status")), "ERROR")))
        if not tests and file.get("status") == "failed":
            found.append((str(file.get("name", "")), "ERROR"))
    return merge_worse(found)


def mocha_json(report: str) -> dict[str, Status]:
    """Mocha's JSON report -> full titles below their file's path."""
    root = _load(report)
    found: list[tuple[str, Status]] = []
    for key, status in _MOCHA.items():
        for test in _items(root, key):
            name = " > ".join(p for p in (str(test.get("file") or ""), str(test.get("fullTitle", ""))) if p)
            found.append((name, status))
    return merge_worse(found)


def rspec_json(report: str) -> dict[str, Status]:
    """RSpec's JSON report -> ``file full description``."""
    return merge_worse(
        (f"{e.get('file_path', '')} {e.get('full_description', '')}", _RSPEC.get(str(e.get("status")), "ERROR"))
        for e in _items(_load(report), "examples")
    )


def go_json(report: str) -> dict[str, Status]:
    """``go test -json`` events -> ``package.Test/sub``; a package that fails without a failing test is an error."""
    found: list[tuple[str, Status]] = []
    failed_tests: set[str] = set()
    for event in _events(report):
        package, test, status = str(event.get("Package", "")), event.get("Test"), _GO.get(str(event.get("Action")))
        if status is None:
            continue
        if isinstance(test, str):
            found.append((f"{package}.{test}", status))
            if status == "FAILED":
                failed_tests.add(package)
        elif status == "FAILED" and package not in failed_tests:
            found.append((package, "ERROR"))
    return merge_worse(found)


def libtest_json(report: str) -> dict[str, Status]:
    """Rust's libtest events (``--format json``) -> test paths. Names of two test binaries can be equal."""
    return merge_worse(
        (str(e["name"]), _LIBTEST[str(e["event"])])
        for e in _events(report)
        if e.get("type") == "test" and "name" in e and str(e.get("event")) in _LIBTEST
    )


def _load(report: str) -> Any:
    """The first JSON object in the text; None when there is none (a report printed after other output is found)."""
    decoder = json.JSONDecoder()
    for start in _object_starts(report):
        try:
            return decoder.raw_decode(report, start)[0]
        except (ValueError, RecursionError):
            continue
    return None


def _object_starts(report: str) -> Iterator[int]:
    """Up to eight places where a line starts with a brace."""
    position, tries = 0, 0
    while tries < 8:
        if report.startswith("{", position):
            yield position
            tries += 1
        newline = report.find("\n{", position)
        if newline < 0:
            return
        position = newline + 1


def _items(value: Any, key: str) -> list[dict[str, Any]]:
    items = value.get(key) if isinstance(value, dict) else None
    return [i for i in items if isinstance(i, dict)] if isinstance(items, list) else []


def _events(report: str) -> Iterator[dict[str, Any]]:
    for line in report.splitlines():
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event
