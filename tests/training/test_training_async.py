# ruff: noqa: E402
"""AsyncGRPO end to end on the CPU: embedded engine, gateway, fence, TRL's loop, TRL's trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import ModelDir
from drivetrain.errors import ConfigError
from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.route import routed_prompt
from drivetrain.tokens.codec import TokenCodec
from tests.training import scripted_agents as agents
from tests.training.scripted_agents import ScriptedRunner, stack_of

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("openenv.core.harness")

from datasets import Dataset
from transformers import AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig

from drivetrain.rollout.openenv import AgentSessionFactory
from drivetrain.training.alarm import DeltaAlarm, LogpMismatch
from drivetrain.training.async_grpo import MeasuredAsyncGRPOTrainer
from drivetrain.training.fenced import FencedWeights
from drivetrain.training.file_transfer import EmbeddedTransfer
from drivetrain.training.inprocess import InProcessWorker
from tests.training.trl_on_cpu import without_gpu

TEMPERATURE = 0.8
Open = Callable[..., AgentSessionFactory]


@pytest.fixture
def open_factory(
    tmp_path: Path, tiny_model: ModelDir, codec: TokenCodec, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    made: list[AgentSessionFactory] = []

    def build(engine: Any, runners: list[ScriptedRunner]) -> AgentSessionFactory:
        stack = stack_of(codec, {"forks": agents.forking, "plain": agents.plain}, runners)
        monkeypatch.setattr("drivetrain.rollout.openenv.factory.open_stack", stack)
        config = RolloutConfig(tasks=("forks", "plain"), agents=("pi",), max_tokens=16)
        made.append(
            AgentSessionFactory(
                config, run=tmp_path / "run", engine=engine, model=tiny_model, sampling={"temperature": TEMPERATURE}
            )
        )
        return made[-1]

    yield build
    for factory in made:
        factory.close()


def trainer_of(
    model: ModelDir, tmp_path: Path, worker: Any, weights: Any, *, steps: int, alarm: DeltaAlarm | None = None
) -> MeasuredAsyncGRPOTrainer:
    args = AsyncGRPOConfig(
        str(tmp_path / "out"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        token_budget=-1,
        num_generations=2,
        max_steps=steps,
        learning_rate=1e-3,
        temperature=TEMPERATURE,
        max_staleness=100,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    return MeasuredAsyncGRPOTrainer(
        str(model.path),
        args=args,
        train_dataset=dataset(),
        processing_class=AutoTokenizer.from_pretrained(str(model.path), padding_side="left"),
        rollout_worker=worker,
        weight_transfer=weights,
        alarm=alarm,
    )


def dataset() -> Dataset:
    return Dataset.from_list([{"prompt": routed_prompt(task, "pi")} for task in ("forks", "plain")])


def worker_of(model: ModelDir, factory: Any, weights: Any, temperature: float = TEMPERATURE) -> InProcessWorker:
    return InProcessWorker(
        harness_session_factory=factory,
        weights=weights,
        queue_maxsize=32,
        model_name=str(model.path),
        dataset=dataset(),
        reward_funcs=[],
        processing_class=AutoTokenizer.from_pretrained(str(model.path)),
        eos_token_ids=[2],
        num_generations=2,
        max_inflight_tasks=4,
        temperature=temperature,
    )


@pytest.mark.case("E1", "E2", "E4")
def test_async_grpo_trains_on_what_was_sampled(
    open_factory: Open, tiny_model: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First step: ratio 1, KL 0, difference to the sampler below 1e-4, with forks; then three fenced updates."""
    without_gpu(monkeypatch)
    engine = EmbeddedEngine(tiny_model, threads=1)
    factory = open_factory(engine, [])
    weights = FencedWeights(EmbeddedTransfer(engine), factory.gate)
    worker = worker_of(tiny_model, factory, weights)
    trainer = trainer_of(tiny_model, tmp_path, worker, weights, steps=3, alarm=DeltaAlarm())
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "ratio" in entry]
    first = steps[0]
    print(f"\nfirst step: ratio {first['ratio']}, kl {first['kl']:.1e}, difference {first['delta/max']:.1e}")
    assert first["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert abs(first["kl"]) < 1e-6
    assert first["delta/max"] < 1e-4 and first["delta/mean"] <= first["delta/max"]
    assert any(entry.get("rollout/samples_per_rollout", 0) > 1 for entry in steps), "rollouts fork"
    assert trainer.model_version == worker.model_version == engine.policy_version == 4
    served = dict(engine.model.named_parameters()) if engine.model is not None else {}
    results = factory.run.results()
    versions = {tuple(pair) for result in results for row in result.rows for pair in row.metadata["policy_versions"]}
    assert all(start == end for start, end in versions), "nothing straddles an update that drains"
    assert {start for start, _ in versions} <= {1, 2, 3, 4} and len(versions) > 1
    assert not served, "the worker's stop has closed the engine"


def test_a_wrong_sampler_is_named_before_the_first_update(
    open_factory: Open, tiny_model: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_gpu(monkeypatch)
    engine = EmbeddedEngine(tiny_model, threads=1)
    factory = open_factory(engine, [])
    weights = FencedWeights(EmbeddedTransfer(engine), factory.gate)
    worker = worker_of(tiny_model, factory, weights)
    trainer = trainer_of(tiny_model, tmp_path, worker, weights, steps=1, alarm=DeltaAlarm())

    def send(iterator: Any) -> None:
        EmbeddedTransfer(engine).send_weights((name, tensor * 1.05) for name, tensor in iterator)

    monkeypatch.setattr(weights._inner, "send_weights", send)
    before = {name: parameter.clone() for name, parameter in trainer.model.named_parameters()}
    with pytest.raises(LogpMismatch, match="in the first step"):
        trainer.train()
    assert all(torch.equal(parameter, before[name]) for name, parameter in trainer.model.named_parameters())


def test_weights_without_a_worker_that_publishes_are_refused(open_factory: Open, tiny_model: ModelDir) -> None:
    engine = EmbeddedEngine(tiny_model, threads=1)
    factory = open_factory(engine, [])
    with pytest.raises(ConfigError, match="nobody would open the gate"):
        FencedWeights(EmbeddedTransfer(engine), factory.gate).init_weight_transfer()
