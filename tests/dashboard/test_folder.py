"""A run folder on the page: finished, and while somebody else writes it."""

from __future__ import annotations

import msgspec
import pytest

from drivetrain.dashboard.board import Board
from drivetrain.dashboard.folder import FolderSource, describe_run
from drivetrain.dashboard.model import RolloutView, Summary
from drivetrain.dashboard.summing import add_rollouts
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir


async def updated(source: FolderSource, board: Board) -> tuple[Summary, dict[str, RolloutView]]:
    summary = Summary()
    await source.update(board, summary)
    add_rollouts(summary, list(board.rollouts()))
    board.commit()
    return summary, {view.id: view for view in board.rollouts()}


async def read(source: FolderSource, board: Board) -> tuple[Summary, dict[str, RolloutView]]:
    """Until nothing is left to be read; how much one update reads depends on the machine."""
    while True:
        summary, views = await updated(source, board)
        if not source._unread:
            return summary, views


async def test_what_was_recorded(run: RunDir) -> None:
    board = Board(describe_run(run))
    lines = (run.path / "results.jsonl").read_bytes()
    (run.path / "results.jsonl").write_bytes(lines.replace(b'"timings":{}', b'"timings":{"total":7.5}'))
    summary, views = await read(FolderSource(run), board)
    assert set(views) == {"fix.a.0", "fix.a.1", "fix.a.2", "fix.oracle.0"}
    results = {result.rollout_id: result for result in run.results()}
    for name in ("fix.a.0", "fix.a.1"):
        view, result = views[name], results[name]
        assert (view.phase, view.reward, view.turns) == ("done", 0.0, 2)
        assert view.trained == sum(sum(row.loss_mask) for row in result.rows) > 0
        assert view.prompt > view.sampled >= view.trained
        assert view.ended - view.started == pytest.approx(7.5, abs=1e-3)
    assert views["fix.a.0"].forks == {"system_changed": 1}
    assert views["fix.a.2"].phase == "agent" and views["fix.a.2"].turns == 1  # it never ended
    assert (views["fix.oracle.0"].reward, views["fix.oracle.0"].session) == (1.0, "")
    assert summary.reward.graded == 3 and summary.reward.solved == 1 and summary.journal_bytes > 0
    assert summary.finished and not board.run.live and board.run.model == "tiny"


async def test_it_follows_what_is_appended(run: RunDir) -> None:
    board, source = Board(describe_run(run)), FolderSource(run)
    await read(source, board)
    late = RolloutResult(
        rollout_id="fix.a.9", session_id="", task_id="fix", agent="a", group=9, status="infra_error", reward=None,
        error="the sandbox is gone",
    )  # fmt: skip
    line = msgspec.json.encode(late) + b"\n"
    with (run.path / "results.jsonl").open("ab") as file:
        file.write(line[:20])
        file.flush()
        _, views = await updated(source, board)
        assert "fix.a.9" not in views  # a line that is still being written
        file.write(line[20:])
    summary, views = await updated(source, board)
    assert views["fix.a.9"].status == "infra_error" and summary.reward.ungraded == 1
    assert [(each.rollout, each.what) for each in summary.troubles] == [("fix.a.9", "the sandbox is gone")]


async def test_damage_is_told_and_the_rest_is_shown(run: RunDir) -> None:
    import sqlite3

    with sqlite3.connect(run.journal) as db:
        (session,) = [result.session_id for result in run.results() if result.rollout_id == "fix.a.0"]
        db.execute("UPDATE turns SET sampled_ids = x'00' WHERE session_id = ?", (session,))
    db.close()
    _, views = await read(FolderSource(run), Board(describe_run(run)))
    assert "journal.sqlite" in views["fix.a.0"].error and views["fix.a.0"].trained is None
    assert views["fix.a.1"].trained is not None and not views["fix.a.1"].error


async def test_a_run_without_a_journal(run: RunDir) -> None:
    for name in ("journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "journal.sqlite.lock"):
        (run.path / name).unlink(missing_ok=True)
    _, views = await updated(FolderSource(run), Board(describe_run(run)))
    assert views["fix.a.0"].reward == 0.0 and "fix.a.2" not in views
