"""TRL's ``HarnessRolloutWorker``: sessions, gateway and sandboxes in its spawned child, the gate worked from here."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.gate import SocketGate
from drivetrain.rollout.route import routed_prompt
from drivetrain.rollout.run_dir import RunDir

pytest.importorskip("trl")
pytest.importorskip("openenv.core.harness")

from datasets import Dataset
from transformers import AutoTokenizer
from trl.experimental.async_grpo import async_rollout_worker

from drivetrain.rollout.openenv import AgentSessions
from drivetrain.training.fenced import AdapterVersions
from drivetrain.training.fenced_worker import FencedRolloutWorker

TASK = "pypi__xmltodict-0.14.2"


@pytest.fixture
def no_tracker() -> Iterator[None]:
    """multiprocessing leaves a helper process behind until this one exits."""
    yield
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("no_tracker")
def test_real_agents_in_trls_child_process(
    tiny_model: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pi with a random policy, graded; the version that this process publishes is the one that turns carry."""
    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)  # TRL asks for it, and never uses it
    folder = tmp_path / "gate"
    folder.mkdir(mode=0o700)
    config = RolloutConfig(
        tasks=(TASK,),
        agents=("pi",),
        model=str(tiny_model.path),
        variant="small",
        max_turns=2,
        max_tokens=12,
        deadline_s=120,
        threads=1,
    )
    gate = SocketGate(folder)
    worker = FencedRolloutWorker(
        weights=AdapterVersions(gate),
        harness_session_factory=AgentSessions(config, run=tmp_path / "run", gate=folder),
        model_name=str(tiny_model.path),
        dataset=Dataset.from_list([{"prompt": routed_prompt(TASK, "pi")}]),
        reward_funcs=[],
        processing_class=AutoTokenizer.from_pretrained(str(tiny_model.path)),
        eos_token_ids=[2],
        num_generations=2,
        max_inflight_tasks=2,
        temperature=0.7,
    )
    worker.update_model_version(3)  # before there is a child
    samples: list[Any] = []
    worker.start()
    try:
        deadline = time.monotonic() + 200
        while not samples:
            assert time.monotonic() < deadline
            try:
                samples.append(worker.rollout_buffer.get(timeout=1))
            except queue.Empty:
                worker.check_health(120)
        worker.update_model_version(4)
    finally:
        worker.stop()
    assert samples[0].model_version == 3 and samples[0].completion_mask.sum() > 0
    results = RunDir.open(tmp_path / "run").results()
    first = next(result for result in results if result.rows)
    assert first.reward == 0.0 and first.rollout_id.startswith(f"g0.{TASK}.pi.")
    assert first.rows[0].metadata["policy_versions"][0] == [3, 3]
    info = RunDir.open(tmp_path / "run").info()
    assert info["config"]["temperature"] == 0.7, "the worker's, which is the trainer's"
