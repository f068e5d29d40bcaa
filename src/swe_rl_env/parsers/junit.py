"""JUnit XML in the middle of a log: whole documents read by a parser, or ``<testcase>`` fragments read as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from swe_rl_env.parsers.results import Results, Status


@dataclass
class Case:
    """One ``<testcase>``. ``parent`` numbers its parent element in document order; 0 is the document's root."""

    attributes: dict[str, str]
    parent: int
    parent_tag: str
    children: set[str] = field(default_factory=set)

    def status(self, *order: tuple[str, Status]) -> Status:
        """The status of the first child element in ``order`` that is there, else PASSED."""
        return next((status for tag, status in order if tag in self.children), "PASSED")


FAILURE: tuple[str, Status] = ("failure", "FAILED")
ERROR: tuple[str, Status] = ("error", "ERROR")
SKIPPED: tuple[str, Status] = ("skipped", "SKIPPED")


def cases_of(document: str) -> list[Case] | None:
    """Every ``<testcase>`` below the root of one XML document, in document order; None when it is malformed.

    A document type is refused (no report has one), so entities cannot be used to blow the text up.
    """
    cases: list[Case] = []
    stack: list[tuple[str, int, Case | None]] = []
    seen = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal seen
        case: Case | None = None
        if stack:
            parent_tag, parent, owner = stack[-1]
            if owner is not None:
                owner.children.add(tag)
            if tag == "testcase":
                case = Case(attributes, parent, parent_tag)
                cases.append(case)
        stack.append((tag, seen, case))
        seen += 1

    return cases if read_xml(document, start, lambda _tag: stack.pop()) else None


def read_xml(document: str, start: Callable[[str, dict[str, str]], object], end: Callable[[str], object]) -> bool:
    """Run an XML document through two handlers; False when it is malformed or has a document type."""
    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartElementHandler = start
    parser.EndElementHandler = end

    def refuse(*_: object) -> None:
        raise ValueError("document type")

    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(document, True)
    except (expat.ExpatError, ValueError):  # UnicodeEncodeError (lone surrogates) is a ValueError
        return False
    return True


def _documents(text: str, ends: str) -> Iterator[str]:
    position = 0
    while (start := text.find("<?xml", position)) >= 0:
        end = text.find(ends, start)
        if end < 0:
            return
        position = end + len(ends)
        yield text[start:position]


def combined_reports(text: str) -> dict[str, Status]:
    """Every ``<?xml ... </testsuites>`` document -> ``classname::name``; a later one overwrites."""
    results = Results(len(text))
    for document in _documents(text, "</testsuites>"):
        for case in cases_of(document) or ():
            name, owner = case.attributes.get("name"), case.attributes.get("classname")
            results.put(f"{owner}::{name}", case.status(FAILURE, SKIPPED, ERROR))
    return results.found


def r_junit(text: str) -> dict[str, Status]:
    """The first document -> ``classname::name``; only test cases of a ``<testsuite>`` that is not the root."""
    results = Results(len(text))
    start = text.find("<?xml")
    if start < 0:
        return results.found
    end = text.find("</testsuites>", start)
    document = text[start:] if end < 0 else text[start : end + len("</testsuites>")]
    cases = [c for c in cases_of(document) or () if c.parent_tag == "testsuite" and c.parent > 0]
    for case in sorted(cases, key=lambda c: c.parent):
        name, owner = case.attributes.get("name", ""), case.attributes.get("classname", "")
        results.put(f"{owner}::{name}" if owner else name, case.status(FAILURE, ERROR, SKIPPED))
    return results.found


def gradle_reports(text: str) -> dict[str, Status]:
    """Blocks from a line ``<?xml`` to a line ``</testsuite>`` -> ``name (classname)``; malformed ones are skipped."""
    results = Results(len(text))
    block: list[str] | None = None
    for line in text.split("\n"):
        head = line.lstrip()
        if head.startswith("<?xml"):
            block = [line]
        elif block is not None:
            block.append(line)
            if head.startswith("</testsuite>"):
                for case in cases_of("\n".join(block)) or ():
                    name, owner = case.attributes.get("name", ""), case.attributes.get("classname", "")
                    results.put(f"{name} ({owner})" if owner and name else name, case.status(SKIPPED, FAILURE, ERROR))
                block = None
    return results.found


_ATTRIBUTE = re.compile(r'(?<!\w)(\w++)="([^"]*+)"')
_UNCLOSED_WINDOW = 4096


class _Next:
    """Where a string occurs next, for positions that only grow: every character is searched once."""

    def __init__(self, text: str, what: str) -> None:
        self._text, self._what, self._at = text, what, -2

    def after(self, position: int) -> int:
        """The first occurrence at or after ``position``; the text's length when there is none."""
        if self._at < position:
            found = self._text.find(self._what, position)
            self._at = len(self._text) if found < 0 else found
        return self._at


def fragments(text: str) -> dict[str, Status]:
    """``<testcase>`` tags anywhere, well-formed or not -> ``classname name``, entities left as they are."""
    results = Results(len(text))
    opens, tag_end, closes = _Next(text, "<testcase"), _Next(text, ">"), _Next(text, "</testcase>")
    marks: list[tuple[_Next, int, Status]] = [
        (_Next(text, "<failure"), 8, "FAILED"),
        (_Next(text, "<error"), 6, "ERROR"),
        (_Next(text, "<skipped"), 8, "SKIPPED"),
    ]
    size, position = len(text), 0
    while (start := opens.after(position)) < size:
        position = start + 9
        if position < size and (text[position].isalnum() or text[position] == "_"):
            continue
        end = tag_end.after(position)
        if end == size:
            break
        raw = text[start + 9 : end]
        attributes = dict(_ATTRIBUTE.findall(raw))
        position = end + 1
        name, owner = attributes.get("name"), attributes.get("classname", "")
        if not name:
            continue
        status: Status = "PASSED"
        if not raw.rstrip().endswith("/"):
            close = closes.after(position)
            limit = close if close < size else min(size, position + _UNCLOSED_WINDOW)
            status = next((s for m, width, s in marks if m.after(position) + width <= limit), "PASSED")
            position = close + 11 if close < size else position
        results.put(f"{owner} {name}".strip() if owner else name, status)
    return results.found
