"""A rollout of several turns of Pi in a sandbox: its loop, tools and requests are real, and so is the model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.vllm.wire import WIRES, CompletionsWire
from drivetrain.rollout.audit import audit_run
from drivetrain.rollout.config import RolloutConfig, episodes_of
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.runner import run_rollouts
from drivetrain.rollout.stack import open_stack
from tests.real.vllm.support import Watched
from tests.real.vllm_server import LiveServer


class CallingWire(CompletionsWire):
    """The first calls must be of a tool: unaided, a model of 135M ends Pi's loop with its first words."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def request(self, *asked: Any) -> Any:
        body = super().request(*asked)
        if self._left:
            self._left -= 1
            body["structured_outputs"] = {"regex": _CALL}
        return body


_CALL = r'<tool_call>\n\{"name": "bash", "arguments": \{"command": "(ls|pwd|date|git log|git status)"\}\}\n</tool_call>'


@pytest.mark.real
async def test_pi_takes_several_turns_in_a_sandbox(
    server: LiveServer, model: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WIRES, "completions", CallingWire(2))
    engine = Watched(server.url, api="completions")
    await engine.start()
    config = RolloutConfig(
        tasks=("pypi__xmltodict-0.14.2",),
        agents=("pi",),
        n=1,
        variant="small",
        max_turns=3,
        max_tokens=48,
        concurrency=1,
        deadline_s=400,
        seed=7,
    )
    run = RunDir.create(tmp_path / "run")
    async with open_stack(config, run, lambda _: None, engine=engine, model=model) as runner:
        (result,) = await run_rollouts(runner, episodes_of(config), concurrency=1)
    await engine.aclose()
    assert result.reward == 0.0, result
    assert [audit.problems for audit in audit_run(run, vocab_size=model.vocab_size)] == [[]]
    assert len(engine.sent) == 3
    for before, after in pairwise(engine.sent):
        assert after[: len(before)] == before
    (row,) = result.rows
    last = engine.sent[-1]
    assert last == [*row.prompt_ids, *row.response_ids][: len(last)]
    print(f"\nPi: 3 turns, prompts of {[len(ids) for ids in engine.sent]} tokens, {sum(row.loss_mask)} trained")
