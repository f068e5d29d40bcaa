"""Training rows as a Parquet table that ``datasets.load_dataset("parquet", data_files=...)`` reads, and back.

Log-probs are float32 in the engines, in the journal and here: a row that was written is read back bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.trace.sample import HarnessTrace

SCHEMA_VERSION = 1
_BATCH = 512


class StoredRow(msgspec.Struct, kw_only=True):
    """A training row and the rollout it belongs to."""

    rollout_id: str
    task_id: str
    agent: str
    group: int
    status: str
    row: HarnessTrace


def write_parquet(path: Path, rows: Sequence[StoredRow]) -> None:
    """Write rows. Columns: the ids and the mask as lists of int32 and int8, log-probs as lists of float32, ``reward``
    float64 or null, ``metadata`` as JSON text, and what :class:`StoredRow` says of the rollout.

    Raises:
        MissingDependency: pyarrow is not installed.
        ConfigError: a value that the columns cannot hold exactly.
    """
    pa, parquet = _pyarrow()
    schema = _schema(pa)
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, max(len(rows), 1), _BATCH):
            batch = [_record(row, start + i) for i, row in enumerate(rows[start : start + _BATCH])]
            try:
                table = pa.Table.from_pylist(batch, schema=schema)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise ConfigError(
                    f"rows {start} to {start + len(batch) - 1} do not fit the table: {error}.",
                    fix="Check the run with `drivetrain trace check`.",
                ) from error
            writer.write_table(table)


def read_parquet(path: Path) -> list[StoredRow]:
    """Read what :func:`write_parquet` wrote; rows equal those that were written.

    Raises:
        MissingDependency: pyarrow is not installed.
        ConfigError: no such file, no table of rows, or one of another schema version.
    """
    pa, parquet = _pyarrow()
    try:
        table = parquet.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(
            f"{path} cannot be read as Parquet: {error}.", fix="Name a file that `drivetrain trace export` wrote."
        ) from error
    if table.schema.remove_metadata() != _schema(pa):
        raise ConfigError(f"{path} is no table of drivetrain rows.", fix="Export the run again with --format parquet.")
    return [_stored(record, path) for record in table.to_pylist()]


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependency("pyarrow is not installed.", fix="Run: pip install 'drivetrain[export]'.") from error
    return pyarrow, parquet


def _schema(pa: Any) -> Any:
    return pa.schema(
        [
            pa.field("prompt_ids", pa.list_(pa.int32())),
            pa.field("response_ids", pa.list_(pa.int32())),
            pa.field("loss_mask", pa.list_(pa.int8())),
            pa.field("response_logprobs", pa.list_(pa.float32())),
            pa.field("reward", pa.float64()),
            pa.field("metadata", pa.string()),
            pa.field("rollout_id", pa.string()),
            pa.field("task_id", pa.string()),
            pa.field("agent", pa.string()),
            pa.field("group", pa.int32()),
            pa.field("status", pa.string()),
            pa.field("schema_version", pa.int32()),
        ]
    )


def _record(stored: StoredRow, index: int) -> dict[str, Any]:
    row = stored.row
    wide = np.asarray(row.response_logprobs, dtype=np.float64)
    with np.errstate(over="ignore"):
        packed = wide.astype(np.float32)
    if not np.array_equal(packed.astype(np.float64), wide, equal_nan=True):
        raise ConfigError(
            f"row {index} (rollout {stored.rollout_id}) has a log-prob that is no float32.",
            fix="Export the log-probs that the engine returned.",
        )
    return {
        "prompt_ids": row.prompt_ids,
        "response_ids": row.response_ids,
        "loss_mask": row.loss_mask,
        "response_logprobs": packed,
        "reward": row.reward,
        "metadata": msgspec.json.encode(row.metadata).decode(),
        "rollout_id": stored.rollout_id,
        "task_id": stored.task_id,
        "agent": stored.agent,
        "group": stored.group,
        "status": stored.status,
        "schema_version": SCHEMA_VERSION,
    }


def _stored(record: dict[str, Any], path: Path) -> StoredRow:
    if record["schema_version"] != SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema version {record['schema_version']}, not {SCHEMA_VERSION}.",
            fix="Read it with the drivetrain that wrote it.",
        )
    row = HarnessTrace(
        prompt_ids=record["prompt_ids"],
        response_ids=record["response_ids"],
        loss_mask=record["loss_mask"],
        response_logprobs=record["response_logprobs"],
        reward=record["reward"],
        metadata=msgspec.json.decode(record["metadata"], type=dict[str, Any]),
    )
    return StoredRow(
        rollout_id=record["rollout_id"],
        task_id=record["task_id"],
        agent=record["agent"],
        group=record["group"],
        status=record["status"],
        row=row,
    )
