"""GoogleTest, doctest, Automake, CTest and a few project-made runners."""

from __future__ import annotations

import re

from swe_rl_env.parsers.junit import read_xml
from swe_rl_env.parsers.results import Results, Status
from swe_rl_env.parsers.text import cut_tail, lines_of, newline_lines

_GTEST = re.compile(r"\[\s*+(OK|FAILED)\s*+\]\s")
_REDIS = re.compile(r"\[(ok|err|skip|ignore)\]:\s(?=.)")
_REDIS_WORDS: dict[str, Status] = {"ok": "PASSED", "err": "FAILED", "skip": "SKIPPED", "ignore": "SKIPPED"}
_MS = re.compile(r"\(\d++\s*+m?s\)")
_IN_FILE = re.compile(r"(?<=\s)in\s++\S++$")
_MICROPYTHON = re.compile(r"(pass|FAIL|skip)\s++(.+)$")
_MICROPYTHON_WORDS: dict[str, Status] = {"pass": "PASSED", "FAIL": "FAILED", "skip": "SKIPPED"}
_TEST_WORD = re.compile(r"Test\s++(.*?)(?<!\s)\s++(passed|failed|skipped)$")
_CTEST = re.compile(
    r"\s*+\d++/\d++\s++Test\s++#\d++:\s++(.+?)(?<!\s)\s++\.++\s++(Passed|Failed|Skipped|Timeout)\b", re.IGNORECASE
)
_CTEST_WORDS: dict[str, Status] = {"PASSED": "PASSED", "FAILED": "FAILED", "TIMEOUT": "FAILED", "SKIPPED": "SKIPPED"}
_BOTAN = re.compile(r"(?<=\s)ran\s++(\d++)\s++tests\s++in\s++[\d.]++\s++(?:msec|sec)\s++(.+)$", re.IGNORECASE)
_NUMBERED = re.compile(r"\[[0-9]++/[0-9]++\]\s*+")
_DOTS = re.compile(r"\.\.\.\s*+(\w++)$")
_SKIP_WORD = re.compile(r"\bSKIPPED\b", re.IGNORECASE)
_FAIL_WORD = re.compile(r"\b(?:FAILED|FAIL|Failure)\b", re.IGNORECASE)
_FAILED_WORD = re.compile(r"\bfailed\b", re.IGNORECASE)
_PASS_WORD = re.compile(r"\b(?:OK|PASSED)\b", re.IGNORECASE)


def googletest(text: str) -> dict[str, Status]:
    """``[       OK ] Suite.Test (0 ms)``; the name keeps ``, where GetParam() = ...``. Skipped tests are not read."""
    results = Results(len(text))
    for line in newline_lines(text):
        if not line.endswith(")") or "]" not in line:
            continue
        paren = line.rfind("(", 0, len(line) - 1)
        while paren > 0 and not line[paren - 1].isspace():
            paren = line.rfind("(", 0, paren)
        found: re.Match[str] | None = None
        for match in _GTEST.finditer(line):
            if match.end() <= paren - 1:
                found = match
        if found is not None:
            results.put(line[found.end() : paren - 1], "PASSED" if found[1] == "OK" else "FAILED")
    return results.found


def doctest(text: str) -> dict[str, Status]:
    """doctest's XML with successes (``-s -r=xml``) -> ``test case > subcase``; passed when every expression held."""
    results = Results(len(text))
    start = text.find("<doctest")
    end = text.find("</doctest>", start) if start >= 0 else -1
    if end < 0:
        return results.found
    stack: list[tuple[str, str | None, int]] = []  # tag, name, index of the subcase in ``rows``
    rows: list[list[str | bool]] = []

    def opened(tag: str, attributes: dict[str, str]) -> None:
        row = -1
        owners = [name for t, name, _ in stack[1:] if t == "TestCase"]
        if tag == "SubCase" and owners:
            row = len(rows)
            rows.append([f"{owners[-1]} > {attributes.get('name')}", True])
        elif tag == "Expression" and attributes.get("success") != "true":
            for _, _, index in stack:
                if index >= 0:
                    rows[index][1] = False
        stack.append((tag, attributes.get("name"), row))
        if len(stack) > _DEEPEST:
            raise ValueError("too deep")

    if read_xml(text[start : end + len("</doctest>")], opened, lambda _tag: stack.pop()):
        for name, held in rows:
            results.put(str(name), "PASSED" if held else "FAILED")
    return results.found


_DEEPEST = 200  # subcases nest as deep as code does; the stack is walked once per element


def automake(text: str) -> dict[str, Status]:
    """``PASS: x`` and ``FAIL: x``."""
    results = Results(len(text))
    for line in newline_lines(text):
        if line.startswith(("PASS:", "FAIL:")) and len(line) > 6 and line[5].isspace():
            results.put(line[6:], "PASSED" if line.startswith("PASS") else "FAILED")
    return results.found


def redis(text: str) -> dict[str, Status]:
    """``[ok]: name (12 ms)`` and ``[err]: name in tests/x.tcl``."""
    results = Results(len(text))
    for line in newline_lines(text):
        if match := _REDIS.match(line):
            name = cut_tail(line[match.end() :], _MS, "(")
            if match[1] == "err" and (where := _IN_FILE.search(name)):
                name = name[: where.start()].rstrip()
            results.put(name, _REDIS_WORDS[match[1]])
    return results.found


def micropython(text: str) -> dict[str, Status]:
    """``pass name``, ``FAIL name``, ``skip name``."""
    results = Results(len(text))
    for line in newline_lines(text):
        if match := _MICROPYTHON.match(line):
            results.put(match[2], _MICROPYTHON_WORDS[match[1]])
    return results.found


def test_words(text: str) -> dict[str, Status]:
    """``Test <name>    passed|failed|skipped``."""
    results = Results(len(text))
    for line in lines_of(text):
        if match := _TEST_WORD.match(line):
            if match[2] == "passed":
                results.keep(match[1], "PASSED")
            else:
                results.put(match[1], "FAILED" if match[2] == "failed" else "SKIPPED")
    return results.found


def dotted(text: str) -> dict[str, Status]:
    """``[3/9] name... OK``, Botan's ``name ran 5 tests in 3 msec all ok``, else any line with a verdict word."""
    results = Results(len(text))
    for line in lines_of(text):
        if match := _BOTAN.search(line):
            key = f"{line[: match.start()].strip()} ran {match[1]} tests {match[2].strip()}"
            results.put(key, "FAILED" if _FAILED_WORD.search(match[2]) else "PASSED")
        elif match := _DOTS.search(line):
            prefix = _NUMBERED.match(line)
            name = line[prefix.end() if prefix and prefix.end() <= match.start() else 0 : match.start()].strip()
            results.put(name, _word_status(line) or "ERROR")
        else:
            status = _word_status(line)
            if status is not None:
                results.put(line, status)
    return results.found


def _word_status(line: str) -> Status | None:
    if _SKIP_WORD.search(line):
        return "SKIPPED"
    if _FAIL_WORD.search(line):
        return "FAILED"
    return "PASSED" if _PASS_WORD.search(line) else None


def ctest(text: str) -> dict[str, Status]:
    """``1/3 Test #1: name ....   Passed``. CTest prints ``***Failed`` without a blank, which is not read."""
    results = Results(len(text))
    for line in text.splitlines():
        if "#" in line and (match := _CTEST.match(line)):
            results.put(match[1].strip(), _CTEST_WORDS[match[2].upper()])
    return results.found
