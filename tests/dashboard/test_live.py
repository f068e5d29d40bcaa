"""Rollouts of this process: what a gateway and a run tell."""

from __future__ import annotations

from typing import Any

import pytest

from drivetrain.dashboard.board import Board
from drivetrain.dashboard.live import GatewaySource, RunSource
from drivetrain.dashboard.model import RolloutView, RunView, Summary
from drivetrain.gateway.sessions import Session
from drivetrain.messages import Call, Message
from drivetrain.metrics.lag import LoopLag
from drivetrain.metrics.watch import GatewayWatch
from drivetrain.rollout.config import EpisodeSpec
from drivetrain.rollout.episode import Phase
from drivetrain.rollout.result import RolloutResult
from tests.gateway.conftest import Rig, StartRig


@pytest.fixture
async def rig(start_rig: StartRig) -> Rig:
    return await start_rig(["one", "two"])


def board() -> Board:
    return Board(RunView(name="r"))


def spec(group: int) -> EpisodeSpec:
    return EpisodeSpec(rollout_id=f"fix.pi.{group}", task_id="fix", agent="pi", group=group)


def result_of(group: int, **fields: Any) -> RolloutResult:
    fields = {"session_id": "", "status": "ok", "reward": 1.0, "timings": {"total": 5.0}, **fields}
    return RolloutResult(rollout_id=f"fix.pi.{group}", task_id="fix", agent="pi", group=group, **fields)


async def say(rig: Rig, session: Session, *texts: str) -> None:
    call = Call("test", "policy", tuple(Message("user", text) for text in texts), ())
    served = await rig.gateway.serve(session, call, repr(texts).encode())
    await rig.gateway.delivered(session, served)


async def updated(source: GatewaySource | RunSource, board: Board) -> tuple[Summary, dict[str, RolloutView]]:
    summary = Summary()
    await source.update(board, summary)
    board.commit()
    return summary, {view.id: view for view in board.rollouts()}


async def test_sessions_of_a_gateway(rig: Rig) -> None:
    source, shown = GatewaySource(GatewayWatch(rig.gateway), LoopLag(), most_sealed=1), board()
    first, _ = await rig.gateway.open_session(labels={"task": "fix", "agent": "pi", "group": "3"})
    second, _ = await rig.gateway.open_session()
    await say(rig, first, "hi")
    summary, views = await updated(source, shown)
    turn = next(iter(first.graph))
    one = views[first.id]
    assert (one.phase, one.task, one.agent, one.group) == ("open", "fix", "pi", 3)
    assert (one.turns, one.prompt, one.sampled) == (1, turn.prompt_len, len(turn.sampled_ids))
    assert one.trained is None and views[second.id].turns == 0
    assert summary.fence is not None and summary.fence.state == "open"
    assert summary.sessions == {"open": 2, "sealed": 0} and summary.journal_bytes > 0
    assert summary.engine is not None and summary.engine.p50 is not None
    await rig.gateway.seal_session(first.id)
    _, views = await updated(source, shown)
    one = views[first.id]
    assert (one.phase, one.trained, one.masked) == ("sealed", one.sampled, {}) and one.ended > 0
    await rig.gateway.seal_session(second.id)
    summary, views = await updated(source, shown)
    assert list(views) == [second.id] and summary.left_out == 1  # the older one makes room


async def test_a_run_from_queued_to_done(rig: Rig) -> None:
    running: dict[str, Phase] = {}
    source = RunSource([spec(0), spec(1)], running, GatewaySource(GatewayWatch(rig.gateway), LoopLag()))
    shown = board()
    _, views = await updated(source, shown)
    assert {view.phase for view in views.values()} == {"queued"} and len(views) == 2
    running["fix.pi.0"] = "starting"
    session, _ = await rig.gateway.open_session(labels={"rollout": "fix.pi.0"})
    summary, views = await updated(source, shown)
    assert views["fix.pi.0"].phase == "starting" and views["fix.pi.0"].started > 0
    assert summary.sandboxes == {"agent": 1, "grader": 0}
    running["fix.pi.0"] = "agent"
    await say(rig, session, "hi")
    _, views = await updated(source, shown)
    assert (views["fix.pi.0"].phase, views["fix.pi.0"].turns, views["fix.pi.0"].session) == ("agent", 1, session.id)
    await rig.gateway.seal_session(session.id)
    running["fix.pi.0"] = "grading"
    summary, _ = await updated(source, shown)
    assert summary.sandboxes == {"agent": 1, "grader": 1} and not summary.finished
    del running["fix.pi.0"]
    source.finished(result_of(0, session_id=session.id, turns=1, fork_reasons={"branch": 1}))
    source.finished(result_of(1, reward=None, status="infra_error", error="gone " * 1000))
    summary, views = await updated(source, shown)
    one, other = views["fix.pi.0"], views["fix.pi.1"]
    assert (one.phase, one.status, one.reward, one.forks) == ("done", "ok", 1.0, {"branch": 1})
    assert one.trained == one.sampled > 0
    assert (other.phase, other.reward, other.status) == ("done", None, "infra_error")
    assert len(other.error) == 2000 and summary.finished


async def test_a_label_of_somebody_else_changes_no_rollout(rig: Rig) -> None:
    source, shown = RunSource([spec(0)], {}, GatewaySource(GatewayWatch(rig.gateway), LoopLag())), board()
    mine, _ = await rig.gateway.open_session(labels={"rollout": "fix.pi.0"})
    await updated(source, shown)
    other, _ = await rig.gateway.open_session(labels={"rollout": "fix.pi.0"})
    await say(rig, other, "hi")
    _, views = await updated(source, shown)
    assert list(views) == ["fix.pi.0"]
    assert (views["fix.pi.0"].session, views["fix.pi.0"].turns) == (mine.id, 0)


async def test_reference_agents_need_no_gateway() -> None:
    running: dict[str, Phase] = {"fix.pi.0": "agent"}
    source = RunSource([spec(0)], running)
    summary, views = await updated(source, board())
    assert views["fix.pi.0"].phase == "agent" and summary.engine is None
    source.close()


async def test_a_closed_gate_and_a_blocked_journal_are_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    source, shown = GatewaySource(GatewayWatch(rig.gateway), LoopLag()), board()
    await rig.gateway.fence.pause(owner="trainer")
    summary, _ = await updated(source, shown)
    assert summary.fence is not None and (summary.fence.state, summary.fence.owner) == ("closed", "trainer")
    monkeypatch.setattr(type(rig.gateway.journal), "blocked", "no space left")
    first, _ = await updated(source, shown)
    again, _ = await updated(source, shown)
    assert [(each.kind, each.what) for each in again.troubles] == [("journal", "no space left")]
    assert again.troubles == first.troubles  # since when, not now
