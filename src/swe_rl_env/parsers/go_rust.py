"""``go test -v`` and ``cargo test``."""

from __future__ import annotations

from swe_rl_env.parsers.results import Results, Status
from swe_rl_env.parsers.text import newline_lines

_GO: dict[str, Status] = {"--- PASS: ": "PASSED", "--- FAIL: ": "FAILED", "--- SKIP: ": "SKIPPED"}
_CARGO: dict[str, Status] = {"ok": "PASSED", "FAILED": "FAILED"}


def gotest(text: str) -> dict[str, Status]:
    """``--- PASS: Name/sub (0.00s)`` at any depth -> ``Name/sub``. No package, so names of two packages collide."""
    results = Results(len(text))
    for line in newline_lines(text):
        status = _GO.get(line[:10])
        if status is not None and line.endswith(")"):
            end = line.rfind(" (", 11, len(line) - 2)
            if end > 0:
                results.put(line[10:end], status)
    return results.found


def cargo(text: str) -> dict[str, Status]:
    """``test path::name ... ok``. Ignored tests, names with blanks and `` - should panic`` lines are not read."""
    results = Results(len(text))
    for line in newline_lines(text):
        if not line.startswith("test"):
            continue
        words = line.split(None, 4)
        if len(words) == 4 and words[0] == "test" and words[2] == "..." and words[3] in _CARGO:
            results.put(words[1], _CARGO[words[3]])
    return results.found
