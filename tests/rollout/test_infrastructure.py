"""What fails below a rollout leaves that rollout ungraded: never a reward of zero, never the others' problem."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.rollout import stack
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.rollout.episode import EpisodeRunner
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.runner import run_rollouts
from drivetrain.rollout.stack import open_stack
from drivetrain.sandboxes import ExecResult, SandboxHandle, SandboxSpec, SandboxStartError, SandboxTimeout
from swe_rl_env.building.build import build_task
from swe_rl_env.tasks.catalog import get_task
from swe_rl_env.work.patch import collect_patch
from swe_rl_env.work.workspace import Workspace
from tests.conformance.sandbox.kits.local import LocalKit
from tests.rollout.conftest import TASK, tool_call

Fault = tuple[str, str, Any]
"""Sandbox operation, role of the sandbox, and what happens: an exception, or ``"vanish"``: the sandbox ends first."""


class Faulty:
    """A local backend whose sandboxes fail as told: one fault per rollout group."""

    def __init__(self, root: Path, faults: dict[int, Fault]) -> None:
        self.kit = LocalKit()
        self.boxes: list[SandboxHandle] = []
        self.three = asyncio.Event()
        self._backend = self.kit.make(root)
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def create(self, spec: SandboxSpec) -> Any:
        operation, role, what = self._faults.get(int(spec.labels.get("group", -1)), ("", "", None))
        mine = spec.labels.get("role") == role
        if mine and operation == "create":
            raise what
        box = await self._backend.create(spec)
        self.boxes.append(box)
        if len(self.boxes) == 3:
            self.three.set()
        return FaultyBox(box, self.kit, operation, what) if mine else box


class FaultyBox:
    def __init__(self, box: SandboxHandle, kit: LocalKit, operation: str, what: Any) -> None:
        self._box, self._kit, self._operation, self._what = box, kit, operation, what

    def __getattr__(self, name: str) -> Any:
        if name != self._operation:
            return getattr(self._box, name)

        async def fail(*arguments: Any, **options: Any) -> Any:
            if self._what != "vanish":
                raise self._what
            self._kit.vanish(self._box)
            return await getattr(self._box, name)(*arguments, **options)

        return fail


FAULTS: dict[int, Fault] = {
    0: ("create", "agent", ConnectionResetError("the daemon hung up")),
    1: ("create", "agent", SandboxStartError("no room")),
    2: ("upload", "agent", "vanish"),
    3: ("exec", "agent", "vanish"),
    4: ("download", "agent", "vanish"),
    5: ("create", "grader", SandboxStartError("no room")),
    6: ("upload", "grader", "vanish"),
    7: ("exec", "grader", "vanish"),
    8: ("read", "grader", SandboxTimeout("a proxy in between")),
    9: ("exec", "agent", RuntimeError("a defect of ours")),
}


@pytest.mark.case("F7", "F8")
async def test_each_fault_is_its_own_rollouts_and_the_batch_goes_on(tmp_path: Path) -> None:
    backend = Faulty(tmp_path / "sandboxes", FAULTS)
    run = RunDir.create(tmp_path / "run")
    run.write_info({})
    config = RolloutConfig(tasks=(TASK,), agents=("oracle",), n=len(FAULTS) + 1)
    runner = EpisodeRunner(config, backend, {TASK: build_task(get_task(TASK))}, {}, run)
    results = await run_rollouts(runner, episodes_of(config), concurrency=4)
    *failed, clean = results
    assert (clean.status, clean.reward) == ("ok", 1.0), clean
    for group, result in enumerate(failed):
        assert result.reward is None, (FAULTS[group], result)
        assert result.status in ("infra_error", "unscorable"), (FAULTS[group], result)
        assert result.error
    stored = {result.rollout_id: result.reward for result in run.results()}
    assert stored == {result.rollout_id: result.reward for result in results}
    await backend.aclose()
    assert backend.kit.left(tmp_path / "sandboxes") == []


@pytest.mark.case("F7")
async def test_a_checkout_that_cannot_be_asked_about_is_not_an_empty_one(tmp_path: Path) -> None:
    """A download that failed and a probe that was killed: no patch that deletes every file, which would score 0."""

    class Hung:
        async def download(self, _path: str, *, max_bytes: int) -> bytes:
            raise SandboxTimeout(f"not within the time, {max_bytes}")

        async def exec(self, *_arguments: Any, **_options: Any) -> ExecResult:
            return ExecResult(exit_code=137, stdout=b"", stderr=b"", timed_out=True, truncated=False, duration_s=60.0)

    workspace = Workspace(sandbox=Hung(), repo="/work/x", env={})  # type: ignore[arg-type]
    with pytest.raises(SandboxTimeout):
        await collect_patch(workspace, build_task(get_task(TASK)))


@pytest.mark.real
@pytest.mark.case("F7")
@pytest.mark.timeout(300)
async def test_a_sandbox_that_vanishes_under_an_agent_is_ungraded(
    tmp_path: Path, tiny_model: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Pi waits for its second reply; its first turn is kept, and no row of it has a reward."""
    backend = Faulty(tmp_path / "sandboxes", {})

    def script(_ids: list[int], _text: str, index: int) -> str:
        if index == 1:
            backend.kit.vanish(backend.boxes[-1])
        return tool_call("bash", command="true")

    monkeypatch.setattr(stack, "get_backend", lambda _name: backend)
    engine = ScriptedEngine(tiny_model, script, context_length=100_000)
    config = RolloutConfig(tasks=(TASK,), agents=("pi",), variant="small", deadline_s=240)
    run = RunDir.create(tmp_path / "run")
    async with open_stack(config, run, lambda _: None, engine=engine, model=tiny_model) as runner:
        (result,) = await run_rollouts(runner, episodes_of(config), concurrency=1)
    assert (result.status, result.reward) == ("infra_error", None), result
    assert "gone" in result.error
    assert result.turns >= 1
    assert [row.reward for row in result.rows] == [None] * len(result.rows)
    assert backend.kit.left(tmp_path / "sandboxes") == []


@pytest.mark.case("F8")
async def test_a_cancelled_batch_leaves_no_sandbox(tmp_path: Path) -> None:
    backend = Faulty(tmp_path / "sandboxes", {})
    config = RolloutConfig(tasks=(TASK,), agents=("oracle",), n=3)
    runner = EpisodeRunner(config, backend, {TASK: build_task(get_task(TASK))}, {}, RunDir.create(tmp_path / "run"))
    running = asyncio.create_task(run_rollouts(runner, episodes_of(config), concurrency=3))
    await asyncio.wait_for(backend.three.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert backend.kit.left(tmp_path / "sandboxes") == []
