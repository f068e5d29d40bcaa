"""Elixir, Clojure and Haskell."""

from __future__ import annotations

import re

from swe_rl_env.parsers.results import Results, Status
from swe_rl_env.parsers.text import cut_closing_group, lines_of

_EXUNIT = re.compile(r"\*\s++test\s++(.*?)(?<!\s)\s++\[L#\d++\]$")
_EXUNIT_MS = re.compile(r"\([0-9]++(?:\.[0-9]++)?ms\)")
_EXUNIT_FAILED = re.compile(r"\d++\)\s++test\s++(?=\S)")
_LEIN = re.compile(r"lein test (.+)$")
_COLOURS = re.compile(r"\x1b\[[0-9;]*+m")
_NOISE = ("Test suite ", "Linking ", "Building ", "Running  ")
_TASTY = re.compile(r":\s*+(OK|PASS|FAIL|ERROR|SKIP|PENDING)(?!\w)")
_TASTY_WORDS: dict[str, Status] = {
    "OK": "PASSED", "PASS": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR", "SKIP": "SKIPPED", "PENDING": "SKIPPED",
}  # fmt: skip
_HSPEC = re.compile(r"\s*+([✓✔✗✘])\s++(?=\S)")
_HSPEC_GROUP = re.compile(r"(?<!\s)\s++\(")
_HSPEC_NUMBER = re.compile(r"\s*+\d++\)\s++(?=\S)")
_HUNIT = re.compile(r"###\s++(Failure|Error)\s++in:\s++(.+)$")


def exunit(text: str) -> dict[str, Status]:
    """``* test name (1.2ms) [L#4]``, ``(skipped)``, and failures ``1) test name (Module)``."""
    results = Results(len(text))
    for line in lines_of(text):
        if match := _EXUNIT.match(line):
            name = match[1]
            words = name.rsplit(None, 1)
            if len(words) == 2 and words[1] == "(skipped)":
                results.put(words[0], "SKIPPED")
            else:
                timed = len(words) == 2 and _EXUNIT_MS.fullmatch(words[1])
                results.keep(words[0] if timed else name, "PASSED")
        elif (match := _EXUNIT_FAILED.match(line)) and (name := cut_closing_group(line[match.end() :]) or ""):
            results.put(name, "FAILED")
    return results.found


def leiningen(text: str) -> dict[str, Status]:
    """``lein test ns`` -> namespace; ``FAIL in`` and ``ERROR in`` belong to the last one named."""
    results = Results(len(text))
    current: str | None = None
    for line in lines_of(text):
        if match := _LEIN.match(line):
            words = match[1].split()
            if words[0] == ":only":
                current = " ".join(words[1:]).partition("/")[0].strip() or None
                words = [current] if current else []
            for word in words:
                results.keep(word, "PASSED")
                current = word
        elif current and line.startswith("FAIL in"):
            results.put(current, "FAILED")
        elif current and line.startswith("ERROR in"):
            results.put(current, "ERROR")
    return results.found


def haskell(text: str) -> dict[str, Status]:
    """tasty's ``name: OK``, hspec's ticks, numbers and brackets, HUnit's headings."""
    results = Results(len(text))
    for raw in text.splitlines():
        line = _COLOURS.sub("", raw).rstrip()
        if line and not any(noise in line for noise in _NOISE):
            _haskell_line(line, results)
    return results.found


def _haskell_line(line: str, results: Results) -> None:
    if match := _TASTY.search(line, 1):
        results.put(line[: match.start()].strip(), _TASTY_WORDS[match[1]])
    elif bracket := _bracketed(line):
        name, passed = bracket
        (results.keep if passed else results.put)(name, "PASSED" if passed else "FAILED")
    elif match := _HSPEC.match(line):
        rest = line[match.end() :]
        if match[1] in "✓✔":
            group = _HSPEC_GROUP.search(rest) if rest.endswith(")") else None
            results.keep(rest[: group.start()] if group and group.start() > 0 else rest, "PASSED")
        else:
            results.put(rest, "FAILED")
    elif match := _HSPEC_NUMBER.match(line):
        results.put(line[match.end() :], "FAILED")
    elif match := _HUNIT.match(line):
        results.put(match[2].strip(), "FAILED" if match[1] == "Failure" else "ERROR")


def _bracketed(line: str) -> tuple[str, bool] | None:
    if len(line) > 5 and line[0].isspace() and line[-3] == "[" and line[-1] == "]" and line[-2] in "✓✔✗✘":
        name = line[:-3]
        if name[-1].isspace() and name.strip():
            return name.strip(), line[-2] in "✓✔"
    return None
