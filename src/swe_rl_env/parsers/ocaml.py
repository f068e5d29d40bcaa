"""Alcotest, dune's process log, inline marks and ocamlbuild's table."""

from __future__ import annotations

import re

from swe_rl_env.parsers.results import Results, Status
from swe_rl_env.parsers.text import lines_of, strip_ansi

_ALCOTEST = re.compile(r"\s*+\[([A-Z]++)\]\s++(.*?)(?<!\s)\s++(\d++)\s++(.+)$")
_ALCOTEST_BARE = re.compile(r"\s*+\[([A-Z]++)\]\s{2,}+(\d++)\s++(.+)$")
_ALCOTEST_WORDS: dict[str, Status] = {
    "OK": "PASSED", "PASS": "PASSED", "FAIL": "FAILED", "FAILED": "FAILED", "ERROR": "ERROR", "ERR": "ERROR",
    "SKIP": "SKIPPED", "SKIPPED": "SKIPPED", "TODO": "SKIPPED",
}  # fmt: skip
_RUNNING = re.compile(r"Running\[(\d++)\]:\s++\((.+)\)$")
_OUTPUT = re.compile(r"Output\[(\d++)\]:")
_INLINE = re.compile(r"\[([A-Za-z][A-Za-z0-9_-]*+)\]\s++(.+)$")
_INLINE_GROUPS: tuple[tuple[str, Status], ...] = (
    ("OK PASS PASSED SUCCESS", "PASSED"),
    ("SKIP SKIPPED TODO PENDING DISABLED", "SKIPPED"),
    ("FAIL FAILED ERROR EXCEPTION CRASH FATAL KO PANIC", "FAILED"),
)
_INLINE_WORDS: dict[str, Status] = {word: status for words, status in _INLINE_GROUPS for word in words.split()}
_COLOUR = re.compile(r"\x1b\[[0-9;]*+m")
_TABLE = re.compile(r"(PASSED|FAILED|SKIPPED|ERROR)\s++(.*)$")
_TABLE_WORDS: dict[str, Status] = {"PASSED": "PASSED", "FAILED": "FAILED", "SKIPPED": "SKIPPED", "ERROR": "ERROR"}
_GAP = re.compile(r"(?<!\s)\s{2,}")


def alcotest(text: str) -> dict[str, Status]:
    """``[OK]   suite   0   name.`` -> ``suite 0 name.``; a pass never replaces an earlier word."""
    results = Results(len(text))
    for raw in text.splitlines():
        line = raw.rstrip()
        if match := _ALCOTEST.match(line):
            parts = match.group(2, 3, 4)
        elif match := _ALCOTEST_BARE.match(line):
            parts = ("", match[2], match[3])
        else:
            continue
        status = _ALCOTEST_WORDS.get(match[1], "ERROR")
        (results.keep if status == "PASSED" else results.put)(" ".join(p.strip() for p in parts if p), status)
    return results.found


def dune(text: str) -> dict[str, Status]:
    """``Running[3]: (... ./x.exe)`` names a run, ``Output[3]:`` opens its output; words in it decide -> binary name."""
    results = Results(len(text))
    names: dict[int, str] = {}
    active: str | None = None
    seen: dict[str, None] = {}
    for line in lines_of(text):
        if match := _RUNNING.match(line):
            names[_number(match[1])] = _binary(match[2]) or f"run_{_number(match[1])}"
            active = None
        elif match := _OUTPUT.match(line):
            active = names.get(_number(match[1]))
        elif active:
            seen[active] = None
            upper = line.upper()
            if any(word in upper for word in ("FAIL", "ERROR", "EXCEPTION", "CRASH", "FATAL")):
                results.raise_to(active, "FAILED")
            elif "SKIP" in upper:
                results.raise_to(active, "SKIPPED")
            elif upper == "OK":
                results.raise_to(active, "PASSED")
    for name in seen:
        results.keep(name, "PASSED")
    return results.found


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 19 else hash(digits)


def _binary(command: str) -> str:
    last = command.rpartition("&&")[2].strip()
    if last.startswith("exec "):
        last = last[5:].strip()
    words = last.removeprefix("./").split(None, 1)
    return words[0].rpartition("/")[2] if words else ""


def inline(text: str) -> dict[str, Status]:
    """``[OK] name``, ``[FAIL] name`` and their kin; the worse word stays."""
    results = Results(len(text))
    for line in lines_of(text):
        match = _INLINE.match(line)
        status = _INLINE_WORDS.get(match[1].upper()) if match else None
        if match and status:
            results.raise_to(" ".join(match[2].split()), status)
    return results.found


def table(text: str) -> dict[str, Status]:
    """``PASSED  name   time`` in colour or not -> the first column; the worse word stays."""
    results = Results(len(text))
    for raw in text.splitlines():
        match = _TABLE.match(strip_ansi(_COLOUR.sub(" ", raw)).strip())
        if match:
            gap = _GAP.search(match[2])
            results.raise_to((match[2][: gap.start()] if gap else match[2]).strip(), _TABLE_WORDS[match[1]])
    return results.found
