"""A policy that solves the task, for nodes that are other processes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from drivetrain.engines.models import ModelDir, read_model_dir
from drivetrain.engines.protocol import Engine
from drivetrain.engines.scripted import ScriptedEngine
from swe_rl_env.building.build import build_task
from swe_rl_env.tasks.catalog import get_task
from tests.rollout.conftest import TASK, tool_call


class SolvingEngine(msgspec.Struct, frozen=True):
    """Makes an engine that writes the reference fix in its first turn and ends in its second, for any agent."""

    tokenizer: Path

    def __call__(self, _model: ModelDir) -> Engine:
        gold = build_task(get_task(TASK)).gold_patch.decode()
        fix = tool_call("bash", command=f"git apply <<'END_OF_PATCH'\n{gold}END_OF_PATCH\n")
        submit = tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")

        def script(_ids: list[int], text: str, index: int) -> str:
            if index == 0:
                return fix
            return submit if "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in text else "I fixed it."

        return ScriptedEngine(read_model_dir(self.tokenizer, self.tokenizer.name), script, context_length=100_000)
