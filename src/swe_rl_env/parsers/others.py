"""Julia, R, Dart, Swift, C# and Neovim's Lua."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from swe_rl_env.parsers.results import Results, Status
from swe_rl_env.parsers.text import count, lines_of, positive

_PIPE = re.compile(r"(?<=\s)\|")
_CONTEXT = re.compile(r"([✔✖])\s++\|[^|]++\|\s++(.+)$")
_R_TIME = re.compile(r"\[\s*+\d++(?:\.\d++)?\s*+[a-zA-Z]++\]")
_R_PROBLEM = re.compile(r"(Failure|Error)\s++\([^)]++\):\s++(.+)$")
_CHECK = re.compile(r"\* checking (.+)$")
_CHECK_WORD = re.compile(r"[A-Z]++")
_CHECK_WORDS: dict[str, Status] = {
    "OK": "PASSED", "NOTE": "PASSED", "NOTES": "PASSED", "WARNING": "FAILED", "WARNINGS": "FAILED", "ERROR": "ERROR",
    "ERRORS": "ERROR", "FAIL": "FAILED", "FAILED": "FAILED", "SKIPPED": "SKIPPED",
}  # fmt: skip
_DART_WORDS: dict[str, Status] = {"success": "PASSED", "failure": "FAILED", "error": "ERROR"}
_DART_PACKAGE = re.compile(r"\[\w++\]:\s++\d{2}:\d{2}\s++\+\d++:\s++(/[^:]+\.dart):\s++(.+)$")
_DART_FILE = re.compile(r"\d++:\d++\s++\+\d++(?:\s++-\d++)?:\s++(/[^:]+\.dart):\s++(.+)$")
_DART_LOADING = re.compile(r"\d++:\d++\s++\+\d++\s++-\d++:\s++loading\s++(/[^:]+\.dart)\s++\[E\]$")
_XCTEST = re.compile(r"Test Case '([^']++)'\s++(passed|failed)\s++\([0-9.]++\s++seconds\)$")
_XUNIT_FAIL = re.compile(r"\[xUnit\.net\s++[\d:.]++\]\s++(.+?)(?<!\s)\s++\[FAIL\]$")
_VSTEST = re.compile(r"\s++(Passed|Failed|Skipped)\s++(?=\S)")
_VSTEST_TIME = re.compile(r"(?<!\s)\s++\[")
_COLOURS = re.compile(r"\x1b\[[0-9;]*+m")


def julia(text: str) -> dict[str, Status]:
    """The ``Test Summary:`` table; which count is which follows from how many there are and from the header."""
    results = Results(len(text))
    in_table = has_fail = has_error = False
    for line in text.splitlines():
        if "Test Summary:" in line:
            in_table = True
            if "| Pass" in line:
                header = line.split("|", 2)[1]
                has_fail, has_error = "Fail" in header, "Error" in header
        elif in_table and (row := _julia_row(line)):
            numbers = [word for word in row[1].split() if word.isdigit()]
            if len(numbers) > 1:
                results.put(row[0], _julia_status(row[1], numbers, fail_only=has_fail and not has_error))
    return results.found


def _julia_row(line: str) -> tuple[str, str] | None:
    for match in _PIPE.finditer(line):
        name = line[: match.start()].strip()
        if name:
            return (name, line[match.end() :]) if match.end() < len(line) else None
    return None


def _julia_status(columns: str, numbers: list[str], *, fail_only: bool) -> Status:
    if len(numbers) == 2:  # passed and total, or, far to the right, some other count and total
        far = len(columns) - len(columns.lstrip()) >= 10
        return "ERROR" if far or _int(numbers[0]) != _int(numbers[1]) else "PASSED"
    if len(numbers) == 3:
        if not positive(numbers[1]):
            return "PASSED"
        return "FAILED" if fail_only else "ERROR"
    if positive(numbers[2]):
        return "ERROR"
    return "FAILED" if positive(numbers[1]) else "PASSED"


def _int(word: str) -> int:
    return count(word) if word.isdecimal() else -1


def testthat(text: str) -> dict[str, Status]:
    """``✔ | 60 | context`` and ``✖``; then the problems listed below a ``── Failed tests ──`` line."""
    results = Results(len(text))
    lines = [line.strip() for line in text.splitlines()]
    for line in lines:
        if match := _CONTEXT.match(line):
            results.put(_without_r_time(match[2]), "PASSED" if match[1] == "✔" else "FAILED")
    listed = False
    for line in lines:
        if line.startswith(("── Failed tests ──", "== Failed tests ==")):
            listed = True
        elif listed and line.startswith(("[ FAIL", "══ Results ══")):
            break
        elif listed and (match := _R_PROBLEM.match(line)):
            results.put(_without_r_time(match[2]), "FAILED" if match[1] == "Failure" else "ERROR")
    return results.found


def _without_r_time(name: str) -> str:
    start = name.rfind("[")
    return (name[:start] if start >= 0 and _R_TIME.fullmatch(name, start) else name).strip()


def r_check(text: str) -> dict[str, Status]:
    """``* checking x ... OK``. After a line without its word everything is skipped until a line starts with one."""
    results = Results(len(text))
    pending: str | None = None
    for line in lines_of(text):
        if pending is not None:
            words = line.strip(".:!").split(None, 1)
            status = _CHECK_WORDS.get(words[0].upper()) if words else None
            if status is not None:
                results.put(pending, status)
                pending = None
        elif match := _CHECK.match(line):
            name, dots, word = match[1].rpartition(" ... ")
            if dots and name and _CHECK_WORD.fullmatch(word):
                results.put(name, _CHECK_WORDS.get(word, "PASSED"))
            elif match[1].endswith(" ...") and len(match[1]) > 4:
                pending = match[1][:-4]
    if pending is not None:
        results.keep(pending, "PASSED")
    return results.found


def dart_json(text: str) -> dict[str, Status]:
    """``testStart`` and ``testDone`` events. A skipped test reports success, so it reads as passed."""
    results = Results(len(text))
    names: dict[object, str] = {}
    for event in _dart_events(text):
        if event.get("type") == "testStart":
            test = event.get("test")
            if isinstance(test, dict) and isinstance(test.get("id"), int | str):
                name = test.get("name")
                if isinstance(name, str) and name and not name.startswith("loading "):
                    names[test["id"]] = name
        elif event.get("type") == "testDone" and not event.get("hidden", False):
            number, word = event.get("testID"), event.get("result")
            status = _DART_WORDS.get(word) if isinstance(word, str) else None
            if status is None and event.get("skipped", False):
                status = "SKIPPED"
            if isinstance(number, int | str) and number in names and status:
                results.put(names[number], status)
    return results.found


def _dart_events(text: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for line in lines_of(text):
        if line[0] not in "{[":
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        events += [e for e in (value if isinstance(value, list) else [value]) if isinstance(e, dict)]
    return events


def dart_packages(text: str) -> dict[str, Status]:
    """``[pkg]: 00:01 +3: /x_test.dart: name``: a test seen twice passed, one seen once did not end."""
    seen: Counter[str] = Counter()
    results = Results(len(text))
    for line in lines_of(text):
        if (match := _DART_PACKAGE.match(line)) and "loading" not in line.lower():
            full = f"{match[1]}: {match[2]}"
            seen[full] += 1
            results.put(full, "PASSED" if seen[full] > 1 else "ERROR")
    return results.found


def dart_files(text: str) -> dict[str, Status]:
    """``00:01 +64: /x_test.dart: name`` with ``[E]`` for a failure; a file that does not load is an error."""
    results = Results(len(text))
    for line in lines_of(text):
        if match := _DART_LOADING.match(line):
            results.put(match[1], "ERROR")
        elif match := _DART_FILE.match(line):
            name = match[2]
            if name.endswith("[E]") and len(name) > 4 and name[-4].isspace():
                name = name[:-3].rstrip()
            full = f"{match[1]}: {name}"
            (results.put if "[E]" in line else results.keep)(full, "FAILED" if "[E]" in line else "PASSED")
    return results.found


def xctest(text: str) -> dict[str, Status]:
    """``Test Case 'Class.test' passed (0.1 seconds)``."""
    results = Results(len(text))
    for line in lines_of(text):
        if match := _XCTEST.match(line):
            results.put(match[1], "PASSED" if match[2] == "passed" else "FAILED")
    return results.found


def vstest(text: str) -> dict[str, Status]:
    """``  Passed Name [3 ms]`` and xUnit's ``[FAIL]``; names are cut at a blank and an opening bracket."""
    results = Results(len(text))
    for raw in text.splitlines():
        line = raw.rstrip()
        if match := _XUNIT_FAIL.match(line):
            results.put(match[1], "FAILED")
        elif match := _VSTEST.match(line):
            rest = line[match.end() :]
            opens = _VSTEST_TIME.search(rest) if rest.endswith("]") else None
            timed = opens is not None and opens.start() > 0 and opens.end() < len(rest) - 1
            name = rest[: opens.start()] if opens and timed else rest
            if match[1] == "Skipped":
                results.put(name, "SKIPPED")
            elif timed:
                (results.keep if match[1] == "Passed" else results.put)(name, _VSTEST_WORDS[match[1]])
    return results.found


_VSTEST_WORDS: dict[str, Status] = {"Passed": "PASSED", "Failed": "FAILED"}


def plenary(text: str) -> dict[str, Status]:
    """``Success || name``, ``Fail || name``, ``Skip || name``; a failure replaces, the others do not."""
    results = Results(len(text))
    for raw in text.splitlines():
        if "||" not in raw:
            continue
        head, _, rest = _COLOURS.sub("", raw).rstrip().partition("||")
        word = head.rstrip()
        if word in ("Fail", "Failed"):
            results.put(rest.strip(), "FAILED")
        elif word.lower() in ("skip", "skipped"):
            results.keep(rest.strip(), "SKIPPED")
        elif word == "Success":
            results.keep(rest.strip(), "PASSED")
    return results.found
