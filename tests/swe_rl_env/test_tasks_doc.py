"""The validation in the documentation is of every task of this package, in both kinds of sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_rl_env import load_tasks
from swe_rl_env.grading.campaign_report import BEGIN, END

DOCUMENT = Path(__file__).parents[2] / "docs" / "tasks.md"


@pytest.mark.case("G4")
def test_the_table_in_the_docs_covers_every_task() -> None:
    table, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "]
    head, *lines = rows
    assert [c for c in head if c.endswith("gold")] == ["local: gold", "docker: gold"]
    assert {line[0] for line in lines} == {task.instance_id for task in load_tasks(include_quarantined=True)}
    for line in lines:
        cells = dict(zip(head, line, strict=True))
        assert (cells["local: gold"], cells["local: no-op"]) == ("3/3", "3/3"), line
        if (cells["docker: gold"], cells["docker: no-op"], cells["result"]) != ("3/3", "3/3", "fit"):
            assert line[0] in rest, f"below the table nothing explains {line}"
