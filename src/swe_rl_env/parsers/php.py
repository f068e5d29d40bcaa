"""PHPUnit's testdox and the Pest / Artisan console."""

from __future__ import annotations

import re

from swe_rl_env.parsers.results import Results, Status
from swe_rl_env.parsers.text import cut_bracket_time

_TESTDOX: dict[str, Status] = {"✔": "PASSED", "✘": "FAILED", "↩": "SKIPPED"}
_FAILED_CLASS = re.compile(r"\s*+FAIL(?:ED)?\s++(\S.+)$", re.IGNORECASE)
_MARKED = re.compile(r"\s*+([\u2a2fx✓✔-])\s++(?=\S)", re.IGNORECASE)
_TIMED = re.compile(r"(?<!\s)\s{2,}+\d++\.?\d*+s\b")
_TIMED_ANY_CASE = re.compile(r"(?<!\s)\s{2,}+\d++\.?\d*+s\b", re.IGNORECASE)
_TIME_WORD = re.compile(r"\d++(?:\.\d++)?s")
_SKIP_INSIDE = re.compile(r"\(skipped\)|\bSKIPPED\b", re.IGNORECASE)


def testdox(text: str) -> dict[str, Status]:
    """A header ``Suite (Name\\Space)`` and ``✔ ✘ ↩`` lines -> ``Suite > test``; ``None > test`` before any header."""
    results = Results(len(text))
    suite: str | None = None
    for line in text.split("\n"):
        header = _testdox_header(line)
        if header is not None:
            suite = header
            continue
        body = line.lstrip()
        status = _TESTDOX.get(body[:1])
        if status is not None:
            results.put(f"{suite} > {cut_bracket_time(body[1:]).strip()}", status)
    return results.found


def _testdox_header(line: str) -> str | None:
    if not line.endswith(")") or not (line[0].isalnum() or line[0] == "_"):
        return None
    end = line.rfind(" (", 2, len(line) - 2)
    return line[:end] if end > 0 else None


def console(text: str) -> dict[str, Status]:
    """``✓ name  0.03s``, ``⨯ name``, ``- name`` and ``FAIL  Class``; a pass never replaces an earlier word."""
    results = Results(len(text))
    for raw in text.splitlines():
        line = raw.rstrip()
        if not line or line.lstrip().startswith(("___", "---", "Tests:", "Duration:")):
            continue
        if match := _FAILED_CLASS.match(line):
            results.put(_without_times(match[1]), "FAILED")
        elif match := _MARKED.match(line):
            _marked(match[1], line[match.end() :], results)
        elif _SKIP_INSIDE.search(line):
            results.keep(_without_times(line), "SKIPPED")
    return results.found


def _marked(mark: str, rest: str, results: Results) -> None:
    fails = mark not in "✓✔-"
    timed = (_TIMED_ANY_CASE if fails else _TIMED).search(rest)
    name = _without_times(rest[: timed.start()] if timed else rest)
    if fails:
        results.put(name, "FAILED")
    elif mark == "-":
        results.put(name, "SKIPPED")
    else:
        results.keep(name, "PASSED")


def _without_times(name: str) -> str:
    """Without a time after two blanks, then without one after any blanks."""
    return _without_time(_without_time(name.rstrip(), 2), 1).strip()


def _without_time(name: str, blanks: int) -> str:
    body = name.rstrip()
    start = len(body) - len(body.rsplit(None, 1)[-1]) if body else 0
    front = body[:start].rstrip()
    return front if start - len(front) >= blanks and _TIME_WORD.fullmatch(body, start) else name
