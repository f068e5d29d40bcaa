"""Export what a run recorded to a `datasets` table, and read it again, log-probs bit by bit.

    python examples/export_to_datasets.py runs/first --out rows.parquet
    python examples/export_to_datasets.py --short         # makes a small run first, offline

`drivetrain trace export` writes this and four other formats from the command line (docs/exports.md).
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from short import call, scripted_run

from drivetrain.errors import ConfigError
from drivetrain.rollout.run_dir import RunDir
from drivetrain.trace.export.parquet import StoredRow, write_parquet


def main() -> None:
    """Export, load, and say what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="a run folder")
    parser.add_argument("--out", type=Path, default=Path("rows.parquet"))
    parser.add_argument("--short", action="store_true", help="a quarter of a minute, offline")
    args = parser.parse_args()
    if args.short:
        with TemporaryDirectory() as temporary:
            run, _ = asyncio.run(scripted_run(Path(temporary), [call("ls")]))
            export(run, Path(temporary) / "rows.parquet")
    elif args.run is None:
        raise ConfigError("no run is named.", fix="Give a run folder, or --short.")
    else:
        export(RunDir.open(args.run), args.out)


def export(run: RunDir, path: Path) -> None:
    """Every row of the run with the rollout that it belongs to, as one table."""
    from datasets import Dataset

    rows = [
        StoredRow(
            rollout_id=result.rollout_id,
            task_id=result.task_id,
            agent=result.agent,
            group=result.group,
            status=result.status,
            row=row,
        )
        for result in run.results()
        for row in result.rows
    ]
    write_parquet(path, rows)
    table = Dataset.from_parquet(str(path), cache_dir=str(path.parent / "datasets"))
    trained = sum(sum(mask) for mask in table["loss_mask"])
    print(f"{path.name}: {table.num_rows} rows, {trained} trained tokens, columns {', '.join(table.column_names)}")
    assert [row.row.response_ids for row in rows] == [list(ids) for ids in table["response_ids"]]


if __name__ == "__main__":
    main()
