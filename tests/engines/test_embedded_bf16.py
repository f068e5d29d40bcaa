"""The embedded engine in bf16: what it tells is a bf16 forward pass, repeatable, and it takes new weights in place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Completion, Sampling

torch = pytest.importorskip("torch")


def prompt(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 500) for _ in range(length)]


def load(directory: ModelDir, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory.path, dtype=getattr(torch, dtype)).eval()


def gaps(model: Any, ids: list[int], done: Completion) -> Any:
    """|log-prob told - log-prob of one full forward pass of ``model``| per sampled token."""
    sampled = torch.tensor(list(done.token_ids))
    with torch.inference_mode():
        logits = model(torch.tensor([ids + list(done.token_ids)])).logits[0, len(ids) - 1 : -1]
    reference = torch.log_softmax(logits.float(), dim=-1).gather(1, sampled[:, None])[:, 0]
    return (torch.tensor(list(done.logprobs)) - reference).abs()


async def ask(engine: EmbeddedEngine, ids: list[int], tokens: int = 24, seed: int = 0) -> Completion:
    return await engine.generate(ids, Sampling(max_tokens=tokens, seed=seed), request_id="r")


@pytest.fixture
async def engine(tiny: ModelDir) -> AsyncIterator[EmbeddedEngine]:
    made = EmbeddedEngine(tiny, dtype="bfloat16", threads=1, max_batch=4, prefill_chunk=64, busy_prefill_chunk=16)
    await made.start()
    yield made
    await made.aclose()


async def batch(engine: EmbeddedEngine) -> list[tuple[list[int], Completion]]:
    """Four conversations of three turns each, run together."""

    async def session(index: int) -> list[tuple[list[int], Completion]]:
        turns, ids = [], prompt(30 + 17 * index, index)
        for turn in range(3):
            done = await ask(engine, ids, seed=10 * index + turn)
            turns.append((list(ids), done))
            ids = ids + list(done.token_ids) + prompt(5, turn)
        return turns

    return [turn for turns in await asyncio.gather(*[session(index) for index in range(4)]) for turn in turns]


async def test_log_probs_are_those_of_a_bf16_forward_pass(engine: EmbeddedEngine, tiny: ModelDir) -> None:
    turns = await batch(engine)
    in_bf16, in_fp32 = (
        torch.cat([gaps(load(tiny, dtype), ids, done) for ids, done in turns]) for dtype in ("bfloat16", "float32")
    )
    print(f"bf16 forward {in_bf16.mean():.4f} {in_bf16.max():.4f}, fp32 {in_fp32.mean():.4f} {in_fp32.max():.4f}")
    assert len(in_bf16) == 4 * 3 * 24
    assert float(in_bf16.mean()) < 0.02


async def test_a_call_is_repeatable_to_the_last_bit(engine: EmbeddedEngine) -> None:
    ids = prompt(100)
    first = await ask(engine, ids, seed=3)
    await engine.reset_prefix_cache()
    again = await ask(engine, ids, seed=3)
    assert (list(again.token_ids), list(again.logprobs)) == (list(first.token_ids), list(first.logprobs))
    assert list((await ask(engine, ids, seed=4)).token_ids) != list(first.token_ids)


@pytest.mark.parametrize("given", ["float32", "bfloat16"])
async def test_new_weights_go_into_the_same_bf16_tensors(engine: EmbeddedEngine, tiny: ModelDir, given: str) -> None:
    ids = prompt(60)
    old = await ask(engine, ids, seed=1)
    assert engine.metrics().cache_entries == 1
    where = {name: value.data_ptr() for name, value in engine.model.named_parameters()}
    changed = load(tiny, given)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(1.25)
    engine.update_weights(changed.state_dict(), 3)
    assert {name: value.data_ptr() for name, value in engine.model.named_parameters()} == where
    assert {value.dtype for value in engine.model.parameters()} == {torch.bfloat16}
    assert (engine.metrics().cache_entries, engine.metrics().cache_bytes) == (0, 0)
    before = engine.metrics().prefill_tokens
    new = await ask(engine, ids, seed=1)
    assert engine.metrics().prefill_tokens == before + 60
    assert (old.policy_version_end, new.policy_version_start) == (0, 3)
    reference = changed.to(torch.bfloat16)
    right, wrong = (float(gaps(reference, ids, done).mean()) for done in (new, old))
    print(f"\nunder the new weights: new {right:.4f}, old {wrong:.4f}")
    assert right < 0.1
    assert wrong > 5 * right


async def test_keys_and_values_take_half_the_memory(engine: EmbeddedEngine, tiny: ModelDir) -> None:
    exact = EmbeddedEngine(tiny, threads=1)
    await exact.start()
    for each in (engine, exact):
        await ask(each, prompt(100), 1)
    assert engine.metrics().cache_bytes * 2 == exact.metrics().cache_bytes
    await exact.aclose()


@pytest.mark.real
async def test_smollm2_in_bf16(smollm2: ModelDir) -> None:
    engine = EmbeddedEngine(smollm2, dtype="bfloat16", threads=1)
    await engine.start()
    prompts = [prompt(20 + 9 * seed, seed) for seed in range(4)]
    done = await asyncio.gather(*[ask(engine, ids, 12, seed) for seed, ids in enumerate(prompts)])
    await engine.aclose()
    turns = list(zip(prompts, done, strict=True))
    found = {}
    for dtype in ("bfloat16", "float32"):
        model = load(smollm2, dtype)
        found[dtype] = torch.cat([gaps(model, ids, one) for ids, one in turns])
        print(f"\nSmolLM2 in bf16 against a {dtype} forward pass: {_told(found[dtype])}")
    assert float(found["bfloat16"].mean()) < 0.1
    assert float(found["float32"].mean()) < 0.1


def _told(gap: Any) -> str:
    return f"mean {gap.mean():.3f}, max {gap.max():.3f} of {len(gap)} tokens"
