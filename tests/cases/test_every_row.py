"""Each row of docs/cases.md has a test that carries it, and the page names the files (case rows A to G)."""

from __future__ import annotations

import pytest

from tests.cases.rows import carried, documented, markers

ROWS = documented()


def test_the_page_lists_the_rows() -> None:
    families = "".join(sorted({row[0] for row in ROWS}))
    assert families == "ABCDEFG"
    assert len(ROWS) >= 40


@pytest.mark.parametrize("row", ROWS)
def test_a_test_carries_the_row(row: str) -> None:
    files = carried().get(row, [])
    assert files, f"no test is marked @pytest.mark.case({row!r})"
    assert ROWS[row] == files, "run: python -m tests.cases.rows"


def test_markers_name_known_rows() -> None:
    unknown = {row: files for row, files in carried().items() if row not in ROWS}
    assert unknown == {}, "add the row to docs/cases.md"


def test_markers_are_read_wherever_they_stand() -> None:
    source = """
A = pytest.mark.case("A1")
@pytest.mark.case("B1", "B2")
@pytest.mark.parametrize("x", [pytest.param(1, marks=[pytest.mark.case("C1")])])
def test_x(x): ...
TABLE = [Row(cases=("E1", "E2"))]
each = pytest.mark.case(*row.cases)
# pytest.mark.case("D1")
text = 'pytest.mark.case("D2")'
"""
    assert sorted(markers(source, "x.py")) == ["A1", "B1", "B2", "C1", "E1", "E2"]
    with pytest.raises(ValueError, match=r"x\.py:1"):
        list(markers("pytest.mark.case(*rows)", "x.py"))
