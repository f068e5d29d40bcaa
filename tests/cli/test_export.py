"""``drivetrain trace export``: every format from a small run folder, and its manners."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from drivetrain.cli.main import app
from drivetrain.errors import ConfigError
from drivetrain.journal.writer import Journal
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.trace.export.files import written_whole
from drivetrain.trace.export.parquet import StoredRow, read_parquet
from drivetrain.trace.labels import infer_labels
from drivetrain.trace.sample import HarnessTrace, rows_of
from drivetrain.trace.turn import pack_logprobs
from tests.trace.test_graph_properties import Harness, play

CONFIG = {"models.json": "ab" * 32}
FORMATS = ["openenv", "atif", "sft", "parquet", "rows"]


def moves(*actions: str) -> list[dict[str, Any]]:
    return [{"history": 0, "action": action, "delivered": True, "label": "agent", "tool": False} for action in actions]


@pytest.fixture
async def run(tmp_path: Path) -> RunDir:
    """A graded rollout of two chains, an infrastructure failure with one turn, and a rollout without model calls."""
    folder = RunDir.create(tmp_path / "run")
    folder.write_info({"model": None})
    journal = Journal(folder.journal)
    await add(folder, journal, "good", play(moves("continue", "continue", "branch")), reward=1.0)
    await add(folder, journal, "dead", play(moves("continue")), status="infra_error", reward=None)
    journal.close()
    folder.append(
        RolloutResult(rollout_id="oracle", session_id="", task_id="t", agent="oracle", group=0, status="ok", reward=1.0)
    )
    return folder


async def add(folder: RunDir, journal: Journal, name: str, harness: Harness, **fields: Any) -> None:
    session = f"s-{name}"
    await journal.add_session(session, key_digest=name.encode(), policy=b"", labels={"rollout": name}, created_at=0.0)
    await journal.add_event(session, "provenance", harness="pi", harness_version="1.6.0")
    await journal.add_event(session, "config_hashes", sha256=CONFIG)
    for turn in harness.graph:
        turn.provenance = 1
        await journal.add_turn(session, turn)
        await journal.mark_delivered(session, turn.id)
    folder.append(
        RolloutResult(
            rollout_id=name,
            session_id=session,
            task_id="t",
            agent="pi",
            group=0,
            rows=rows_of(harness.graph, reward=fields["reward"], session_id=session),
            turns=len(harness.graph),
            harness={"versions": {"agent": "pi 1.6.0"}},
            **{"status": "ok", **fields},
        )
    )


def without_provenance(row: HarnessTrace) -> HarnessTrace:
    metadata = {name: value for name, value in row.metadata.items() if name != "provenance"}
    return msgspec.structs.replace(row, metadata=metadata)


def export(run: RunDir, form: str, *options: str) -> Result:
    return CliRunner().invoke(app, ["trace", "export", str(run.path), "--format", form, *options])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_openenv(run: RunDir) -> None:
    done = export(run, "openenv")
    assert done.exit_code == 0, done.output
    good, dead = lines(run.path / "exports" / "openenv.jsonl")
    assert (good["rollout_id"], good["reward"], good["status"], good["agent_version"]) == ("good", 1.0, "ok", "1.6.0")
    assert good["provenance"] == {
        "records": [{"harness": "pi", "harness_version": "1.6.0"}], "config_sha256": CONFIG,
    }  # fmt: skip
    assert (dead["rollout_id"], dead["reward"], dead["status"]) == ("dead", None, "infra_error")
    assert [turn["metadata"]["turn"] for turn in good["trace"]["turns"]] == [0, 1, 2]
    trained = sum(sum(turn["loss_mask"]) for turn in good["trace"]["turns"])
    assert trained == sum(sum(row.loss_mask) for row in run.results()[0].rows) > 0
    assert good["findings"] == dead["findings"] == []
    assert "2 traces, 4 turns" in done.output


async def test_labels_are_the_inferred_ones(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "labels")
    folder.write_info({"model": None})
    journal = Journal(folder.journal)
    harness = play([{**move, "tool": move["action"] == "continue"} for move in moves("continue", "continue", "new")])
    await add(folder, journal, "good", harness, reward=1.0)
    journal.close()
    assert export(folder, "openenv").exit_code == 0
    (line,) = lines(folder.path / "exports" / "openenv.jsonl")
    labels = {turn["metadata"]["turn"]: turn["metadata"]["label"] for turn in line["trace"]["turns"]}
    assert labels == {number: info.label for number, info in infer_labels(harness.graph).items()}
    assert set(labels.values()) > {"agent"}
    reasons = {turn["metadata"]["label"]: turn["metadata"]["untrained"] for turn in line["trace"]["turns"]}
    assert all(reason == ("" if label == "agent" else f"label:{label}") for label, reason in reasons.items())


def test_atif_is_one_file_per_conversation(run: RunDir) -> None:
    assert export(run, "atif").exit_code == 0
    files = sorted((run.path / "exports" / "atif").iterdir())
    found = [json.loads(file.read_text()) for file in files]
    rows = {result.rollout_id: len(result.rows) for result in run.results()}
    assert len(found) == rows["good"] + rows["dead"]
    assert all(trajectory["extra"]["provenance"]["config_sha256"] == CONFIG for trajectory in found)
    assert all(trajectory["extra"]["provenance"]["records"][0]["harness"] == "pi" for trajectory in found)
    assert {one["agent"]["version"] for one in found} == {"1.6.0"}
    assert all(file.name.endswith(".trajectory.json") for file in files)


def test_sft(run: RunDir) -> None:
    assert export(run, "sft").exit_code == 0
    found = lines(run.path / "exports" / "sft.jsonl")
    assert [line["reward"] for line in found] == [1.0] * (len(found) - 1) + [None]
    assert all(line["messages"][-1]["role"] == "assistant" for line in found)


def test_rows_and_parquet_hold_the_stored_rows(run: RunDir, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    stored = [row for result in run.results() for row in result.rows]
    assert export(run, "rows", "--out", str(tmp_path / "x" / "rows.jsonl")).exit_code == 0
    decode = msgspec.json.Decoder(StoredRow).decode
    plain = [decode(line) for line in (tmp_path / "x" / "rows.jsonl").read_bytes().splitlines()]
    origins = [item.row.metadata["provenance"] for item in plain]
    assert [without_provenance(item.row) for item in plain] == stored
    record = {"harness": "pi", "harness_version": "1.6.0"}
    assert [(said["records"], said["config_sha256"]) for said in origins] == [([record], CONFIG)] * len(plain)
    assert [len(said["turns"]) for said in origins] == [len(row.metadata["turns"]) for row in stored]
    assert {turn["policy_version_start"] for said in origins for turn in said["turns"]} == {0}
    done = export(run, "parquet", "-o", str(tmp_path / "x"))
    assert done.exit_code == 0, done.output
    assert read_parquet(tmp_path / "x" / "rows.parquet") == plain
    assert [(item.rollout_id, item.status) for item in plain][-1] == ("dead", "infra_error")
    assert "1 rollouts without rows" in done.output


@pytest.mark.parametrize("form", FORMATS)
def test_only_trainable_leaves_out_what_is_not_graded(form: str, run: RunDir, tmp_path: Path) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    place = tmp_path / "out"
    place.mkdir()
    assert export(run, form, "--only-trainable", "-o", str(place)).exit_code == 0
    for file in place.iterdir():
        assert b"good" in file.read_bytes()
        assert b"dead" not in file.read_bytes()


@pytest.mark.parametrize("form", FORMATS)
def test_never_overwrites_unless_told(form: str, run: RunDir) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    assert export(run, form).exit_code == 0
    before = {path: path.read_bytes() for path in (run.path / "exports").rglob("*") if path.is_file()}
    again = export(run, form)
    assert again.exit_code == 2
    assert "--force" in again.stderr and len(again.stderr.splitlines()) == 1
    assert export(run, form, "--force").exit_code == 0
    assert {path: path.read_bytes() for path in (run.path / "exports").rglob("*") if path.is_file()} == before


def test_bad_format_lists_the_formats(run: RunDir) -> None:
    done = export(run, "csv")
    assert done.exit_code == 2
    assert "'csv'" in done.stderr and all(form in done.stderr for form in FORMATS)
    assert not (run.path / "exports").exists()


def test_bad_places(run: RunDir, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert "is a file" in export(run, "atif", "-o", str(file)).stderr
    assert "cannot be written" in export(run, "sft", "-o", str(file / "x.jsonl")).stderr
    assert file.read_text() == "mine"
    assert "no run at" in CliRunner().invoke(app, ["trace", "export", str(tmp_path), "-f", "sft"]).stderr


async def test_a_faulty_turn_is_named_on_stderr(tmp_path: Path) -> None:
    folder = RunDir.create(tmp_path / "faulty")
    folder.write_info({"model": None})
    journal = Journal(folder.journal)
    harness = play(moves("continue"))
    harness.graph[0].logprobs = pack_logprobs([])
    await add(folder, journal, "bad", harness, reward=0.0)
    journal.close()
    done = export(folder, "openenv")
    assert done.exit_code == 0
    assert "bad: logprob_count at turn 0 (masked)" in done.stderr
    (line,) = lines(folder.path / "exports" / "openenv.jsonl")
    assert line["findings"][0]["code"] == "logprob_count"


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "x" / "file"
    with pytest.raises(RuntimeError), written_whole(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert list(target.parent.iterdir()) == []
    target.write_text("old")
    with pytest.raises(ConfigError, match="cannot be written"), written_whole(target) as temporary:
        temporary.write_text("half")
        raise OSError("disk full")
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    assert target.read_text() == "old"


def test_help_teaches() -> None:
    done = CliRunner().invoke(app, ["trace", "export", "--help"])
    assert done.exit_code == 0
    assert all(word in done.output for word in (*FORMATS, "Example", "load_dataset", "--only-trainable"))
