"""docs/cases.md and the tests that carry its rows, read from their source.

``python -m tests.cases.rows`` writes the last column of the tables anew.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "cases.md"
_ROW = re.compile(r"^\| ([A-Z]\d+) \| (.*) \|([^|]*)\|$", re.MULTILINE)


def documented() -> dict[str, list[str]]:
    """Row id -> the test files that docs/cases.md names."""
    return {match[1]: re.findall(r"`([^`]+)`", match[3]) for match in _ROW.finditer(DOCS.read_text("utf-8"))}


@functools.cache
def carried() -> dict[str, list[str]]:
    """Row id -> the test files with a marker for it, sorted."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        source = path.read_text("utf-8")
        if "mark.case" not in source:
            continue
        for row in markers(source, str(path.relative_to(ROOT))):
            found.setdefault(row, set()).add(str(path.relative_to(ROOT / "tests")))
    return {row: sorted(files) for row, files in found.items()}


def markers(source: str, where: str) -> Iterator[str]:
    """The rows that ``pytest.mark.case(...)`` names anywhere in a module.

    A table of parameters may name them as ``cases=("D1",)`` and be marked with ``pytest.mark.case(*row.cases)``.

    Raises:
        ValueError: a row is not written out as text.
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        named = [keyword.value for keyword in node.keywords if keyword.arg == "cases"]
        rows = [row for value in named if isinstance(value, ast.Tuple) for row in value.elts]
        if ast.unparse(node.func) == "pytest.mark.case":
            rows += [argument for argument in node.args if not ast.unparse(argument).endswith(".cases")]
        for row in rows:
            if not (isinstance(row, ast.Constant) and isinstance(row.value, str)):
                raise ValueError(f"{where}:{node.lineno}: write the rows out as text")
            yield row.value


def updated() -> str:
    """docs/cases.md with the test files of today."""
    files = carried()

    def row(match: re.Match[str]) -> str:
        named = " ".join(f"`{file}`" for file in files.get(match[1], []))
        return f"| {match[1]} | {match[2]} | {named} |"

    return _ROW.sub(row, DOCS.read_text("utf-8"))


if __name__ == "__main__":
    DOCS.write_text(updated(), "utf-8")
