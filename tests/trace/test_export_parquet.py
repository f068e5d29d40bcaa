"""Parquet: what was written is read back exactly, and ``datasets`` reads it too."""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.trace.export.parquet import StoredRow, read_parquet, write_parquet
from drivetrain.trace.sample import HarnessTrace, rows_of
from tests.trace.test_graph_properties import play

pq = pytest.importorskip("pyarrow.parquet")

ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
logprob = st.floats(max_value=0.0, width=32, allow_nan=False, allow_infinity=False)
text = st.text(max_size=6)
metadata = st.dictionaries(
    text,
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
rewards = st.none() | st.floats(allow_nan=False)


@st.composite
def stored_rows(draw: st.DrawFn) -> StoredRow:
    response = draw(ids)
    size = len(response)
    row = HarnessTrace(
        prompt_ids=draw(ids),
        response_ids=response,
        loss_mask=draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)),
        response_logprobs=draw(st.lists(logprob, min_size=size, max_size=size)),
        reward=draw(rewards),
        metadata=draw(metadata),
    )
    return StoredRow(
        rollout_id=draw(text),
        task_id=draw(text),
        agent=draw(text),
        group=draw(st.integers(0, 99)),
        status="ok",
        row=row,
    )


def stored(row: HarnessTrace) -> StoredRow:
    return StoredRow(rollout_id="r", task_id="t", agent="a", group=3, status="ok", row=row)


def bits(row: StoredRow) -> bytes:
    return np.asarray(row.row.response_logprobs, dtype=np.float64).tobytes()


@settings(max_examples=60, deadline=None)
@given(st.lists(stored_rows(), max_size=5))
def test_round_trip_is_lossless(rows: list[StoredRow]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        write_parquet(path, rows)
        again = read_parquet(path)
    assert again == rows
    assert [bits(row) for row in again] == [bits(row) for row in rows]
    for before, after in zip(rows, again, strict=True):
        assert type(after.row.reward) is type(before.row.reward)


def test_many_rows_keep_their_order(tmp_path: Path) -> None:
    rows = [
        stored(HarnessTrace(prompt_ids=[i], response_ids=[], loss_mask=[], response_logprobs=[])) for i in range(1300)
    ]
    write_parquet(tmp_path / "rows.parquet", rows)
    assert read_parquet(tmp_path / "rows.parquet") == rows


def test_datasets_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    steps: list[dict[str, Any]] = [
        {"history": i, "action": action, "delivered": True, "label": "agent", "tool": False}
        for i, action in enumerate(["continue", "branch", "repeat", "new", "continue"])
    ]
    rows = [*rows_of(play(steps).graph, reward=None), *rows_of(play(steps[:1]).graph, reward=0.25)]
    path = tmp_path / "rows.parquet"
    write_parquet(path, [stored(row) for row in rows])
    table = datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "cache"), split="train")
    features = {name: str(feature) for name, feature in table.features.items()}
    for name, kind in (("prompt_ids", "int32"), ("loss_mask", "int8"), ("response_logprobs", "float32")):
        assert features[name] == f"List(Value('{kind}'))"
    assert features["reward"] == "Value('float64')"
    assert table["reward"] == [row.reward for row in rows]
    assert table["response_ids"] == [row.response_ids for row in rows]
    for row, logprobs in zip(rows, table["response_logprobs"], strict=True):
        assert np.asarray(logprobs, np.float32).tobytes() == np.asarray(row.response_logprobs, np.float32).tobytes()


@pytest.mark.parametrize("value", [-0.1, -1e300, -1e-60])
def test_a_logprob_that_is_no_float32_is_refused(value: float, tmp_path: Path) -> None:
    row = HarnessTrace(prompt_ids=[1], response_ids=[2], loss_mask=[1], response_logprobs=[value])
    with pytest.raises(ConfigError, match="no float32"):
        write_parquet(tmp_path / "rows.parquet", [stored(row)])


@pytest.mark.parametrize("ids", [[2**31], [-(2**40)]])
def test_an_id_that_does_not_fit_is_refused(ids: list[int], tmp_path: Path) -> None:
    row = HarnessTrace(prompt_ids=ids, response_ids=[2], loss_mask=[1], response_logprobs=[-1.0])
    with pytest.raises(ConfigError, match="do not fit"):
        write_parquet(tmp_path / "rows.parquet", [stored(row)])


def test_ungraded_is_null_and_nan_is_nan(tmp_path: Path) -> None:
    rows = [
        stored(HarnessTrace(prompt_ids=[1], response_ids=[2], loss_mask=[1], response_logprobs=[-1.0], reward=reward))
        for reward in (None, math.nan, 0.0)
    ]
    write_parquet(tmp_path / "rows.parquet", rows)
    none, nan, zero = (row.row.reward for row in read_parquet(tmp_path / "rows.parquet"))
    assert none is None and nan is not None and math.isnan(nan) and zero == 0.0


def test_foreign_and_future_files_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    path = tmp_path / "rows.parquet"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_parquet(path)
    path.write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_parquet(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(ConfigError, match="no table of drivetrain rows"):
        read_parquet(path)
    write_parquet(path, [stored(HarnessTrace(prompt_ids=[1], response_ids=[], loss_mask=[], response_logprobs=[]))])
    table = pq.read_table(path)
    index = table.schema.get_field_index("schema_version")
    pq.write_table(table.set_column(index, "schema_version", pa.array([2], pa.int32())), path)
    with pytest.raises(ConfigError, match="schema version 2"):
        read_parquet(path)


def test_missing_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"drivetrain\[export\]"):
        write_parquet(tmp_path / "rows.parquet", [])
