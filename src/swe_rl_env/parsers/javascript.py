"""Jest, Vitest, Mocha and TAP."""

from __future__ import annotations

import re

from swe_rl_env.parsers.results import Results, Status
from swe_rl_env.parsers.text import cut_closing_group, cut_tail, lines_of, newline_lines

_JEST: dict[str, Status] = {"✓": "PASSED", "✕": "FAILED", "○": "SKIPPED"}
_VITEST: dict[str, Status] = {"✓": "PASSED", "×": "FAILED", "↓": "SKIPPED"}
_MS = re.compile(r"\(\d++\s*+m?s\)")
_NPX_MS = re.compile(r"\(\d++(?:ms)?\)")
_BARE_MS = re.compile(r"(?<=\s)\d++\s*+m?s?$")
_JSON_LINE = re.compile(r"\[(PASSED|FAILED)\]\s(.+)$")
_TAP = re.compile(r"(ok|not ok) \d++ (.+)$")
_TAP_DASH = re.compile(r"(not ok|ok)\s++\d++\s++-\s++(.*)$")
_TAP_COMMENT = re.compile(r"(?<!\s)\s++#")
_SKIP = re.compile(r"-\s++(?=\S)")
_TICK = re.compile(r"✔\s++(?=\S)")
_NUMBER = re.compile(r"\d++\)\s++(?=\S)")
_WARNED_NUMBER = re.compile(r"\[W\]\s*+\d++\)\s++(?=\S)")


def jest(text: str) -> dict[str, Status]:
    """``✓ title (3 ms)``: titles only, so equal titles of two ``describe`` blocks collide and the last one counts."""
    results = Results(len(text))
    for line in newline_lines(text):
        status = _JEST.get(line[:1])
        if status is not None and len(line) > 2 and line[1].isspace():
            results.put(cut_tail(line[2:], _MS, "("), status)
    return results.found


def jest_json(text: str) -> dict[str, Status]:
    """``[PASSED] full name`` lines, made from Jest's JSON by a filter."""
    results = Results(len(text))
    for line in newline_lines(text):
        if match := _JSON_LINE.match(line):
            results.put(match[2], "PASSED" if match[1] == "PASSED" else "FAILED")
    return results.found


def vitest(text: str) -> dict[str, Status]:
    """``✓ file > suite > name 3ms``. A number that ends the name is taken for a time."""
    results = Results(len(text))
    for line in newline_lines(text):
        status = _VITEST.get(line[:1])
        if status is not None and len(line) > 2 and line[1].isspace():
            results.put(_without_bare_time(line[2:]), status)
    return results.found


def _without_bare_time(rest: str) -> str:
    if rest.endswith("[skipped]") and len(rest) > 10 and rest[-10].isspace():
        return rest[:-10]
    match = _BARE_MS.search(rest)
    return rest[: match.start() - 1] if match and match.start() > 1 else rest


def without_duration(name: str) -> str:
    """Without a last ``(53ms)``, ``53 ms`` or ``5s``, even one glued to a word (``returns 404s`` -> ``returns``)."""
    end = name.rstrip()
    if end.endswith(")"):
        end = end[:-1].rstrip()
    if end[-1:] not in ("s", "S", "ſ"):
        return name.strip()
    end = end[:-1]
    if end[-1:] in ("m", "M"):
        end = end[:-1]
    digits = _before_number(end.rstrip())
    if digits is None:
        return name.strip()
    front = end[:digits].rstrip()
    return (front[:-1] if front.endswith("(") else front).strip()


def _before_number(text: str) -> int | None:
    """Where the number that ends ``text`` starts (``1.5`` counts as one); None when it ends in no digit."""
    start = _before_digits(text, len(text))
    if start == len(text):
        return None
    if start > 1 and text[start - 1] == ".":
        whole = _before_digits(text, start - 1)
        return whole if whole < start - 1 else start
    return start


def _before_digits(text: str, end: int) -> int:
    while end > 0 and text[end - 1].isdecimal():
        end -= 1
    return end


def mocha(text: str) -> dict[str, Status]:
    """``✔ title``, ``- title`` (pending), failures by their headings ``3) suite:`` or ``[W] 3) title``."""
    results = Results(len(text))
    for line in lines_of(text):
        if match := _SKIP.match(line):
            results.put(without_duration(line[match.end() :]), "SKIPPED")
        elif line.endswith(":") and (match := _NUMBER.match(line)):
            results.put(without_duration(line[match.end() : -1]), "FAILED")
        elif match := _WARNED_NUMBER.match(line):
            results.put(without_duration(line[match.end() :]), "FAILED")
        elif match := _TICK.match(line):
            results.keep(without_duration(line[match.end() :]), "PASSED")
    return results.found


def mocha_2(text: str) -> dict[str, Status]:
    """``✔ title``, ``3) title``, ``- title``; a pass never replaces an earlier word."""
    results = Results(len(text))
    for line in lines_of(text):
        if match := _SKIP.match(line):
            results.put(without_duration(line[match.end() :]), "SKIPPED")
        elif match := _NUMBER.match(line):
            results.put(without_duration(line[match.end() :]), "FAILED")
        elif match := _TICK.match(line):
            results.keep(without_duration(line[match.end() :]), "PASSED")
    return results.found


def npx(text: str) -> dict[str, Status]:
    """``✔ title (3ms)`` and ``3) title (module)``; the last word counts."""
    results = Results(len(text))
    for line in lines_of(text):
        if match := _TICK.match(line):
            results.put(cut_tail(line[match.end() :], _NPX_MS, "(", blanks=-1), "PASSED")
        elif match := _NUMBER.match(line):
            name = line[match.end() :]
            results.put(cut_closing_group(name) or name, "FAILED")
    return results.found


def tap(text: str) -> dict[str, Status]:
    """``ok 1 message``: the assertion's message, so tape's default messages collapse to one id."""
    results = Results(len(text))
    for line in newline_lines(text):
        if match := _TAP.match(line):
            results.put(match[2], "PASSED" if match[1] == "ok" else "FAILED")
    return results.found


def nested_tap(text: str) -> dict[str, Status]:
    """``ok 1 - name`` with sub-tests in braces -> ``outer :: inner``; a failure never becomes a pass again.

    Directives after a blank and a hash are cut, so ``# SKIP`` of a named test reads as its ``ok``.
    """
    results = Results(len(text))
    stack: list[str] = []
    for raw in lines_of(text):
        line = raw
        if not line.strip("}"):
            del stack[max(len(stack) - len(line), 0) :]
            continue
        opens = line.endswith("{")
        match = _TAP_DASH.match(line[:-1].rstrip() if opens else line)
        if match is None:
            continue
        directive = _TAP_COMMENT.search(match[2])
        said = match[2][: directive.start()] if directive else match[2]
        name = without_duration(said)
        if not name:
            continue
        full = " :: ".join((*stack, name))
        if any(mark in said.lower() for mark in ("# skip", "# todo")):
            results.put(full, "SKIPPED")
        elif match[1] == "ok":
            results.keep(full, "PASSED")
        else:
            results.put(full, "FAILED")
        if opens:
            stack.append(name)
    return results.found


_PASS_MARKS, _FAIL_MARKS, _SKIP_MARKS = "✔✓", "✘✖×", "○◌◦⚪"
_SKIP_TAGS = ("(skipped)", "[skip]", "[skipped]", "[pending]", "[todo]")


def marks(text: str) -> dict[str, Status]:
    """Any runner that marks its lines; a leading ``[tag]:`` is cut, and a skip tag anywhere makes a skip."""
    results = Results(len(text))
    for line in lines_of(text):
        name = without_duration(_without_tag(line[1:].strip()))
        if line[0] in _PASS_MARKS:
            results.keep(name, "PASSED")
        elif line[0] in _FAIL_MARKS:
            results.put(name, "FAILED")
        elif line[0] in _SKIP_MARKS:
            results.put(name, "SKIPPED")
        elif any(tag in line.lower() for tag in _SKIP_TAGS):
            for tag in _SKIP_TAGS:
                line = line.replace(tag, "")
            results.put(without_duration(line), "SKIPPED")
    return results.found


def _without_tag(body: str) -> str:
    if body.startswith("[") and "]:" in body:
        body = body.partition("]:")[2].strip()
    return body[1:].strip() if body.startswith(":") else body
