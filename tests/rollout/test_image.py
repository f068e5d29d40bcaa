"""``--image`` reaches the sandbox that is tried first, the agent's and the grader's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.stack import open_stack
from drivetrain.sandboxes.protocol import SandboxSpec, SandboxStartError
from swe_rl_env.building.build import build_task
from swe_rl_env.grading.run import grade
from swe_rl_env.tasks.catalog import get_task
from swe_rl_env.work.workspace import open_workspace

from .conftest import TASK


class Refusing:
    """Starts nothing and remembers what it was asked for."""

    def __init__(self) -> None:
        self.images: list[str | None] = []

    async def create(self, spec: SandboxSpec) -> Any:
        self.images.append(spec.image)
        raise SandboxStartError("not here")

    async def aclose(self) -> None:
        return


async def test_every_sandbox_of_a_rollout_starts_from_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = Refusing()
    monkeypatch.setattr("drivetrain.rollout.stack.get_backend", lambda _name: backend)
    config = RolloutConfig(tasks=(TASK,), agents=("oracle",), image="mine:1")
    with pytest.raises(SandboxStartError):
        async with open_stack(config, RunDir.create(tmp_path / "run"), lambda _: None):
            pass
    built = build_task(get_task(TASK))
    with pytest.raises(SandboxStartError):
        await open_workspace(backend, built, image="mine:1")
    found = await grade(built, b"", backend, image="mine:1", run_empty=True)
    assert found.outcome == "error"
    assert backend.images == ["mine:1"] * 3
