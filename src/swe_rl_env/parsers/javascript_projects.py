"""Runners of single JavaScript projects. Several of them print failures only, and ids are made from those."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict

from swe_rl_env.parsers.results import Results, Status
from swe_rl_env.parsers.text import strip_ansi

_JEST_RUN = " ./node_modules/.bin/jest "
_CALYPSO_MS = re.compile(r"\(\d++ms\)")
_CHROME = re.compile(r"Chrome\s[\d.]++[^\S\r\n]\(")
_GROUP_END = re.compile(r"\)[^\S\r\n]")
_NUMBERED = re.compile(r"\d++\)\s(.*)")
_KARMA = re.compile(r"(\s*)([✔✖]?)\s(.*)$")
_PDF_TIME = re.compile(r"\([\d.]++\s*+m?s\)")
_TAGS = re.compile(r"<(/?)(\w++)>")
_P5_FAILURE = re.compile(r"^[^\S\n]*+\d++\)", re.MULTILINE)
_P5_LONGEST = 1000


def calypso(text: str) -> dict[str, Status]:
    """Jest runs of one project -> ``suite - suite - title``, suites by their indentation."""
    results = Results(len(text))
    suites: list[tuple[str, int]] = []
    for run in text.split(_JEST_RUN)[1:]:
        for line in run.split("\n"):
            if line.startswith(("Test Suites", "  ● ")):
                break
            body = line.lstrip()
            depth = len(line) - len(body)
            if body.startswith(("✓", "✕")):
                title = _calypso_title(line, body) if depth else None
                if title is not None:
                    owner = " - ".join(name for name, _ in suites)
                    results.put(f"{owner} - {title}".strip(), "PASSED" if body[0] == "✓" else "FAILED")
            elif depth:
                while suites and suites[-1][1] >= depth:
                    suites.pop()
                suites.append((body.rstrip(), depth))
    return results.found


def _calypso_title(line: str, body: str) -> str | None:
    if not body[1:2].isspace():
        return None
    if _CALYPSO_MS.search(line) is None:
        return body[2:]
    start = body.rfind("(")
    return body[2:start] if _CALYPSO_MS.fullmatch(body, start) else None


def chart_js(text: str) -> dict[str, Status]:
    """Karma's ``Chrome 1.2 (Linux) title FAILED``; failures only."""
    text = strip_ansi(text)
    results = Results(len(text))
    line_end = -1
    for match in _CHROME.finditer(text):
        if match.end() <= line_end:
            continue  # the first browser of a line decides
        newline = text.find("\n", match.end())
        line_end = len(text) if newline < 0 else newline
        group = _GROUP_END.search(text, match.end() + 1, line_end)
        if group and text.endswith("FAILED", group.end(), line_end):
            results.put(text[group.end() : line_end - 6], "FAILED")
    return results.found


def marked(text: str) -> dict[str, Status]:
    """``3) title`` at the start of a line; failures only."""
    results = Results(len(text))
    for line in text.split("\n"):
        if match := _NUMBERED.match(line):
            results.put(match[1].strip(), "FAILED")
    return results.found


def karma(text: str) -> dict[str, Status]:
    """Marked lines below suites, from the browser's start to the summary -> ``suite > suite > title``.

    A suite is kept when the next one stands at the same depth; only a smaller depth removes one.
    """
    results = Results(len(text))
    depth, suites, started = -1, list[str](), False
    for line in text.split("\n"):
        if line.startswith("SUMMARY:"):
            break
        if "Starting browser" in line:
            started = True
        elif started and (match := _KARMA.match(line)):
            indent, mark, name = len(match[1]), match[2], match[3]
            if mark:
                results.put(" > ".join((*suites, name)), "PASSED" if mark == "✔" else "FAILED")
            elif indent > max(depth, 0):
                depth = indent
                suites.append(name)
            elif 0 < indent < depth:
                depth = indent
                del suites[-1:]
    return results.found


def react_pdf(text: str) -> dict[str, Status]:
    """``PASS path (1.2 s)`` and ``FAIL path``: whole files."""
    results = Results(len(text))
    for line in text.split("\n"):
        if line.startswith(("PASS", "FAIL")) and line[4:5].isspace():
            name = line[5:]
            start = name.rfind("(")
            if start > 0 and name[start - 1].isspace() and _PDF_TIME.fullmatch(name, start):
                name = name[: start - 1]
            results.put(name.rstrip(), "PASSED" if line[0] == "P" else "FAILED")
    return results.found


def p5js(text: str) -> dict[str, Status]:
    """``1) suite`` and deeper lines up to a colon -> the lines joined by colons; failures only.

    Objects, lists and tags that the tests print are removed first.
    """
    text = _without_tags(_without_data(strip_ansi(text)))
    results = Results(len(text))
    position = 0
    for match in _P5_FAILURE.finditer(text):
        if match.start() < position:
            continue
        colon = text.find(":", match.end(), match.end() + _P5_LONGEST + 1)
        if colon < 0:
            continue
        position = colon + 1
        lines = text[match.end() : colon].split("\n")
        if _deeper_and_deeper(lines):
            results.put(":".join(line.strip() for line in lines), "FAILED")
    return results.found


def _deeper_and_deeper(lines: list[str]) -> bool:
    last = 0
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if depth <= last:
            return False
        last = depth
    return True


def _without_data(text: str) -> str:
    kept: list[str] = []
    in_object = in_list = False
    for line in text.split("\n"):
        body = line.rstrip()
        if body.endswith("{"):
            in_object = True
        elif body.endswith("["):
            in_list = True
        elif body == "}" and in_object:
            in_object = False
        elif body == "]" and in_list:
            in_list = False
        elif not (in_object or in_list or (body[:1] + body[-1:] in ("{}", "[]") and len(body) > 1)):
            kept.append(line)
    return "\n".join(kept)


def _without_tags(text: str) -> str:
    """Without ``<tag> ... </tag>``; of nested equal tags those without an end of their own stay as bare openings."""
    opens: dict[str, list[int]] = defaultdict(list)
    closes: dict[str, list[int]] = defaultdict(list)
    openings: list[tuple[int, str]] = []
    for match in _TAGS.finditer(text):
        (closes if match[1] else opens)[match[2]].append(match.start())
        if not match[1]:
            openings.append((match.start(), match[2]))
    kept: list[str] = []
    position = 0
    for start, tag in openings:
        if start < position:
            continue
        end, depth = _balanced(opens[tag], closes[tag], start)
        if end < 0:
            continue
        kept += (text[position:start], f"<{tag}>" * depth)
        position = end + len(tag) + 3
    return "".join((*kept, text[position:]))


def _balanced(opens: list[int], closes: list[int], start: int) -> tuple[int, int]:
    """Where the closing tag stands that balances the one at ``start`` (or the last there is), and what stays open."""
    depth, opened, end = 0, bisect_left(opens, start), -1
    for index in range(bisect_left(closes, start), len(closes)):
        end = closes[index]
        now = bisect_left(opens, end, lo=opened)
        depth, opened = depth + now - opened - 1, now
        if depth <= 0:
            break
    return end, max(depth, 0)
