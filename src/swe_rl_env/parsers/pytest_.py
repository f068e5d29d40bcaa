"""pytest's short summary (``-rA``) and verbose lines, in the four ways the dataset's rows were read.

All but :func:`nebo` cut ids at the first blank: expected ids were made that way, so parametrised ids with blanks
share an entry and the last line decides.
"""

from __future__ import annotations

import re

from swe_rl_env.parsers.results import STATUSES, Results, Status, status_of

_COLOUR_REST = re.compile(r"\[\d+m")
_NO_CONTROLS = dict.fromkeys(range(1, 32))
_WORKER = re.compile(r"\[gw\d++\]\s++\[[^\]]*+\]\s++(PASSED|FAILED|SKIPPED|ERROR)(?!\w)\s++(.*)")
_FIRST = re.compile(r"(PASSED|FAILED|SKIPPED|ERROR)\s++(.*)")
_BEFORE_BRACKET = re.compile(r"(?<=\s)(PASSED|FAILED|SKIPPED|ERROR)\s++\[")
_ELAPSED = re.compile(r"\s++in\s++\d++(?:\.\d++)?s")


def _first_two(line: str) -> list[str]:
    """The first two words of a result line; the dash before a failure's message is no word."""
    if line.startswith("FAILED"):
        line = line.replace(" - ", " ")
    return line.split(None, 2)[:2]


def short_summary(text: str) -> dict[str, Status]:
    """``STATUS id ...`` -> the second word."""
    results = Results(len(text))
    for line in text.split("\n"):
        if line.startswith(STATUSES):
            words = _first_two(line)
            if len(words) == 2:
                results.put(words[1], status_of(words[0]))
    return results.found


def short_summary_options(text: str) -> dict[str, Status]:
    """As :func:`short_summary`; a bracketed absolute path is cut to its last part and what follows it is dropped."""
    results = Results(len(text))
    for line in text.split("\n"):
        if not line.startswith(STATUSES):
            continue
        words = _first_two(line)
        if len(words) == 2:
            results.put(_last_part(words[1]), status_of(words[0]))
    return results.found


def _last_part(test_id: str) -> str:
    opens, closes = test_id.find("["), test_id.rfind("]")
    if not 0 <= opens < closes:
        return test_id
    option = test_id[opens + 1 : closes]
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = "/" + option.rpartition("/")[2]
    return f"{test_id[:opens]}[{option}]"


_XFAIL = re.compile(r"^XFAIL(?=\s)|(?<=\s)XFAIL$", re.MULTILINE)


def xfail_as_pass(text: str) -> str:
    """The log with expected failures as passes, as SWE-bench and its relatives grade them (V2 does not)."""
    return _XFAIL.sub("PASSED", text)


def _cleaned(line: str) -> str:
    return _COLOUR_REST.sub("", line).translate(_NO_CONTROLS)


def coloured(text: str) -> dict[str, Status]:
    """As :func:`short_summary` without colours, plus old verbose lines (``id STATUS`` with the status last)."""
    results = Results(len(text))
    for raw in text.split("\n"):
        line = _cleaned(raw)
        if line.startswith(STATUSES):
            words = _first_two(line)
            if len(words) == 2:
                results.put(words[1], status_of(words[0]))
        elif line.endswith(STATUSES):
            words = line.split(None, 2)[:2]
            if len(words) == 2:
                results.put(words[0], status_of(words[1]))
    return results.found


def nebo(text: str) -> dict[str, Status]:
    """xdist lines, timed verbose lines, then summary lines; ids keep their blanks."""
    results = Results(len(text))
    for raw in text.splitlines():
        line = _cleaned(raw).strip()
        if match := _WORKER.match(line):
            results.put(match[2].partition(" in ")[0].strip(), status_of(match[1]))
        elif timed := _timed(line):
            results.put(*timed)
        elif match := _FIRST.match(line):
            results.put(match[2].partition(" in ")[0].strip(), status_of(match[1]))
    return results.found


def _timed(line: str) -> tuple[str, Status] | None:
    """``id STATUS [ 5%] in 0.01s`` -> id, STATUS: the first status word whose bracket is the line's last."""
    closes = line.rfind("]")
    if closes < 0 or not _ELAPSED.fullmatch(line, closes + 1):
        return None
    before = line.rfind("]", 0, closes)
    for match in _BEFORE_BRACKET.finditer(line):
        if before < match.end() - 1 < closes:
            name = line[: match.start()].rstrip()
            return (name, status_of(match[1])) if name else None
    return None


def ujson(text: str) -> dict[str, Status]:
    """``path::name STATUS ...`` -> ``name``; after the FAILURES banner only its headings are read.

    A heading counts when it is exactly 27 underscores wide on both sides, as in the log this reader was made for.
    """
    results = Results(len(text))
    rule = "_" * 27
    in_failures = False
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("=" * 35 + " FAILURES " + "=" * 35):
            in_failures = True
        elif in_failures:
            if len(line) >= 56 and line.startswith(rule + " ") and line.endswith(" " + rule):
                results.put(line[28:-28], "FAILED")
        else:
            _ujson_line(line, results)
    return results.found


_UJSON_WORDS: tuple[tuple[re.Pattern[str], Status], ...] = tuple(
    (re.compile(rf"(?<=\s){word}"), word) for word in ("PASSED", "FAILED", "SKIPPED", "ERROR")
)


def _ujson_line(line: str, results: Results) -> None:
    for pattern, status in _UJSON_WORDS:
        if match := pattern.search(line):
            name = line[: match.start()].rstrip().split("::")[-1]
            (results.keep if status == "PASSED" else results.put)(name, status)
            return
