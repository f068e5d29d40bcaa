# ruff: noqa: E402
"""Live episodes on the trainer's own model: every step is on-policy, also after an update."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import read_model_dir
from drivetrain.engines.protocol import Sampling
from drivetrain.rollout.result import RolloutResult
from drivetrain.trace.sample import HarnessTrace
from drivetrain.training.sources import EpisodeRequest, LiveSource

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from drivetrain.training.live import LiveTask, train_live


class Sampler:
    """Samples 12 tokens from the trainer's model; the reward is whether the first id is even."""

    def __init__(self, model: Any, temperature: float) -> None:
        self.model = model
        self.temperature = temperature
        self.requests: list[EpisodeRequest] = []

    def run(self, requests: Sequence[EpisodeRequest]) -> list[RolloutResult]:
        self.requests += requests
        return [self.episode(request) for request in requests]

    @torch.no_grad()
    def episode(self, request: EpisodeRequest) -> RolloutResult:
        generator = torch.Generator().manual_seed(request.seed)
        ids, logps = [5, 6, 7 + len(request.task_id)], []
        start = len(ids)
        for _ in range(12):
            logits = self.model(input_ids=torch.tensor([ids])).logits[0, -1] / self.temperature
            logp = torch.log_softmax(logits, dim=-1)
            token = int(torch.multinomial(logp.exp(), 1, generator=generator))
            ids.append(token)
            logps.append(min(float(logp[token]), 0.0))
        row = HarnessTrace(
            prompt_ids=ids[:start], response_ids=ids[start:], loss_mask=[1] * 12, response_logprobs=logps
        )
        return RolloutResult(
            rollout_id=f"{request.task_id}-{request.seed}",
            session_id="",
            task_id=request.task_id,
            agent=request.agent,
            group=request.group,
            status="ok",
            reward=float(ids[start] % 2 == 0),
            rows=[row],
        )


def test_live_steps_stay_on_policy(model_dir: Path, tmp_path: Path) -> None:
    samplers: list[Sampler] = []
    synced: list[int] = []

    def make_source(model: Any, _tokenizer: Any) -> Sampler:
        samplers.append(Sampler(model, 0.8))
        return samplers[0]

    report = train_live(
        make_source,
        [LiveTask(task_id="a", agent="pi", prompt="p"), LiveTask(task_id="bb", agent="pi", prompt="q")],
        model_dir,
        out_dir=tmp_path,
        steps=3,
        num_generations=4,
        temperature=0.8,
        learning_rate=1e-2,
        sync=synced.append,
    )
    assert report.steps == 3
    assert synced == [0, 1, 2]
    assert [request.task_id for request in samplers[0].requests] == ["a"] * 4 + ["bb"] * 4 + ["a"] * 4
    assert len({request.seed for request in samplers[0].requests}) == 12
    assert len(report.history) == 3
    assert max(entry["sampling/sampling_logp_difference/max"] for entry in report.history) < 1e-5


@pytest.mark.real
def test_embedded_engine_serves_the_model_being_trained(model_dir: Path, tmp_path: Path) -> None:
    """Two turns per episode from the engine that shares the trainer's weights; no copy, no drift, versions follow."""
    engines: list[EmbeddedEngine] = []
    sources: list[LiveSource] = []
    versions: list[int] = []

    async def episode(request: EpisodeRequest) -> RolloutResult:
        prompt = [5, 6, 7, 8]
        sampling = Sampling(max_tokens=10, temperature=0.9, seed=request.seed)
        first = await engines[0].generate(prompt, sampling, request_id="1")
        observation = [40, 41, 42]
        context = [*prompt, *first.token_ids, *observation]
        second = await engines[0].generate(context, sampling, request_id="2")
        versions.extend([first.policy_version_start, second.policy_version_end])
        row = HarnessTrace(
            prompt_ids=prompt,
            response_ids=[*first.token_ids, *observation, *second.token_ids],
            loss_mask=[1] * len(first.token_ids) + [0] * 3 + [1] * len(second.token_ids),
            response_logprobs=[*first.logprobs, 0.0, 0.0, 0.0, *second.logprobs],
        )
        return RolloutResult(
            rollout_id=f"r{request.seed}",
            session_id="",
            task_id=request.task_id,
            agent=request.agent,
            group=request.group,
            status="ok",
            reward=float(first.token_ids[0] % 2),
            rows=[row],
        )

    def make_source(model: Any, _tokenizer: Any) -> LiveSource:
        engines.append(EmbeddedEngine(read_model_dir(model_dir, "tiny"), model=model))
        sources.append(LiveSource(episode, concurrency=4, timeout=60))
        sources[0].wait(engines[0].start())
        return sources[0]

    try:
        report = train_live(
            make_source,
            [LiveTask(task_id="a", agent="pi")],
            model_dir,
            out_dir=tmp_path,
            steps=2,
            num_generations=4,
            temperature=0.9,
            learning_rate=1e-2,
            sync=lambda step: engines[0].update_weights(None, step),
        )
    finally:
        for source, engine in zip(sources, engines, strict=True):
            source.wait(engine.aclose())
            source.close()
    assert versions == [0] * 8 + [1] * 8
    assert report.excluded == 0
    assert max(entry["sampling/sampling_logp_difference/max"] for entry in report.history) < 1e-5
