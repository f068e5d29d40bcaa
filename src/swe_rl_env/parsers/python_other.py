"""Python runners outside pytest: Django's and unittest's verbose lines, SymPy's own runner.

These names are not in the dataset's registry but its look-up reaches them, and rows of the first SWE-rebench use them.
"""

from __future__ import annotations

from swe_rl_env.parsers.pytest_ import short_summary
from swe_rl_env.parsers.results import Results, Status

_OK = (" ... ok", " ... OK", " ...  OK")
_SYMPY_TAILS: dict[str, Status] = {"E": "ERROR", "F": "FAILED", "ok": "PASSED"}
_ODD_TITLE = "--version is equivalent to version"


def django(text: str) -> dict[str, Status]:
    """``test (path.Class) ... ok``. With a docstring the runner prints it last, so the docstring becomes the id."""
    results = Results(len(text))
    previous: str | None = None
    for raw in text.split("\n"):
        line = raw.strip()
        if _ODD_TITLE in line:
            results.put(_ODD_TITLE, "PASSED")
        if " ... " in line:
            previous = line.partition(" ... ")[0]
        line = _django_pass(line, results)
        if " ... skipped" in line:
            results.put(line.partition(" ... skipped")[0], "SKIPPED")
        _django_failure(line, "FAIL", "FAILED", results)
        _django_failure(line, "ERROR", "ERROR", results)
        if line.startswith("ok") and previous is not None:
            results.put(previous, "PASSED")
    _django_interrupted(text, results)
    return results.found


def _django_pass(line: str, results: Results) -> str:
    for suffix in _OK:
        if line.endswith(suffix):
            if line.startswith("Applying sites.0002_alter_domain_unique...test_no_migrations"):
                line = line.split("...", 1)[-1].strip()
            results.put(line.rpartition(suffix)[0], "PASSED")
            break
    return line


def _django_failure(line: str, word: str, status: Status, results: Results) -> None:
    if line.endswith(f" ... {word}"):
        results.put(line.partition(f" ... {word}")[0], status)
    if line.startswith(f"{word}:"):
        words = line.split(None, 2)
        if len(words) > 1:
            results.put(words[1], status)


def _django_interrupted(text: str, results: Results) -> None:
    """Three known messages that the runner prints between a test's dots and its ``ok`` on the next line."""
    waiting: str | None = None
    last = ""
    for line in text.split("\n"):
        if line == "ok":
            for tail, message in (("/", " ... Internal Server Error: /"), (")", " ... System check identified no ")):
                name, found, rest = last.partition(message)
                if found and last.endswith(tail) and (tail == "/" or rest == "issues (0 silenced)"):
                    results.put(name, "PASSED")
            if waiting is not None and last.endswith(" silenced)."):
                results.put(waiting, "PASSED")
                waiting = None
        name, found, _rest = line.partition(" ... Testing against Django installed in ")
        if found and waiting is None:
            waiting = name
        last = line


def sympy(text: str) -> dict[str, Status]:
    """``test_x ok`` / ``F`` / ``E``, and the failure headings ``___ path.py:test ___``."""
    results = Results(len(text))
    for raw in text.split("\n"):
        heading = _sympy_heading(raw)
        if heading is not None:
            results.put(heading, "FAILED")
    for raw in text.split("\n"):
        line = raw.strip()
        if not line.startswith("test_"):
            continue
        if line.endswith(("[FAIL]", "[OK]")):
            line = line[: line.rfind("[")].strip()
        status = _SYMPY_TAILS.get(line.rpartition(" ")[2]) if " " in line else None
        if status is not None:
            results.put(line.split(None, 1)[0], status)
    return results.found


def _sympy_heading(line: str) -> str | None:
    """The middle of ``___ path.py:name ___``; the underscores may be missing, the blanks around it may not."""
    opens, closes = line.find(" "), line.rfind(" ")
    split = line.rfind(".py:", 0, closes)
    return line[opens + 1 : closes] if 0 <= opens < closes and split > opens else None


def seaborn(text: str) -> dict[str, Status]:
    """pytest lines that start with FAILED or PASSED, or hold PASSED as their second word."""
    results = Results(len(text))
    for line in text.split("\n"):
        words = line.split(None, 2)[:2]
        if len(words) < 2:
            continue
        if line.startswith("FAILED"):
            results.put(words[1], "FAILED")
        elif " PASSED " in line:
            if words[1] == "PASSED":
                results.put(words[0], "PASSED")
        elif line.startswith("PASSED"):
            results.put(words[1], "PASSED")
    return results.found


def matplotlib(text: str) -> dict[str, Status]:
    """pytest's summary with mouse buttons by number, as older releases of Python print them."""
    return short_summary(text.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))
