"""A run with a scripted policy: real sandbox, real task, real grading, no model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.runner import run_rollouts
from drivetrain.rollout.stack import open_stack

TASK = "pypi__xmltodict-0.14.2"


class Run(msgspec.Struct):
    results: list[RolloutResult]
    run: RunDir
    engine: ScriptedEngine


RunWith = Callable[..., Awaitable[Run]]


def tool_call(name: str, **arguments: Any) -> str:
    body = msgspec.json.encode({"name": name, "arguments": arguments}).decode()
    return f"I will run this.\n<tool_call>\n{body}\n</tool_call>"


@pytest.fixture
def run_with(tmp_path: Path, tiny_model: ModelDir) -> RunWith:
    """Run agents on a task; the policy says ``lines`` in order in every session, then ``then``."""

    async def run(agent: str, lines: Any, *, then: Any = "I am done.", **options: Any) -> Run:
        engine = ScriptedEngine.from_lines(lines, tiny_model, then=then, context_length=100_000)
        config = RolloutConfig(tasks=(TASK,), agents=(agent,), variant="small", deadline_s=240, **options)
        folder = RunDir.create(tmp_path / "run")
        async with open_stack(config, folder, lambda _: None, engine=engine, model=tiny_model) as runner:
            results = await run_rollouts(runner, episodes_of(config), concurrency=config.concurrency)
        return Run(results, folder, engine)

    return run
