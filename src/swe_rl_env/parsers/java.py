"""Maven, Gradle and Ant on the console. Surefire names classes only, so ids are classes (or modules)."""

from __future__ import annotations

import re

from swe_rl_env.parsers.junit import fragments
from swe_rl_env.parsers.results import Results, Status
from swe_rl_env.parsers.text import count, lines_of, newline_lines, positive

_COUNTS = re.compile(r"Tests run:\s*+(\d++),\s*+Failures:\s*+(\d++),\s*+Errors:\s*+(\d++),\s*+Skipped:\s*+(\d++)")
_COUNTS_FIRST = re.compile(r"Tests run:\s++(\d++),\s++Failures:\s++(\d++),\s++Errors:\s++(\d++),\s++Skipped:\s++(\d++)")
_RUNNING_CLASS = re.compile(r"(?:\[INFO\]\s++)?Running\s++([A-Za-z0-9_$.]++)$")
_RUNNING_ANY = re.compile(r"Running\s++(.+)$")
_ERROR_HEAD = re.compile(r"\[ERROR\]\s++([A-Za-z0-9_$.]++)")
_LINE_NUMBER = re.compile(r":\d++\b")
_BOUNDARY = re.compile(r"\b")
_MODULE = re.compile(r"\[INFO\]\s++(.+?)(?<!\s)\s++\.\.++\s++(SUCCESS|FAILURE|SKIPPED)(?=\s|\[|$)")
_MODULE_WORDS: dict[str, Status] = {"SUCCESS": "PASSED", "FAILURE": "FAILED", "SKIPPED": "SKIPPED"}
_GRADLE = re.compile(
    r"([^>].+?(?<!\s)|[^>]\s)\s++(PASSED|FAILED)(?:\s++\(\d++(?:\.\d++)?s\))?$",
)
_ANT = re.compile(r"\[junit\]\s++\[(PASS|FAIL|ERR)\]\s++(.*)$")
_NO_COMMAND_YET = "---NO TEST NAME FOUND YET---"


def maven_commands(text: str) -> dict[str, Status]:
    """One command per test: the last ``-Dtest=X`` seen gets the verdict of the next ``BUILD SUCCESS|FAILURE``."""
    results = Results(len(text))
    current = _NO_COMMAND_YET
    for line in newline_lines(text):
        current = _asked_for(line) or current
        if line.endswith("BUILD SUCCESS"):
            results.put(current, "PASSED")
        elif line.endswith("BUILD FAILURE"):
            results.put(current, "FAILED")
    return results.found


def _asked_for(line: str) -> str | None:
    end = len(line)
    while (start := line.rfind("-Dtest=", 0, end)) >= 0:
        words = line[start + 7 : start + 8]
        if words and not words.isspace():
            return line[start + 7 :].split(None, 1)[0]
        end = start
    return None


def surefire(text: str) -> dict[str, Status]:
    """``Running <class>`` and its counts -> class; ``[ERROR] <class>.<method>`` -> that and its class.

    Then, for ids not seen yet, XML fragments and the one-command-per-test form. The first word about a class stays.
    """
    results = Results(len(text))
    running: list[str] = []
    current: str | None = None
    for line in lines_of(text):
        if match := _RUNNING_CLASS.match(line):
            current = match[1]
            running.append(current)
        elif failed := _failed_method(line):
            owner, method = failed
            kind: Status = "ERROR" if "Exception" in line and "AssertionError" not in line else "FAILED"
            results.put(f"{owner}.{method}", kind)
            results.keep(owner, "FAILED")
        elif match := _COUNTS.search(line):
            name = line.rpartition(" in ")[2].strip().rstrip(".:;") if " in " in line else current
            if name:
                results.keep(name, _class_status(match))
            current = None
    for more in (fragments(text), maven_commands(text)):
        for name, status in more.items():
            results.keep(name, status)
    if not results.found:
        for name in running:
            results.keep(name, "PASSED")
    return results.found


def _class_status(counts: re.Match[str]) -> Status:
    if positive(counts[2]) or positive(counts[3]):
        return "FAILED"
    return "SKIPPED" if positive(counts[4]) else "PASSED"


def _failed_method(line: str) -> tuple[str, str] | None:
    """``[ERROR] a.b.Class.method:12 ...`` -> (a.b.Class, method).

    The class runs to the last dot that leaves a method behind; the method to the first word boundary after that.
    """
    head = _ERROR_HEAD.match(line)
    if head is None:
        return None
    start, end = head.span(1)
    if _LINE_NUMBER.match(line, end):
        last = end
    else:
        last = next((i for i in range(end, start, -1) if _BOUNDARY.match(line, i)), start)
    dot = line.rfind(".", start + 1, last - 1)
    if dot < 0:
        return None
    boundary = _BOUNDARY.search(line, dot + 2, end) if dot + 2 <= end else None
    stop = boundary.start() if boundary and boundary.start() <= last else last
    return line[start:dot], line[dot + 1 : min(stop, last)]


def reactor(text: str) -> dict[str, Status]:
    """The reactor's module lines -> module name, and ``__suite__`` for the first line of counts."""
    results = Results(len(text))
    for line in lines_of(text):
        if match := _MODULE.match(line):
            results.put(match[1], _MODULE_WORDS[match[2]])
        elif match := _COUNTS.search(line):
            results.keep("__suite__", _suite_status(match))
    return results.found


def _suite_status(counts: re.Match[str]) -> Status:
    if positive(counts[2]):
        return "FAILED"
    if positive(counts[3]):
        return "ERROR"
    return "SKIPPED" if count(counts[4]) == count(counts[1]) else "PASSED"


def kotlin_surefire(text: str) -> dict[str, Status]:
    """``Running <anything>`` and the line of counts that follows it; the last word about a class stays."""
    results = Results(len(text))
    current: str | None = None
    for line in lines_of(text):
        if match := _RUNNING_ANY.match(line):
            current = match[1]
        elif current is not None and (match := _COUNTS_FIRST.match(line)):
            results.put(current, _class_status(match))
            current = None
    return results.found


def gradle(text: str) -> dict[str, Status]:
    """``Class > test PASSED|FAILED``, with or without a time."""
    results = Results(len(text))
    for line in newline_lines(text):
        if ("PASSED" in line or "FAILED" in line) and (match := _GRADLE.match(line)):
            results.put(match[1], "PASSED" if match[2] == "PASSED" else "FAILED")
    return results.found


def ant(text: str) -> dict[str, Status]:
    """``[junit] [PASS|FAIL|ERR] name``."""
    results = Results(len(text))
    for line in newline_lines(text):
        if match := _ANT.match(line):
            results.put(match[2], "PASSED" if match[1] == "PASS" else "FAILED")
    return results.found
