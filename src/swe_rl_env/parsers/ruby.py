"""Minitest, Test::Unit, RSpec and Cucumber. No row of the dataset is Ruby, but the names exist."""

from __future__ import annotations

import re

from swe_rl_env.parsers.results import Results, Status
from swe_rl_env.parsers.text import lines_of, newline_lines

_SUITE = re.compile(r"[A-Z][A-Za-z0-9_]*+")
_RAKE = re.compile(
    r"\s*+(test[^A-Z\n]+?)(?<!\s)\s++(PASS(?:ED)?|FAIL(?:URE)?|ERROR|SKIP(?:PED)?)\b(?:\s*+\([0-9.]++s\))?$"
)
_RAKE_WORDS: dict[str, Status] = {
    "PASS": "PASSED", "PASSED": "PASSED", "FAIL": "FAILED", "FAILURE": "FAILED",
    "ERROR": "ERROR", "SKIP": "SKIPPED", "SKIPPED": "SKIPPED",
}  # fmt: skip
_RAKE_RANK: dict[Status, int] = {"PASSED": 0, "SKIPPED": 0, "FAILED": 1, "ERROR": 2}
_METHOD = re.compile(r"(?<!\s)\s++=\s++[\d.]++\s++s\s++=\s++([.FES])$")
_METHOD_WORDS: dict[str, Status] = {".": "PASSED", "F": "FAILED", "E": "FAILED", "S": "SKIPPED"}
_UNIT = re.compile(r":\s++(\.|[EFO]\b)")
_UNIT_WORDS: dict[str, Status] = {".": "PASSED", "E": "FAILED", "F": "FAILED", "O": "SKIPPED"}
_DOTS = re.compile(r" \.++F?")


def rake(text: str) -> dict[str, Status]:
    """Suite headings and ``test_x   PASS (0.02s)`` -> ``Suite::test_x``; the worse of two words stays."""
    results = Results(len(text))
    suite: str | None = None
    for raw in text.splitlines():
        line = raw.rstrip()
        if _SUITE.fullmatch(line):
            suite = line
        elif match := _RAKE.match(line):
            name = match[1].strip()
            results.raise_to(f"{suite}::{name}" if suite else name, _RAKE_WORDS[match[2]], _RAKE_RANK)
    return results.found


def methods(text: str) -> dict[str, Status]:
    """``Class#method = 5.30 s = .``."""
    results = Results(len(text))
    for line in lines_of(text):
        match = _METHOD.search(line)
        if match and line.find("#", 1, match.start() - 1) > 0:
            results.put(line[: match.start()], _METHOD_WORDS[match[1]])
    return results.found


def minitest(text: str) -> dict[str, Status]:
    """``name. ... = ... .`` in a very loose sense: the last of ``. F E`` behind an equals sign is the outcome."""
    results = Results(len(text))
    for line in newline_lines(text):
        outcome = max(line.rfind("."), line.rfind("F"), line.rfind("E"))
        equals = line.rfind("=", 0, max(outcome, 0))
        end = line.rfind(". ", 1, equals) if equals > 0 else -1
        if end > 0:
            results.put(line[:end], "PASSED" if line[outcome] == "." else "FAILED")
    return results.found


def cucumber(text: str) -> dict[str, Status]:
    """``Feature name ....F`` of the progress format, by the last run of dots."""
    results = Results(len(text))
    for line in newline_lines(text):
        last: re.Match[str] | None = None
        for match in _DOTS.finditer(line):
            if match[0].endswith("F") or len(match[0]) > 2:
                last = match
        if last is not None:
            results.put(line[: last.start()], "FAILED" if last[0].endswith("F") else "PASSED")
    return results.found


def test_unit(text: str) -> dict[str, Status]:
    """``test: name:  .`` with E, F and O (omitted) beside the dot."""
    results = Results(len(text))
    for line in newline_lines(text):
        for start in (6, 0) if line.startswith("test: ") else (0,):
            last = None
            for match in _UNIT.finditer(line, start + 1):
                last = match
            if last is not None:
                results.put(line[start : last.start()], _UNIT_WORDS[last[1]])
                break
    return results.found


def rspec_lines(text: str) -> dict[str, Status]:
    """``full description - passed|failed``, made from RSpec's JSON by a filter. Pending tests are not read."""
    results = Results(len(text))
    for line in newline_lines(text):
        passed, failed = line.rfind(" - passed"), line.rfind(" - failed")
        end = max(passed, failed)
        if end > 0:
            results.put(line[:end], "PASSED" if passed > failed else "FAILED")
    return results.found
