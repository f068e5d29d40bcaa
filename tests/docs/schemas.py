"""The schema documents of docs/schemas, made from the types that write the files.

``python -m tests.docs.schemas`` writes them anew. Raise the version of what changed in a way that readers must know of.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.gateway.policy import SessionPolicy
from drivetrain.journal import records
from drivetrain.journal.schema import SCHEMA_VERSION as JOURNAL
from drivetrain.rollout.result import RolloutResult
from drivetrain.trace.export.parquet import SCHEMA_VERSION as ROWS
from drivetrain.trace.export.parquet import StoredRow
from drivetrain.trace.provenance import Provenance

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
RUN = 1
"""Version of the lines of a run folder."""

DOCUMENTS: dict[str, tuple[Any, str]] = {
    f"journal-turn-{JOURNAL}": (records._Record, "column `record` of the table `turns` of journal.sqlite, JSON"),
    f"journal-policy-{JOURNAL}": (SessionPolicy, "column `policy` of the table `sessions` of journal.sqlite, msgpack"),
    f"journal-provenance-{JOURNAL}": (Provenance, "`detail` of events of kind `provenance` of journal.sqlite, JSON"),
    f"run-result-{RUN}": (RolloutResult, "a line of results.jsonl of a run folder; `rows` is empty there"),
    f"export-row-{ROWS}": (StoredRow, "a line of `drivetrain trace export --format rows`"),
}


def document(name: str) -> dict[str, Any]:
    """A JSON Schema (2020-12) with a title that says what it describes."""
    described, about = DOCUMENTS[name]
    schema = _without_docstrings(msgspec.json.schema(described, schema_hook=_other))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": name, "title": about, **schema}


def _other(described: Any) -> dict[str, Any]:
    raise NotImplementedError(described)  # no type of another library is in these files


def _without_docstrings(value: Any) -> Any:
    """They explain fields at length, and say so better in the reference."""
    if isinstance(value, dict):
        return {key: _without_docstrings(part) for key, part in value.items() if key != "description"}
    return [_without_docstrings(part) for part in value] if isinstance(value, list) else value


def spelled(name: str) -> str:
    """The file's text."""
    return json.dumps(document(name), indent=2) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in DOCUMENTS:
        (FOLDER / f"{each}.json").write_text(spelled(each))
