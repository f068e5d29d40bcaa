"""The log is written by the code under test: no text may cost more than its length or crash a parser."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_rl_env.parsers import LogUnreadable, get_parser, normalise_id, parser_names, reports

ALL = [*parser_names(), "parse_log_django", "parse_log_sympy", "parse_log_seaborn", "parse_log_matplotlib"]
REPORTS = [n for n in dir(reports) if n.endswith(("_json", "_xml"))]
SIZE = 24_000

# Text that makes backtracking expressions slow: long runs, many openings without an end, one huge line.
UNITS = [
    " ",
    "\t",
    "\n",
    "(",
    ")",
    "[",
    "] ",
    ". ",
    ".",
    "..",
    " .",
    "=",
    "a",
    "A",
    "1",
    "é",
    "\x1b[",
    "{",
    "[{",
    "}",
    "|",
    " |",
    ": ",
    " - ",
    " (",
    " [",
    "PASSED ",
    "PASSED [",
    " FAILED",
    "\tPASSED",
    "OK ",
    "ok 1 - a {\n",
    " ... ",
    "... a ",
    "[ OK ] a (",
    "<testcase ",
    "<testcase a",
    '<testcase name="a">',
    "<?xml",
    "<?xml><testsuites>",
    "<doctest",
    "<a>",
    "<a></a>",
    "</a>",
    "Chrome 1 (",
    "Chrome 1 (a) ",
    "1) a\n",
    "1)",
    "-Dtest= ",
    "-Dtest=",
    "BUILD SUCCESS",
    "[ERROR] $.$.",
    "$.",
    " in 1 msec",
    " in",
    "test a",
    "Test ",
    "* test a (",
    "Tests run: 1, ",
    "ran 1 tests in 1 ",
    "1/1 Test #1: ",
    " ./node_modules/.bin/jest ",
    " suite\n",
    "lein test ",
    "Running[1]: (",
    "[info] - a *** FAILED *** (",
    "\x1b[32m+ ",
    "✔ ",
    "✓ a",
    "× 1 ",
    "[OK] a 1 ",
    "- ",
    "x  1s",
    "test: a: ",
    "Failures:\n",
    " ... Testing against ",
    "* checking a ...\n",
    "_ a.py:b _",
    "Success ||",
    "  Passed a [",
    '{"a":',
    '{"type":"testStart"}\n',
    "\r",
    "\x0c",
]
HEADS = [
    "",
    "[info] - ",
    "[INFO] ",
    "[ERROR] ",
    "* test ",
    "--- PASS: ",
    "test ",
    "PASS ",
    "✓ ",
    "  ✔ ",
    "1) ",
    "[gw0] [1%] PASSED ",
    "FAILED ",
    "ok 1 - ",
    "[ok]: ",
    "Test ",
    "Starting browser\n ",
    "Test Summary: | Pass\n",
    "1/1 Test #1: ",
    "  Failed ",
    "Foo (",
    " ./node_modules/.bin/jest ",
    "[OK] ",
    "x ",
    "* checking ",
    "Test suite a: RUNNING...\n",
    "[xUnit.net 1] ",
    "<?xml?>",
]


def _steps(call: Callable[[str], object], text: str) -> float:
    start = time.thread_time()
    with contextlib.suppress(LogUnreadable):
        call(text)
    return time.thread_time() - start


@pytest.mark.timeout(400)
@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_time_is_linear(unit: str) -> None:
    """A quadratic parser needs seconds for this much text, a linear one milliseconds; processor time is what counts."""
    head = HEADS[(UNITS.index(unit) * 7 + 3) % len(HEADS)]
    text = head + unit * (SIZE // len(unit)) + "!"
    calls = [get_parser(name) for name in ALL] + [getattr(reports, name) for name in REPORTS] + [normalise_id]
    for call in calls:
        assert _steps(call, text) < 0.5, (call, head, unit)


LINES = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(UNITS + HEADS)), max_size=8).map("".join)


@settings(max_examples=60, deadline=None)
@given(st.lists(LINES, max_size=6).map("\n".join))
def test_no_text_crashes_a_parser(log: str) -> None:
    for name in ALL:
        found = get_parser(name)(log)
        assert all(i and s in ("PASSED", "FAILED", "SKIPPED", "ERROR") for i, s in found.items()), name
    for name in REPORTS:
        getattr(reports, name)(log)


def test_a_huge_suite_name_before_every_test_is_refused() -> None:
    with pytest.raises(LogUnreadable, match="longer than the log"):
        get_parser("parse_log_phpunit")("A" * 30_000 + " (B)\n" + "✔ x\n" * 7_000)


def test_entities_are_not_expanded() -> None:
    bomb = (
        '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "'
        + "x" * 100
        + '">]><testsuites><testcase name="&b;"/></testsuites>'
    )
    for name in ("parse_combined_test_reports", "parse_log_r_junit"):
        assert get_parser(name)(bomb) == {}
    assert reports.junit_xml(bomb) == {}


def test_deep_json_and_long_numbers_are_no_crash() -> None:
    log = "[" * 50_000 + "\n" + '{"a":' * 50_000 + "\n" + '{"type":' + "1" * 9_000 + "}\nTests run: " + "1" * 9_000
    log += ", Failures: 0, Errors: 0, Skipped: " + "1" * 9_000
    for name in ALL:
        get_parser(name)(log)


WORDS = st.text(st.characters(whitelist_categories=("L", "N")), min_size=1, max_size=8)
TITLES = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
STATUS = st.sampled_from(["PASSED", "FAILED"])


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(TITLES, STATUS, max_size=6))
def test_printed_results_come_back(results: dict[str, str]) -> None:
    """Round trip through the lines of runners whose ids are whole."""
    shapes: dict[str, Callable[[str, bool], str]] = {
        "parse_log_gotest": lambda i, ok: f"    --- {'PASS' if ok else 'FAIL'}: {i} (0.01s)",
        "parse_log_jest": lambda i, ok: f"  {'✓' if ok else '✕'} {i} (3 ms)",
        "parse_log_jest_json": lambda i, ok: f"[{'PASSED' if ok else 'FAILED'}] {i}",
        "parse_log_vitest": lambda i, ok: f" {'✓' if ok else '×'} {i} 3ms",
        "parse_log_tap": lambda i, ok: f"{'ok' if ok else 'not ok'} 1 {i}",
        "parse_log_jq": lambda i, ok: f"{'PASS' if ok else 'FAIL'}: {i}",
        "parse_log_googletest": lambda i, ok: f"[ {'OK' if ok else 'FAILED'} ] {i} (0 ms)",
        "parse_log_swift": lambda i, ok: f"Test Case '{i}' {'passed' if ok else 'failed'} (0.1 seconds)",
        "parse_log_csharp": lambda i, ok: f"  {'Passed' if ok else 'Failed'} {i} [3 ms]",
        "parse_log_pytest_nebo": lambda i, ok: f"[gw0] [ 1%] {'PASSED' if ok else 'FAILED'} t::{i} in 1s",
    }
    for name, line in shapes.items():
        log = "\n".join(line(i, s == "PASSED") for i, s in results.items())
        prefix = "t::" if name.endswith("nebo") else ""
        assert get_parser(name)(log) == {prefix + i: s for i, s in results.items()}, name
