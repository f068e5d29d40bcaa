"""hspec's tree without ticks: two blanks per level, leaves are examples, failures are listed at the end."""

from __future__ import annotations

import re

from swe_rl_env.parsers.results import Results, Status

_NUMBER = re.compile(r"\d++\)\s++(.*)$")
_FAILED = re.compile(r"(?<=\s)FAILED\s*+\[\d++\]$")
_PENDING = re.compile(r"(?<=\s)(?:PENDING|SKIPPED)\b", re.IGNORECASE)
_STOP = ("To rerun use:", "Randomized with seed", "Finished in ", "Test suite ")
_BUILD_WORDS = (
    "Downloading", "Building", "Installing", "Completed", "Starting", "Preprocessing", "Configuring", "Linking",
    "Resolving dependencies", "Build profile", "In order, the following will be built", "Error:", "Test suite ",
    "Running ",
)  # fmt: skip
_GOLDEN = "Golden and Actual output didn't change"


def hspec_tree(text: str) -> dict[str, Status]:
    """``Module`` / ``  group`` / ``    example`` -> ``Module.group.example``."""
    lines = text.splitlines()
    results = Results(len(text))
    failures = next((i for i, line in enumerate(lines) if line.strip() == "Failures:"), len(lines))
    tree = [line for line in lines[_tree_start(lines) : failures] if line.strip() and line.strip() != _GOLDEN]
    depths = [len(line) - len(line.lstrip(" ")) for line in tree]
    path: list[tuple[int, str]] = []
    for index, line in enumerate(tree):
        name, status = _example(line.strip())
        level = depths[index] // 2
        while path and path[-1][0] >= level:
            path.pop()
        if name:
            path.append((level, name))
        if index + 1 == len(tree) or depths[index + 1] <= depths[index]:
            results.put(".".join(part for _, part in path), status)
    for full in _listed(lines[failures + 1 :]):
        results.put(full, "FAILED")
    return results.found


def _example(body: str) -> tuple[str, Status]:
    if match := _FAILED.search(body):
        return body[: match.start()].rstrip(), "FAILED"
    if match := _PENDING.search(body):
        return body[: match.start()].rstrip(), "SKIPPED"
    return body, "PASSED"


def _tree_start(lines: list[str]) -> int:
    """After ``Test suite x: RUNNING...``, else the first unindented line with a dot that is no build message."""
    for index, line in enumerate(lines):
        if line.startswith("Test suite ") and ": RUNNING..." in line:
            return index + 1
    for index, line in enumerate(lines):
        if line and not line.startswith(" ") and "." in line and not any(word in line for word in _BUILD_WORDS):
            return index
    return 0


def _listed(lines: list[str]) -> list[str]:
    found: list[str] = []
    for raw in lines:
        line = raw.strip()
        if line.startswith(_STOP):
            break
        if match := _NUMBER.match(line):
            found.append(".".join(part.strip() for part in match[1].split(",")))
    return found
