"""From a run folder to the document, and the errors on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drivetrain.cli.runs import run_tokenizer
from drivetrain.cli.trace import app
from drivetrain.errors import ConfigError
from drivetrain.journal.writer import Journal
from drivetrain.rollout.run_dir import RunDir
from drivetrain.viewer.find import find_rollouts
from drivetrain.viewer.load import load_document


async def test_a_finished_rollout(run: RunDir) -> None:
    document = load_document(run, "fix.a.0", run_tokenizer(run))
    result = run.results()[0]
    assert (document.status, document.reward, document.task_id, document.agent, document.group) == (
        "ok", 0.0, "fix", "a", 0,
    )  # fmt: skip
    assert document.trained_tokens == sum(sum(row.loss_mask) for row in result.rows) > 0
    assert [fork.reason for fork in document.forks] == ["system_changed"]
    assert [(turn.toolset, turn.provenance) for turn in document.turns] == [(0, 1), (0, 1)]
    assert document.toolsets[0][0].name == "bash" and document.provenance[0]["model"] == "m"
    assert document.grade.summary["f2p_total"] == 1 and "findings" not in document.grade.summary
    assert document.grade.tests == {
        "FAIL_TO_PASS": [("t.py::test_fix", "FAILED")],
        "PASS_TO_PASS": [("t.py::test_old", "PASSED")],
    }
    assert "kept \\xff" in document.files["work.patch"]
    assert [(f.source, f.code, f.turn) for f in document.findings] == [
        ("log", "log_missing_text", 1),
        ("grading", "test_edit", None),
    ]
    for turn in document.turns:
        times = dict(turn.times)
        assert set(times) >= {"received", "dispatched", "completed", "committed", "delivered"}
        assert times.pop("delivered") >= times["committed"] - 0.001  # the journal keeps it in milliseconds
        assert list(times.values()) == sorted(times.values())


async def test_a_rollout_that_goes_on_shows_what_its_rows_would_be(run: RunDir) -> None:
    document = load_document(run, "fix.a.2", run_tokenizer(run))
    assert (document.status, document.reward, len(document.rows)) == ("", None, 1)
    assert document.trained_tokens == len(document.turns[0].sampled) > 0
    assert (document.task_id, document.group) == ("fix", 2)


async def test_a_rollout_without_a_model_call(run: RunDir) -> None:
    document = load_document(run, "fix.oracle.0", None)
    assert (document.agent, document.reward, document.turns) == ("oracle", 1.0, [])


async def test_what_a_name_finds(run: RunDir, tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    def found(where: str | Path, which: str | None = None) -> list[str]:
        return [target.rollout_id for target in find_rollouts(str(where), which, runs=runs)]

    everything = ["fix.a.0", "fix.a.1", "fix.oracle.0", "fix.a.2"]
    assert sorted(found(run.path)) == sorted(everything)
    assert found(run.path, "fix.a.1") == found(run.path / "rollouts" / "fix.a.1") == found("fix.a.1") == ["fix.a.1"]
    session = run.results()[0].session_id
    assert found(run.path, session) == found(run.path, session[:10]) == ["fix.a.0"]
    assert found("fix.o") == ["fix.oracle.0"]
    with pytest.raises(ConfigError, match=r"3 rollouts of .* begin with 'fix.a'"):
        found(run.path, "fix.a")
    with pytest.raises(ConfigError, match=r"no rollout 'fxi.a.1'.*Did you mean fix.a.1"):
        found(run.path, "fxi.a.1")
    with pytest.raises(ConfigError, match=r"no rollout 'zzz'.*It holds fix.a.0, fix.a.1, fix.a.2, fix.oracle.0"):
        found(run.path, "zzz")
    with pytest.raises(ConfigError, match=r"neither a run folder nor a rollout.*Did you mean fix.oracle.0"):
        found("fix.orcale.0")
    with pytest.raises(ConfigError, match="no run at"):
        found(tmp_path)
    with pytest.raises(ConfigError, match="no run in"):
        find_rollouts("fix.a.0", None, runs=tmp_path / "nothing")


async def test_the_newest_run_that_holds_a_rollout_is_taken(run: RunDir, tmp_path: Path) -> None:
    other = RunDir.create(tmp_path / "runs" / "second")
    other.write_info({})
    result = run.results()[2]
    other.append(result)
    os.utime(run.path, (1, 1))
    (target,) = find_rollouts("fix.oracle.0", None, runs=tmp_path / "runs")
    assert target.run.path.name == "second"
    (target,) = find_rollouts("fix.a.0", None, runs=tmp_path / "runs")
    assert target.run.path.name == "first"


async def test_a_run_without_its_journal(run: RunDir, tmp_path: Path) -> None:
    run.journal.unlink()
    with pytest.raises(ConfigError, match=r"has no journal.sqlite, so the turns of fix.a.0 are not there"):
        load_document(run, "fix.a.0", None)
    empty = RunDir.create(tmp_path / "empty")
    empty.write_info({})
    with pytest.raises(ConfigError, match="no journal and no results"):
        find_rollouts(str(empty.path), None, runs=tmp_path)


async def test_labels_are_the_callers_and_lead_nowhere_else(run: RunDir, tmp_path: Path) -> None:
    (run.path / "work.patch").write_text("not of this rollout")
    journal = Journal(run.journal)
    for name, label in (("s-up", ".."), ("s-again", "fix.a.2")):
        await journal.add_session(name, key_digest=name.encode(), policy=b"", labels={"rollout": label}, created_at=9e9)
    journal.close()
    up, again = (find_rollouts(str(run.path), name, runs=tmp_path)[0].rollout_id for name in ("s-up", "s-again"))
    assert (up, again) == ("..", "s-again")
    assert load_document(run, up, None).files == {}
    assert load_document(run, again, None).session_id == "s-again"
    page = json.loads(CliRunner().invoke(app, ["view", str(run.path), "s-up", "--json"]).stdout)[0]["file"]
    assert Path(page).parent == run.path / "views"


def test_the_viewer_starts_without_torch() -> None:
    code = (
        "import drivetrain.viewer.load, drivetrain.viewer.page, sys; print({'torch', 'transformers'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
