"""The schema documents are those of the code, and what is written obeys them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import jsonschema
import msgspec
import pytest

from drivetrain.journal.writer import Journal
from drivetrain.rollout.run_dir import RunDir
from drivetrain.trace.export.parquet import StoredRow
from tests.cli.test_export import add, moves
from tests.docs.schemas import DOCUMENTS, FOLDER, JOURNAL, ROWS, RUN, document, spelled
from tests.trace.test_graph_properties import play


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_document_is_that_of_the_code(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text() == spelled(name), "write it anew: python -m tests.docs.schemas"
    jsonschema.Draft202012Validator.check_schema(document(name))


def test_no_other_document_is_there() -> None:
    """Documents of older versions stay: files of theirs are still read."""
    current = {f"{name}.json" for name in DOCUMENTS}
    versions = {name.rpartition("-")[0] for name in current}
    assert current <= {path.name for path in FOLDER.glob("*.json")}
    assert {path.name.rpartition("-")[0] for path in FOLDER.glob("*.json")} == versions


async def test_what_is_written_obeys_them(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    run.write_info({"model": None})
    journal = Journal(run.journal)
    await add(run, journal, "good", play(moves("continue", "branch")), reward=1.0)
    journal.close()
    with sqlite3.connect(run.journal) as db:
        turns = [msgspec.json.decode(record) for (record,) in db.execute("SELECT record FROM turns")]
    lines = [msgspec.json.decode(line) for line in (run.path / "results.jsonl").read_bytes().splitlines()]
    rows = [
        msgspec.to_builtins(StoredRow(rollout_id="r", task_id="t", agent="a", group=0, status="ok", row=row))
        for row in run.results()[0].rows
    ]
    for name, found in (
        (f"journal-turn-{JOURNAL}", turns),
        (f"run-result-{RUN}", lines),
        (f"export-row-{ROWS}", rows),
    ):
        assert found
        for each in found:
            jsonschema.validate(each, document(name))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**lines[0], "status": "fine"}, document(f"run-result-{RUN}"))
