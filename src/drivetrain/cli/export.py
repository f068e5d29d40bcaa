"""``drivetrain trace export``: a run in the formats of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import typer

from drivetrain.cli.console import out, print_json, tell
from drivetrain.errors import ConfigError
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.trace.export.atif import trajectories
from drivetrain.trace.export.files import check_free, written_whole
from drivetrain.trace.export.info import RolloutInfo
from drivetrain.trace.export.openenv import trace_dict
from drivetrain.trace.export.parquet import StoredRow, write_parquet
from drivetrain.trace.export.sft import sft_lines
from drivetrain.trace.export.sft_tokens import sft_token_lines
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.labels import relabelled
from drivetrain.trace.provenance import session_provenance, turn_provenance
from drivetrain.trace.sample import HarnessTrace
from drivetrain.training.rows import is_trainable


class Format(StrEnum):
    """What a run can be exported to."""

    OPENENV = "openenv"
    ATIF = "atif"
    SFT = "sft"
    SFT_TOKENS = "sft-tokens"
    PARQUET = "parquet"
    ROWS = "rows"


_NAMES = {
    Format.OPENENV: "openenv.jsonl",
    Format.ATIF: "atif",
    Format.SFT: "sft.jsonl",
    Format.SFT_TOKENS: "sft-tokens.jsonl",
    Format.PARQUET: "rows.parquet",
    Format.ROWS: "rows.jsonl",
}


def export(
    run_dir: Path = typer.Argument(metavar="RUN", help="Run folder that `drivetrain rollout` wrote."),
    format_name: str = typer.Option(..., "--format", "-f", help=f"One of: {', '.join(Format)}."),
    target: Path | None = typer.Option(
        None, "--out", "-o", help="File, or folder to write into; default RUN/exports. atif always takes a folder."
    ),
    only_trainable: bool = typer.Option(
        False, "--only-trainable", help="Only graded rollouts, and of these only what is trained."
    ),
    force: bool = typer.Option(False, "--force", help="Overwrite files that exist."),
    json_output: bool = typer.Option(False, "--json", help="Say what was written as JSON."),
) -> None:
    """Write what a run recorded for another tool.

    openenv: one line per rollout with an OpenEnv 0.10 TrainingTrace (exact prompt and sampled ids, log-probs, masks),
    the reward beside it.

    atif: one trajectory file per conversation, as Harbor's viewers and tools read.

    sft: one line per conversation with `messages` and `tools`, as TRL's SFTTrainer reads.

    sft-tokens: one line per row with `input_ids` and `labels`, the very tokens that were sampled; SFTTrainer too.

    parquet: training rows; read them with datasets.load_dataset("parquet", data_files=FILE).

    rows: the same rows as JSON lines.

    Example: drivetrain trace export runs/20261130-221302 --format parquet --only-trainable

    A turn that cannot be exported as it is gets masked or left out, and is named on stderr. Files appear whole or not
    at all.
    """
    chosen = _format(format_name)
    run = RunDir.open(run_dir)
    job = _Job(run, [r for r in run.results() if is_trainable(r) or not only_trainable], only_trainable)
    path = _target(chosen, target, run)
    if chosen is Format.ATIF:
        counts = _write_atif(path, job, force)
    else:
        check_free([path], force=force)
        with written_whole(path) as temporary:
            counts = _WRITERS[chosen](temporary, job)
    if json_output:
        print_json({"path": str(path), "format": chosen.value, **counts})
    else:
        said = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
        out.print(f"{path}: {said}", markup=False, highlight=False, soft_wrap=True)


def _format(name: str) -> Format:
    try:
        return Format(name)
    except ValueError:
        raise ConfigError(f"there is no format {name!r}.", fix=f"Choose one of: {', '.join(Format)}.") from None


def _target(chosen: Format, path: Path | None, run: RunDir) -> Path:
    """Where to write: a folder gets a file of the format's own name; atif is a folder of files."""
    if path is None:
        return run.path / "exports" / _NAMES[chosen]
    if chosen is Format.ATIF:
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file, and atif writes several.", fix="Name a folder with --out.")
        return path
    return path / _NAMES[chosen] if path.is_dir() else path


class _Job(msgspec.Struct, frozen=True):
    """What is exported."""

    run: RunDir
    results: list[RolloutResult]
    only_trainable: bool

    def traced(self) -> Iterator[tuple[RolloutResult, TraceGraph]]:
        """Rollouts that made model calls, each with its graph from the journal and the labels inferred from it."""
        called = [result for result in self.results if result.session_id]
        if called:
            reader = JournalReader(self.run.journal)
            rules = Selection.read(self.run).label_rules
            for result in called:
                graph = reader.graph(result.session_id, session_tag(result.session_id))
                yield result, relabelled(graph, hints=rules.get(result.agent, ()))

    def info(self, result: RolloutResult) -> RolloutInfo:
        """What an export says about a rollout."""
        version = str((result.harness.get("versions") or {}).get("agent", "unknown"))  # "pi 1.6.0"
        return RolloutInfo(
            rollout_id=result.rollout_id,
            session_id=result.session_id,
            task_id=result.task_id,
            agent=result.agent,
            agent_version=version.removeprefix(f"{result.agent} "),
            group=result.group,
            status=result.status,
            reward=result.reward,
            provenance=JournalReader(self.run.journal).provenance(result.session_id),
        )

    def rows(self) -> list[StoredRow]:
        """Every row with its rollout; ``provenance`` in its metadata says where its turns come from."""
        return [
            StoredRow(
                rollout_id=result.rollout_id,
                task_id=result.task_id,
                agent=result.agent,
                group=result.group,
                status=result.status,
                row=row,
            )
            for result in self.results
            for row in self._rows(result)
        ]

    def _rows(self, result: RolloutResult) -> list[HarnessTrace]:
        if not result.session_id:
            return result.rows
        reader = JournalReader(self.run.journal)
        graph = reader.graph(result.session_id, session_tag(result.session_id))
        origin = reader.provenance(result.session_id)
        rows = []
        for row in result.rows:
            turns = [graph[number] for number in row.metadata.get("turns", ()) if number in graph]
            said = session_provenance(origin, turns) | {"turns": [turn_provenance(turn) for turn in turns]}
            rows.append(msgspec.structs.replace(row, metadata={**row.metadata, "provenance": said}))
        return rows


def _write_openenv(path: Path, job: _Job) -> dict[str, int]:
    turns = trained = faults = 0

    def lines() -> Iterator[dict[str, Any]]:
        nonlocal turns, trained, faults
        for result, graph in job.traced():
            trace, findings = trace_dict(graph, result.rows, only_trainable=job.only_trainable)
            for finding in findings:
                tell(f"{result.rollout_id}: {finding}")
            turns += len(trace["turns"])
            trained += sum(sum(turn["loss_mask"]) for turn in trace["turns"])
            faults += len(findings)
            yield {**msgspec.to_builtins(job.info(result)), "trace": trace, "findings": msgspec.to_builtins(findings)}

    count = _write_lines(path, lines())
    return {"traces": count, "turns": turns, "trained_tokens": trained, "findings": faults}


def _write_sft(path: Path, job: _Job) -> dict[str, int]:
    lines = (
        line
        for result, graph in job.traced()
        for line in sft_lines(graph, job.info(result), result.rows, only_trainable=job.only_trainable)
    )
    return {"conversations": _write_lines(path, lines)}


def _write_sft_tokens(path: Path, job: _Job) -> dict[str, int]:
    rows = [row for result in job.results for row in result.rows]
    return {"rows": _write_lines(path, sft_token_lines(rows))}


def _write_parquet(path: Path, job: _Job) -> dict[str, int]:
    write_parquet(path, job.rows())
    return _row_counts(job)


def _write_rows(path: Path, job: _Job) -> dict[str, int]:
    _write_lines(path, job.rows())
    return _row_counts(job)


_WRITERS: dict[Format, Callable[[Path, _Job], dict[str, int]]] = {
    Format.OPENENV: _write_openenv,
    Format.SFT: _write_sft,
    Format.SFT_TOKENS: _write_sft_tokens,
    Format.PARQUET: _write_parquet,
    Format.ROWS: _write_rows,
}


def _write_atif(folder: Path, job: _Job, force: bool) -> dict[str, int]:
    files: dict[Path, dict[str, Any]] = {}
    for result, graph in job.traced():
        found = trajectories(graph, job.info(result), result.rows, only_trainable=job.only_trainable)
        for index, trajectory in enumerate(found):
            files[folder / f"{result.rollout_id}.{index}.trajectory.json"] = trajectory
    check_free(list(files), force=force)
    for path, trajectory in files.items():
        with written_whole(path) as temporary:
            _write_lines(temporary, [trajectory])
    return {"trajectories": len(files)}


def _row_counts(job: _Job) -> dict[str, int]:
    rows = [row for result in job.results for row in result.rows]
    empty = sum(not result.rows for result in job.results)
    trained = sum(sum(row.loss_mask) for row in rows)
    return {"rows": len(rows), "trained_tokens": trained, "rollouts_without_rows": empty}


def _write_lines(path: Path, lines: Iterable[Any]) -> int:
    count = 0
    with path.open("wb") as file:
        for line in lines:
            file.write(msgspec.json.encode(line) + b"\n")
            count += 1
    return count
