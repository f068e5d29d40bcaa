"""docs/security.md promises nothing without a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "security.md"
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_every_promise_names_tests_that_exist() -> None:
    promised = DOC.read_text().partition("## What is promised")[2].partition("## What is not promised")[0]
    rows = [line for line in promised.splitlines() if line.startswith("| ") and "---" not in line]
    rows = [row for row in rows if row != "| promise | tests |"]
    assert len(rows) > 20
    for row in rows:
        assert _TEST.search(row.rpartition(" | ")[2]), f"no test: {row}"


def test_every_named_test_exists() -> None:
    named = _TEST.findall(DOC.read_text())
    assert len(named) > 40
    missing = [f"{path}::{name}" for path, name in named if not _exists(path, name)]
    assert missing == []


def _exists(path: str, name: str) -> bool:
    file = ROOT / path
    definition = rf"^(async )?def {name + '[(]' if name else 'test_'}"
    return file.is_file() and re.search(definition, file.read_text(), re.MULTILINE) is not None
