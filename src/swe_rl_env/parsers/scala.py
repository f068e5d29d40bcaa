"""ScalaTest, munit and zio-test under sbt."""

from __future__ import annotations

import re

from swe_rl_env.parsers.results import Results, Status, status_of
from swe_rl_env.parsers.text import cut_closing_group, lines_of

_LINE = re.compile(r"\[info\]\s++-\s++(?=\S)")
_IGNORED = re.compile(r"(?<!\s)\s++!!!\s++IGNORED\s++!!!")
_MARK_FAILED = re.compile(r"(?<!\s)\s++\*\*\*\s++FAILED\s++\*\*\*\s++\(")
_MARK_CANCELED = re.compile(r"(?<!\s)\s++!!!\s++CANCELED\s++!!!\s++\(")
_COLOURS = re.compile(r"\x1b\[[0-9;]*+m|\[[0-9]{1,2}m")
_PLUS = re.compile(r"\s*+([+x])\s++(.*?)(?<!\s)\s++[\d.]++[mμn]?s\s*+$")
_PLUS_HEAD = {"+": re.compile(r"\+\s++\[0m\[32m"), "x": re.compile(r"x\s++\[0m\[31m")}
_PLUS_TAIL = re.compile(r"\[0m\s++\[90m[\d.]++[mμn]?s\[0m$")
_TIME = re.compile(r"\(\d++\s++\w++\)")
_STARS = re.compile(r"(?<!\s)\s++\*{3}\s++([A-Z]++)\s++\*{3}$")
_WORDS: dict[str, Status] = {
    "ABORTED": "ERROR", "IGNORED": "SKIPPED", "CANCELED": "SKIPPED", "CANCELLED": "SKIPPED", "PENDING": "SKIPPED",
}  # fmt: skip
_NOT_A_SUITE = (
    "Run completed", "Total number", "Suites:", "Tests:", "All tests",
    "compiling", "done compiling", "loading", "welcome to", "set current",
)  # fmt: skip


def scalatest(text: str) -> dict[str, Status]:
    """``[info] - name (5 milliseconds)`` with ``*** FAILED ***``, ``!!! CANCELED !!!``, ``!!! IGNORED !!!``."""
    results = Results(len(text))
    for line in lines_of(text):
        match = _LINE.match(line)
        if match is None:
            continue
        body = line[match.end() :]
        failed, canceled = _marked(body, _MARK_FAILED), _marked(body, _MARK_CANCELED)
        if failed:
            results.put(failed, "FAILED")
        elif canceled:
            results.put(canceled, "SKIPPED")
        elif (ignored := _IGNORED.search(body)) and ignored.start() > 0:
            results.put(body[: ignored.start()], "SKIPPED")
        elif name := cut_closing_group(body):
            results.keep(name, "PASSED")
    return results.found


def _marked(body: str, mark: re.Pattern[str]) -> str | None:
    """The name before a mark that is followed by one group to the end."""
    if not body.endswith(")"):
        return None
    after = body.rfind(")", 0, len(body) - 1)
    for match in mark.finditer(body):
        if after < match.end() - 1 < len(body) - 2 and match.start() > 0:
            return body[: match.start()]
    return None


def signs(text: str) -> dict[str, Status]:
    """``+ name 12ms`` and ``x name 12ms``, coloured or not; the last word counts."""
    results = Results(len(text))
    for line in lines_of(text):
        clean = _COLOURS.sub("", line)
        plain = _PLUS.match(clean)
        for sign in "x+":
            name = _between_colours(line, sign)
            if name is None and plain and plain[1] == sign:
                name = plain[2]
            if name is not None:
                results.put(name, "FAILED" if sign == "x" else "PASSED")
                break
    return results.found


def _between_colours(line: str, sign: str) -> str | None:
    head = _PLUS_HEAD[sign].match(line)
    tail = _PLUS_TAIL.search(line, head.end()) if head else None
    return line[head.end() : tail.start()] if head and tail else None


def suites(text: str) -> dict[str, Status]:
    """``[info] Suite`` and ``[info] - name`` -> ``Suite: name``.

    A mark counts only at the very end: with a time behind it the mark becomes part of a passed id.
    """
    results = Results(len(text))
    suite: str | None = None
    for line in lines_of(text):
        if line.startswith("[info] -"):
            if match := _LINE.match(line):
                name, status = _split_mark(line[match.end() :])
                full = f"{suite}: {name}" if suite else name
                if status is None:
                    results.keep(full, "PASSED")
                else:
                    results.put(full, status)
        elif line.startswith("[info]") and line[6:7].isspace():
            body = line[6:].strip()
            if not any(part in body for part in _NOT_A_SUITE):
                suite = body
    return results.found


def _split_mark(body: str) -> tuple[str, Status | None]:
    mark = _STARS.search(body)
    status = None
    if mark and mark.start() > 0:
        body = body[: mark.start()]
        status = _WORDS.get(mark[1]) or status_of(mark[1])
    name = body.strip()
    start = name.rfind("(")
    if start >= 0 and _TIME.fullmatch(name, start):
        name = name[:start].rstrip()
    return name, status
