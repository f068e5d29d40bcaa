"""What a run trains, stored with it, and the stop when samples get lost (case row B7)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.messages import Call, Message, ToolSpec
from drivetrain.rollout.audit import audit_run
from drivetrain.rollout.config import EpisodeSpec, RolloutConfig
from drivetrain.rollout.episode import EpisodeRunner
from drivetrain.rollout.mask_guard import MaskedFractionExceeded, MaskGuard
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.runner import run_rollouts
from drivetrain.rollout.selection import Selection
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.turn import Label
from swe_rl_agent.preset import LabelRule as PresetRule

AGENT_ONLY: tuple[Label, ...] = ("agent",)


async def record(path: Path, codec: TokenCodec, model: Any, selection: Selection) -> RunDir:
    """A run of one rollout: a title call, then the agent's one call."""
    run = RunDir.create(path)
    run.write_info({"model": None, "selection": selection})
    gateway = Gateway(ScriptedEngine.from_lines(["Fix it", "done"], model), codec, run.journal, model="m")
    session, _ = await gateway.open_session(SessionPolicy(model="m"))
    tools = (ToolSpec("bash"),)
    for body, call in (
        (b"title", Call("test", "m", (Message("user", "title?"),), origin={"x-session-id": "s1"})),
        (b"work", Call("test", "m", (Message("user", "fix the bug"),), tools)),
    ):
        await gateway.delivered(session, await gateway.serve(session, call, body))
    run.append(
        RolloutResult(
            rollout_id="r",
            session_id=session.id,
            task_id="t",
            agent="a",
            group=0,
            status="ok",
            reward=1.0,
            turns=2,
            rows=selection.rows(session.graph, "a", reward=1.0, session_id=session.id),
        )
    )
    await gateway.aclose()
    return run


@pytest.mark.parametrize(
    ("selection", "trained"),
    [
        (Selection(), [[1]]),
        (Selection(train_labels=("agent", "title")), [[0], [1]]),
        (Selection.of(AGENT_ONLY, {"a": [PresetRule(label="probe", without_tools=True)], "b": []}), [[1]]),
    ],
)
async def test_audit_derives_with_the_runs_own_selection(
    selection: Selection, trained: list[list[int]], tmp_path: Path, codec: TokenCodec, tiny_model: Any
) -> None:
    run = await record(tmp_path / "run", codec, tiny_model, selection)
    (result,) = run.results()
    assert [row.metadata["trained_turns"] for row in result.rows] == trained
    assert audit_run(run)[0].problems == []
    assert Selection.read(run) == selection
    if selection.train_labels != Selection().train_labels:
        return
    run.write_info({"selection": Selection(train_labels=("title",))})
    assert audit_run(run)[0].problems


def test_bad_selections(tmp_path: Path) -> None:
    def config(**options: Any) -> RolloutConfig:
        return RolloutConfig(tasks=("t",), agents=("a",), **options)

    with pytest.raises(ConfigError, match="agnet"):
        config(train_labels=("agnet",))
    with pytest.raises(ConfigError, match="no label"):
        config(train_labels=())
    with pytest.raises(ConfigError, match="between 0 and 1"):
        config(max_masked_fraction=1.5)
    run = RunDir.create(tmp_path / "run")
    run.write_info({"selection": {"train_labels": ["nonsense"]}})
    with pytest.raises(ConfigError, match="selection"):
        Selection.read(run)


def test_faults_stop_and_choices_do_not() -> None:
    guard = MaskGuard(0.5)
    guard.add(30, {"": 10, "label:title": 90})
    guard.check(final=True)
    guard.add(2, {"undelivered": 60, "no_logprob": 40})
    guard.check(final=True)
    guard.add(1, {"no_logprob": 1})
    with pytest.raises(MaskedFractionExceeded, match=r"undelivered 60, no_logprob 41") as caught:
        guard.check()
    assert caught.value.faults == {"undelivered": 60, "no_logprob": 41}


def test_few_turns_are_judged_at_the_end_only() -> None:
    guard = MaskGuard(0.0)
    guard.check(final=True)
    guard.add(19, {"undelivered": 1})
    guard.check()
    with pytest.raises(MaskedFractionExceeded):
        guard.check(final=True)


async def test_run_stops_loudly_and_early() -> None:
    """The third rollout brings the 20th turn; the one that would go on for ever is cancelled."""

    class Runner:
        guard = MaskGuard(0.5)
        cancelled = 0

        async def run(self, spec: EpisodeSpec) -> RolloutResult:
            if spec.group == 3:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise
            self.guard.add(8, {"": 10, "undelivered": 30})
            return cast(RolloutResult, spec)

    runner = Runner()
    specs = [EpisodeSpec(rollout_id=str(n), task_id="t", agent="a", group=n) for n in range(6)]
    done: list[Any] = []
    with pytest.raises(MaskedFractionExceeded, match="75%"):
        await run_rollouts(cast(EpisodeRunner, runner), [specs[3], *specs[:3]], concurrency=2, on_done=done.append)
    assert (len(done), runner.cancelled) == (3, 1)
