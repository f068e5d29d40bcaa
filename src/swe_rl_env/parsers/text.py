"""Cutting text apart in linear time: colour codes, time suffixes, closing groups.

Every pattern in this package either starts at a fixed anchor or guards a run of blanks with ``(?<!\\s)\\s++``
(a run is entered at its first character only, and never given back), so that no line costs more than its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ANSI = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|[@-Z\\\]^_])")
_BRACKET_TIME = re.compile(r"\[\s*+\d++(?:\.\d++)?\s*+m?s\s*+\]", re.IGNORECASE)
_PAREN_TIME = re.compile(r"\(\s*+\d++(?:\.\d++)?\s*+m?s\s*+\)", re.IGNORECASE)
_INNER_TIME = re.compile(r"(?<=\s)in\s++\d++(?:\.\d++)?\s++m?sec\b", re.IGNORECASE)
_GROUP_OPENS = re.compile(r"(?<!\s)\s++\(")


def strip_ansi(text: str) -> str:
    """Without terminal escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def lines_of(text: str) -> Iterator[str]:
    """Every line as ``str.splitlines`` cuts it, outer blanks removed, empty ones dropped."""
    for raw in text.splitlines():
        line = raw.strip()
        if line:
            yield line


def newline_lines(text: str) -> Iterator[str]:
    """Every line between newlines only (form feeds and carriage returns stay inside), outer blanks removed."""
    for raw in text.split("\n"):
        yield raw.strip()


def cut_bracket_time(name: str) -> str:
    """Without a trailing `` [1.34 ms]``."""
    return _cut_closing(name, "[", "]", _BRACKET_TIME)


def cut_paren_time(name: str) -> str:
    """Without a trailing `` (1.2s)``."""
    return _cut_closing(name, "(", ")", _PAREN_TIME)


def cut_inner_time(name: str) -> str:
    """Without `` in 29.08 msec`` anywhere."""
    kept: list[str] = []
    position = 0
    for match in _INNER_TIME.finditer(name):
        kept.append(name[position : match.start()].rstrip())
        position = match.end()
    return "".join((*kept, name[position:])) if kept else name


def _cut_closing(name: str, opens: str, closes: str, pattern: re.Pattern[str]) -> str:
    end = name.rstrip()
    if not end.endswith(closes):
        return name
    start = end.rfind(opens)
    return end[:start].rstrip() if start >= 0 and pattern.fullmatch(end, start) else name


def cut_tail(rest: str, pattern: re.Pattern[str], opens: str, *, blanks: int = 1) -> str:
    """``rest`` without a last group that starts with ``opens`` after blanks and fits ``pattern`` to the end.

    Args:
        rest: text that ends where the group would end.
        pattern: must match the whole group.
        opens: the group's first character.
        blanks: exactly that many blanks are removed before it; -1 for all.
    """
    start = rest.rfind(opens)
    if start < 1 or not rest[start - 1].isspace() or not pattern.fullmatch(rest, start):
        return rest
    return rest[:start].rstrip() if blanks < 0 else rest[: start - blanks]


def cut_closing_group(text: str) -> str | None:
    """``name (anything without a closing parenthesis)`` -> ``name``, cut at the first such parenthesis; else None.

    Of several opening ones the first counts that has no closing one before the end.
    """
    if not text.endswith(")"):
        return None
    after = text.rfind(")", 0, len(text) - 1)
    for match in _GROUP_OPENS.finditer(text, _run_start(text, after + 1)):
        if match.end() - 1 > after and match.end() < len(text) - 1:
            return text[: match.start()] if match.start() > 0 else None
    return None


def _run_start(text: str, position: int) -> int:
    while position > 0 and text[position - 1].isspace():
        position -= 1
    return max(position - 1, 0)


def positive(digits: str) -> bool:
    """Whether a count is above zero, however many digits a hostile log gives it."""
    return digits.strip("0") != ""


def count(digits: str) -> int:
    """A count as a number, capped instead of refused when it has thousands of digits."""
    return int(digits) if len(digits) < 19 else 10**18
