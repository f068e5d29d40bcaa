"""A tiny model and a sampler of rollouts whose log-probs come from a plain forward pass."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from drivetrain.rollout.result import RolloutResult
from drivetrain.trace.sample import HarnessTrace
from drivetrain.training.sources import group_results

VOCAB = 512


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A one-megabyte random Llama."""
    pytest.importorskip("torch")
    from drivetrain.engines.tiny import build_tiny_model

    return build_tiny_model(tmp_path_factory.mktemp("tiny"), vocab_size=VOCAB).path


@pytest.fixture(scope="session")
def score(model_dir: Path) -> Callable[..., list[float]]:
    """``score(prompt_ids, response_ids, temperature)``: log-probs by one unpadded forward in eval mode."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=torch.float32).eval()

    def run(prompt_ids: list[int], response_ids: list[int], temperature: float = 1.0) -> list[float]:
        ids = torch.tensor([prompt_ids + response_ids])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt_ids) - 1 : -1] / temperature
        logps = torch.log_softmax(logits, dim=-1)
        return [float(value) for value in logps.gather(1, torch.tensor(response_ids).unsqueeze(1)).squeeze(1)]

    return run


@pytest.fixture
def make_row(score: Callable[..., list[float]]) -> Callable[..., HarnessTrace]:
    """``make_row(rng, prompt=12, spans=((9, 1), (5, 0), (7, 1)))``: random ids, spans of (length, mask)."""

    def make(
        rng: random.Random,
        *,
        prompt: int = 12,
        spans: tuple[tuple[int, int], ...] = ((9, 1), (5, 0), (7, 1)),
        temperature: float = 1.0,
        **metadata: Any,
    ) -> HarnessTrace:
        prompt_ids = [rng.randrange(3, VOCAB) for _ in range(prompt)]
        mask = [value for length, value in spans for _ in range(length)]
        response = [rng.randrange(3, VOCAB) for _ in mask]
        logps = score(prompt_ids, response, temperature)
        return HarnessTrace(
            prompt_ids=prompt_ids,
            response_ids=response,
            loss_mask=mask,
            response_logprobs=[logp if keep else 0.0 for logp, keep in zip(logps, mask, strict=True)],
            metadata=metadata,
        )

    return make


@pytest.fixture
def make_group(make_row: Callable[..., HarnessTrace]) -> Callable[..., list[RolloutResult]]:
    """``make_group(rewards, rows=(1, 1), task="t1")``: one rollout per reward, ``rows[i]`` rows in rollout i."""

    def make(
        rewards: list[float | None],
        *,
        rows: tuple[int, ...] | None = None,
        task: str = "t1",
        agent: str = "pi",
        seed: int = 0,
        temperature: float = 1.0,
    ) -> list[RolloutResult]:
        rng = random.Random(f"{seed}{task}{agent}")
        counts = rows or (1,) * len(rewards)
        return [
            RolloutResult(
                rollout_id=f"{task}-{agent}-{index}",
                session_id=f"s-{task}-{index}",
                task_id=task,
                agent=agent,
                group=index,
                status="ok" if reward is not None else "infra_error",
                reward=reward,
                rows=[
                    make_row(
                        rng,
                        prompt=rng.randrange(5, 30),
                        spans=((rng.randrange(3, 12), 1), (rng.randrange(1, 9), 0), (rng.randrange(2, 12), 1)),
                        temperature=temperature,
                        chain=chain,
                        policy_versions=[[0, 0]],
                    )
                    for chain in range(counts[index])
                ],
                turns=2,
            )
            for index, reward in enumerate(rewards)
        ]

    return make


@pytest.fixture
def gradient_by_hand() -> Callable[..., dict[str, Any]]:
    """``gradient_by_hand(results, model_dir)``: the reference gradient, by parameter name."""
    return _gradient_by_hand


def _advantages_by_hand(results: Sequence[RolloutResult]) -> dict[str, float]:
    out = {}
    for members in group_results(results).values():
        rewards = [member.reward for member in members if member.reward is not None]
        mean, std = statistics.mean(rewards), statistics.stdev(rewards)
        for member in members:
            out[member.rollout_id] = 0.0 if member.reward is None else (member.reward - mean) / (std + 1e-4)
    return out


def _gradient_by_hand(results: Sequence[RolloutResult], model_dir: Path) -> dict[str, Any]:
    """Token mean over all trained tokens of advantage times log-prob gradient, one plain forward per row."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=torch.float32)
    advantages = _advantages_by_hand(results)
    graded = [result for result in results if result.reward is not None]
    tokens = sum(sum(row.loss_mask) for result in graded for row in result.rows)
    for result in graded:
        for row in result.rows:
            logits = model(input_ids=torch.tensor([row.prompt_ids + row.response_ids])).logits[0]
            logps = torch.log_softmax(logits[len(row.prompt_ids) - 1 : -1], dim=-1)
            logps = logps.gather(1, torch.tensor(row.response_ids).unsqueeze(1)).squeeze(1)
            loss = -(advantages[result.rollout_id] * logps * torch.tensor(row.loss_mask)).sum() / tokens
            loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
