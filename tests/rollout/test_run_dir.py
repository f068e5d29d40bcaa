"""Run folders and their audit: damage of any kind is found."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.messages import Call, Message
from drivetrain.rollout.audit import audit_run
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.sample import rows_of


@pytest.fixture
async def run(tmp_path: Path, codec: TokenCodec, tiny_model: Any) -> RunDir:
    """A run of one rollout with two turns."""
    from drivetrain.engines.scripted import ScriptedEngine

    folder = RunDir.create(tmp_path / "run")
    folder.write_info({"model": None})
    gateway = Gateway(ScriptedEngine.from_lines(["one", "two"], tiny_model), codec, folder.journal, model="m")
    session, _ = await gateway.open_session(SessionPolicy(model="m"))
    messages = (Message("user", "hi"),)
    for number in range(2):
        call = Call("test", "m", messages)
        served = await gateway.serve(session, call, f"body {number}".encode())
        await gateway.delivered(session, served)
        messages = (*messages, Message("assistant", served.reply.content), Message("user", "more"))
    folder.append(
        RolloutResult(
            rollout_id="r",
            session_id=session.id,
            task_id="t",
            agent="a",
            group=0,
            status="ok",
            reward=1.0,
            turns=2,
            rows=rows_of(session.graph, reward=1.0, session_id=session.id),
        )
    )
    await gateway.aclose()
    return folder


async def test_sound_run(run: RunDir) -> None:
    (audit,) = audit_run(run)
    assert audit.problems == []
    assert (audit.turns, audit.rows) == (2, 1)
    (result,) = run.results()
    assert result.rows[0].reward == 1.0


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("response_ids", lambda v: [v[0] + 1, *v[1:]]),
        ("prompt_ids", lambda v: v[1:]),
        ("loss_mask", lambda v: [*v[:-1], 0]),
        ("response_logprobs", lambda v: [v[0] - 0.001, *v[1:]]),
        ("loss_mask", lambda v: v[:-1]),
        ("reward", lambda v: 0.0),
    ],
)
async def test_damaged_rows_are_found(run: RunDir, field: str, change: Any) -> None:
    file = run.path / "rows.jsonl"
    stored = json.loads(file.read_text())
    stored["row"][field] = change(stored["row"][field])
    file.write_text(json.dumps(stored) + "\n")
    (audit,) = audit_run(run)
    assert audit.problems


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM turns WHERE turn_id = 1",
        "UPDATE turns SET sampled_ids = x'0500000006000000' WHERE turn_id = 0",
        "UPDATE turns SET delta_ids = x'05000000' WHERE turn_id = 1",
        "UPDATE turns SET logprobs = zeroblob(length(logprobs)) WHERE turn_id = 1",
        "UPDATE turns SET delivered = 0 WHERE turn_id = 1",
    ],
)
async def test_damaged_journal_is_found(run: RunDir, damage: str) -> None:
    with sqlite3.connect(run.journal) as db:
        db.execute(damage)
    (audit,) = audit_run(run)
    assert audit.problems


async def test_missing_row_is_found(run: RunDir) -> None:
    (run.path / "rows.jsonl").write_text("")
    (audit,) = audit_run(run)
    assert audit.problems


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run at"):
        RunDir.open(tmp_path)
    RunDir.create(tmp_path).write_info({})
    with pytest.raises(ConfigError, match="holds a run already"):
        RunDir.create(tmp_path)


def test_groups_stand_side_by_side() -> None:
    config = RolloutConfig(tasks=("t1", "t2"), agents=("a", "b"), n=2, seed=5)
    specs = episodes_of(config)
    assert [(spec.task_id, spec.agent, spec.group) for spec in specs[:4]] == [
        ("t1", "a", 0),
        ("t1", "a", 1),
        ("t1", "b", 0),
        ("t1", "b", 1),
    ]
    assert len({spec.rollout_id for spec in specs}) == len(specs) == 8
    with pytest.raises(ConfigError, match="no agents"):
        RolloutConfig(tasks=("t",), agents=())
