"""What the short forms of the examples share: a generated task, an agent of one file, a policy that follows a script.

Nothing here needs a network, a GPU or a model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.engines.tiny import build_tiny_model
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.runner import run_rollouts
from drivetrain.rollout.stack import open_stack
from swe_rl_env.sources.operators import operator_rows
from swe_rl_env.tasks.loading import load_source, parse_source
from swe_rl_env.tasks.model import SweTask

OWN_AGENT = Path(__file__).parent / "own_agent" / "my.toml"
CONTEXT = 16_384


def generated_tasks(folder: Path, count: int = 1) -> tuple[str, list[SweTask]]:
    """So many tasks with real repositories and hidden tests; where their rows are, and the tasks."""
    file = folder / "tasks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in operator_rows(count, split="train", seed=0)))
    return str(file), list(load_source(parse_source(str(file)), purpose="train", force=False).tasks)


def tiny_model(folder: Path) -> ModelDir:
    """A random model of a megabyte, with a tokenizer and a chat template that knows tools."""
    return build_tiny_model(folder / "model", context=CONTEXT)


def call(command: str, tool: str = "bash") -> str:
    """What a model of that template samples to run a command."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': {'command': command}})}\n</tool_call>"


async def scripted_run(
    folder: Path, says: Sequence[str], *, agent: str = str(OWN_AGENT), n: int = 2
) -> tuple[RunDir, list[RolloutResult]]:
    """Rollouts of one agent on one generated task; in every session the policy says ``says`` in turn, then stops."""
    source, tasks = generated_tasks(folder)
    model = tiny_model(folder)
    engine = ScriptedEngine.from_lines(list(says), model, then="I am done.", context_length=CONTEXT)
    config = RolloutConfig(tasks=tuple(task.instance_id for task in tasks), agents=(agent,), n=n, source=source)
    run = RunDir.create(folder / "run")
    async with open_stack(config, run, print, engine=engine, model=model, tasks=tasks) as runner:
        return run, await run_rollouts(runner, episodes_of(config), concurrency=config.concurrency)
