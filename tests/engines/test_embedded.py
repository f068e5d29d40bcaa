"""The embedded engine on a tiny model: exact log-probs, reuse of keys and values, joining, leaving, new weights."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Completion, ContextOverflow, Engine, EngineError, Sampling
from drivetrain.errors import ConfigError

torch = pytest.importorskip("torch")

EXACT = 2e-5
Reference = Callable[[list[int], Completion, float], float]


def prompt(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 500) for _ in range(length)]


@pytest.fixture
async def engine(tiny: ModelDir) -> AsyncIterator[EmbeddedEngine]:
    made = EmbeddedEngine(tiny, threads=1, max_batch=4, prefill_chunk=32, busy_prefill_chunk=8)
    await made.start()
    yield made
    await made.aclose()


@pytest.fixture(scope="session")
def model(tiny: ModelDir) -> Any:
    return load(tiny)


def load(tiny: ModelDir) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny.path, dtype=torch.float32).eval()


def distance(model: Any, ids: list[int], done: Completion, temperature: float = 1.0) -> float:
    """Largest difference to one full forward pass of transformers over the same ids."""
    sampled = torch.tensor(list(done.token_ids))
    with torch.inference_mode():
        logits = model(torch.tensor([ids + list(done.token_ids)])).logits[0, len(ids) - 1 : -1]
    reference = torch.log_softmax(logits.float() / temperature, dim=-1).gather(1, sampled[:, None])[:, 0]
    return float((torch.tensor(list(done.logprobs)) - reference).abs().max())


async def ask(engine: Engine, ids: list[int], tokens: int = 8, **sampling: Any) -> Completion:
    return await engine.generate(ids, Sampling(max_tokens=tokens, **sampling), request_id="r", session_id="s")


async def generated(engine: EmbeddedEngine, tokens: int) -> None:
    """Wait until the engine has sampled ``tokens`` tokens in all."""
    while engine.metrics().generated_tokens < tokens:  # noqa: ASYNC110 - the engine thread sets no asyncio event
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_exact_in_mixed_batches_and_across_turns(engine: EmbeddedEngine, model: Any, temperature: float) -> None:
    lengths = [1, 2, 5, 31, 32, 33, 64, 100, 150, 250]

    async def session(index: int) -> float:
        worst, ids = 0.0, prompt(lengths[index], index)
        await asyncio.sleep(0.003 * index)
        for turn in range(3):
            done = await ask(engine, ids, 5 + 3 * index, temperature=temperature, seed=turn, stop_token_ids=(2,))
            assert len(done.logprobs) == len(done.token_ids)
            worst = max(worst, distance(model, ids, done, temperature))
            ids = ids + list(done.token_ids) + prompt(7, 100 + turn)
        return worst

    assert max(await asyncio.gather(*[session(index) for index in range(len(lengths))])) <= EXACT


async def test_a_continued_conversation_computes_only_what_is_new(engine: EmbeddedEngine) -> None:
    ids = prompt(100)
    first = await ask(engine, ids, 10, seed=1)
    assert engine.metrics().prefill_tokens == 100
    await ask(engine, ids + list(first.token_ids) + prompt(5, 2), 10, seed=1)
    seen = engine.metrics()
    assert seen.prefill_tokens == 100 + 1 + 5  # the last sampled token has no keys yet
    assert (seen.cache_hits, seen.cache_misses, seen.cached_tokens) == (1, 1, 109)
    assert seen.cache_entries == 1  # the longer sequence took the place of its own prefix


async def test_a_fork_keeps_both_branches(engine: EmbeddedEngine) -> None:
    ids = prompt(60)
    await ask(engine, [*ids, 7, 8], seed=1)
    await ask(engine, [*ids, 9], seed=1)
    assert engine.metrics().prefill_tokens == 62 + 1
    assert engine.metrics().cache_entries == 2
    await ask(engine, [*ids, 7, 8], seed=1)
    assert engine.metrics().prefill_tokens == 62 + 1 + 1


async def test_a_group_of_equal_prompts_is_computed_once(engine: EmbeddedEngine, model: Any) -> None:
    ids = prompt(120)
    group = await asyncio.gather(*[ask(engine, ids, 20, seed=seed) for seed in range(8)])
    assert len({tuple(done.token_ids) for done in group}) == 8
    assert max(distance(model, ids, done) for done in group) <= EXACT
    assert engine.metrics().prefill_tokens == 120 + 7  # each copy runs its last prompt token for the logits


async def test_cache_is_bounded_by_bytes(tiny: ModelDir) -> None:
    entry = 2 * 2 * 2 * 128 * 16 * 4  # layers, keys and values, heads, tokens, dim, bytes
    engine = EmbeddedEngine(tiny, threads=1, cache_bytes=3 * entry)
    await engine.start()
    for seed in range(6):
        await ask(engine, prompt(110, seed), seed=0)
    assert (engine.metrics().cache_entries, engine.metrics().cache_bytes) == (3, 3 * entry)
    before = engine.metrics().prefill_tokens
    await ask(engine, prompt(110, 5), seed=0)
    await ask(engine, prompt(110, 0), seed=0)
    assert engine.metrics().prefill_tokens == before + 1 + 110
    await engine.aclose()


async def test_seeds(engine: EmbeddedEngine) -> None:
    ids = prompt(40)
    alone = await ask(engine, ids, 30, seed=5)
    others = [ask(engine, prompt(20 + 9 * i, i), 30, seed=i) for i in range(5)]
    mixed, *_ = await asyncio.gather(ask(engine, ids, 30, seed=5), *others)
    assert list(mixed.token_ids) == list(alone.token_ids)
    other, fresh, again = [await ask(engine, ids, 30, seed=seed) for seed in (6, None, None)]
    assert len({tuple(done.token_ids) for done in (alone, other, fresh, again)}) == 4
    await ask(engine, ids, 1, seed=-(2**70))


async def test_sampling_follows_the_distribution(engine: EmbeddedEngine, model: Any) -> None:
    ids = prompt(12)
    with torch.inference_mode():
        expected = torch.softmax(model(torch.tensor([ids])).logits[0, -1] / 0.8, dim=-1)
    draws = await asyncio.gather(*[ask(engine, ids, 1, seed=seed, temperature=0.8) for seed in range(800)])
    seen = torch.bincount(torch.tensor([done.token_ids[0] for done in draws]), minlength=len(expected)) / len(draws)
    top = int(expected.argmax())
    sigma = float((expected[top] * (1 - expected[top]) / len(draws)) ** 0.5)
    assert abs(float(seen[top] - expected[top])) < 4 * sigma


async def test_ends(engine: EmbeddedEngine, tiny: ModelDir) -> None:
    ids = prompt(20)
    free = await ask(engine, ids, 12, seed=3)
    assert (len(free.token_ids), free.finish_reason) == (12, "length")
    stop = free.token_ids[4]
    stopped = await ask(engine, ids, 12, seed=3, stop_token_ids=(stop,))
    first = list(free.token_ids).index(stop)
    assert list(stopped.token_ids) == list(free.token_ids)[: first + 1]
    assert stopped.finish_reason == "stop"
    full = await ask(engine, prompt(tiny.context_length - 3), 100, seed=0)
    assert (len(full.token_ids), full.finish_reason) == (3, "length")
    with pytest.raises(ContextOverflow) as overflow:
        await ask(engine, prompt(tiny.context_length))
    assert (overflow.value.prompt_tokens, overflow.value.context_length) == (512, 512)


@pytest.mark.parametrize(
    ("ids", "sampling"),
    [
        ([], {}),
        ([512], {}),
        ([-1], {}),
        ([5], {"temperature": 0.0}),
        ([5], {"temperature": float("nan")}),
        ([5], {"tokens": 0}),
    ],
)
async def test_invalid_calls(engine: EmbeddedEngine, ids: list[int], sampling: dict[str, Any]) -> None:
    with pytest.raises(EngineError) as refused:
        await ask(engine, ids, **sampling)
    assert not refused.value.retryable


async def test_requests_join_a_running_batch(engine: EmbeddedEngine) -> None:
    long = asyncio.ensure_future(ask(engine, prompt(10), 400, seed=0))
    await generated(engine, 5)
    short = await ask(engine, prompt(100, 1), 5, seed=0)
    assert len(short.token_ids) == 5
    assert not long.done()
    assert len((await long).token_ids) == 400


async def test_more_requests_than_slots(engine: EmbeddedEngine) -> None:
    calls = [asyncio.ensure_future(ask(engine, prompt(5, i), 60, seed=i)) for i in range(9)]
    await generated(engine, 1)
    seen = engine.metrics()
    assert (seen.running, seen.waiting) == (4, 5)
    assert [len(done.token_ids) for done in await asyncio.gather(*calls)] == [60] * 9


async def test_cancelling_frees_the_slot_and_keeps_what_was_computed(engine: EmbeddedEngine) -> None:
    ids = prompt(64)
    calls = [asyncio.ensure_future(ask(engine, [*ids, i], 440, seed=i)) for i in range(6)]
    await generated(engine, 8)
    for call in calls:
        call.cancel()
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*calls, return_exceptions=True))
    await ask(engine, prompt(5, 9), 1, seed=0)
    seen = engine.metrics()
    assert (seen.cancelled, seen.running, seen.waiting) == (6, 0, 0)
    assert seen.generated_tokens < 6 * 440
    before = seen.prefill_tokens
    await ask(engine, [*ids, 0], 1, seed=0)
    assert engine.metrics().prefill_tokens == before + 1


@pytest.mark.parametrize(("steps", "sampled"), [(2, 0), (20, 6)], ids=["in the prompt", "in the answer"])
async def test_a_cancelled_call_gets_no_further_step(engine: EmbeddedEngine, steps: int, sampled: int) -> None:
    loop = engine._running()
    step = loop._step

    def step_then_hold() -> None:
        step()
        if loop.metrics.steps == steps:
            loop._pauses += 1  # what pause() does, from the engine's own thread

    loop._step = step_then_hold  # type: ignore[method-assign]
    call = asyncio.ensure_future(ask(engine, prompt(470), 30, seed=0))  # 15 steps of 32 tokens, then one per token
    while not loop._pauses:  # noqa: ASYNC110 - the engine thread sets no asyncio event
        await asyncio.sleep(0.001)
    await engine.pause()  # returns when that step has ended
    loop._step = step  # type: ignore[method-assign]
    call.cancel()
    assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], asyncio.CancelledError)
    loop._pauses -= 1
    await engine.resume()
    assert len((await ask(engine, prompt(12, 1), 4)).token_ids) == 4
    seen = engine.metrics()
    assert (seen.cancelled, seen.running) == (1, 0)
    assert seen.generated_tokens == sampled + 4
    assert seen.prefill_tokens == min(470, 32 * steps) + 12


async def test_new_weights_drop_keys_and_raise_the_version(engine: EmbeddedEngine, tiny: ModelDir) -> None:
    ids = prompt(50)
    old = await ask(engine, ids, seed=1)
    changed = load(tiny)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(1.1)
    engine.update_weights(changed.state_dict(), 7)
    assert engine.policy_version == 7
    assert engine.metrics().cache_entries == 0
    new = await ask(engine, ids, seed=1)
    assert (old.policy_version_start, old.policy_version_end) == (0, 0)
    assert (new.policy_version_start, new.policy_version_end) == (7, 7)
    assert engine.metrics().prefill_tokens == 100
    assert distance(changed, ids, new) <= EXACT


async def test_a_request_across_an_update_says_so_and_is_exact_under_each(tiny: ModelDir, model: Any) -> None:
    trained = load(tiny)
    engine = EmbeddedEngine(tiny, threads=1, model=trained)
    await engine.start()
    ids = prompt(30)
    call = asyncio.ensure_future(ask(engine, ids, 300, seed=1))
    await generated(engine, 20)

    def train() -> int:
        with engine.paused() as served, torch.no_grad():
            assert served is trained
            for parameter in served.parameters():
                parameter.mul_(1.1)
            engine.update_weights(None, 1)
            return engine.metrics().generated_tokens

    at = await asyncio.to_thread(train)
    done = await call
    assert (done.policy_version_start, done.policy_version_end) == (0, 1)

    def part(start: int, stop: int) -> tuple[list[int], Completion]:
        cut = Completion(
            token_ids=done.token_ids[start:stop],
            logprobs=done.logprobs[start:stop],
            finish_reason="length",
            policy_version_start=0,
            policy_version_end=0,
        )
        return ids + list(done.token_ids[:start]), cut

    assert distance(model, *part(0, at)) <= EXACT
    assert distance(trained, *part(at, 300)) <= EXACT
    await engine.aclose()


async def test_weights_that_do_not_fit_change_nothing(engine: EmbeddedEngine, tiny: ModelDir) -> None:
    before = await ask(engine, prompt(9), seed=1)
    good = load(tiny).state_dict()
    key = "model.norm.weight"
    for bad, says in (
        ({**good, "nonsense": good[key]}, "unknown"),
        ({name: value * 2 for name, value in good.items() if name != key}, "missing"),
        ({name: value * 2 if name != key else value[:1] for name, value in good.items()}, "another shape"),
    ):
        with pytest.raises(EngineError, match=says):
            engine.update_weights(bad, 9)
    assert engine.policy_version == 0
    assert list((await ask(engine, prompt(9), seed=1)).token_ids) == list(before.token_ids)
    without_tied = {name: value for name, value in good.items() if name != "lm_head.weight"}
    engine.update_weights(without_tied, 1)


async def test_shared_module_keeps_its_training_state(tiny: ModelDir) -> None:
    trained = load(tiny).train()
    getattr(trained, "activation_checkpointing_enable", trained.gradient_checkpointing_enable)()
    before = trained.config._attn_implementation
    engine = EmbeddedEngine(tiny, threads=1)
    engine.share(trained)
    await engine.start()
    await ask(engine, prompt(9), seed=1)
    with engine.paused():
        assert all(module.training for module in trained.modules())
        assert trained.config._attn_implementation == before
        loss = trained(torch.tensor([prompt(9)]), labels=torch.tensor([prompt(9)])).loss
        loss.backward()
    assert trained.model.norm.weight.grad is not None
    engine.share(load(tiny), 4)
    assert (await ask(engine, prompt(9), seed=1)).policy_version_start == 4
    await engine.aclose()


async def test_paused_holds_every_step(engine: EmbeddedEngine) -> None:
    await engine.pause()
    await engine.pause()
    call = asyncio.ensure_future(ask(engine, prompt(5), 3, seed=0))
    await asyncio.sleep(0.03)
    await engine.resume()
    await asyncio.sleep(0.03)
    assert not call.done()
    assert engine.metrics().steps == 0
    await engine.resume()
    assert len((await call).token_ids) == 3


async def test_a_failing_step_fails_its_requests_and_the_engine_goes_on(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "forward", lambda **_: 1 / 0)
        with pytest.raises(EngineError, match="ZeroDivisionError") as failed:
            await ask(engine, prompt(5))
    assert failed.value.retryable
    assert len((await ask(engine, prompt(5), 3)).token_ids) == 3


async def test_diverged_weights_are_an_error(tiny: ModelDir) -> None:
    broken = load(tiny)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    engine = EmbeddedEngine(tiny, threads=1, model=broken)
    await engine.start()
    with pytest.raises(EngineError, match="not finite"):
        await ask(engine, prompt(5))
    await engine.aclose()


async def test_life_cycle(tiny: ModelDir) -> None:
    engine = EmbeddedEngine(tiny, threads=1)
    assert isinstance(engine, Engine)
    assert (engine.name, engine.context_length) == ("embedded:tiny", 512)
    with pytest.raises(EngineError, match="start"):
        await ask(engine, prompt(5))
    await asyncio.gather(engine.start(), engine.start())
    call = asyncio.ensure_future(ask(engine, prompt(5), 500, seed=0))
    await generated(engine, 1)
    await engine.aclose()
    await engine.aclose()
    with pytest.raises(EngineError, match="closed"):
        await call
    assert not [thread for thread in threading.enumerate() if thread.name == "drivetrain-engine"]
    await engine.start()
    assert len((await ask(engine, prompt(5), 2)).token_ids) == 2
    await engine.aclose()


async def test_what_cannot_be_served_is_refused_at_start(tiny: ModelDir, tmp_path: Any) -> None:
    import shutil

    import msgspec

    empty = tmp_path / "empty"
    shutil.copytree(tiny.path, empty)
    (empty / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="cannot be loaded"):
        await EmbeddedEngine(msgspec.structs.replace(tiny, path=empty)).start()
    windowed = load(tiny)
    windowed.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ConfigError, match="sliding_attention"):
        await EmbeddedEngine(tiny, model=windowed).start()
    with pytest.raises(ConfigError, match="max_batch"):
        EmbeddedEngine(tiny, max_batch=0)


async def test_qwen2_is_exact_too(tiny: ModelDir) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    qwen: Any = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=512, num_key_value_heads=1, initializer_range=0.2, **sizes)
    ).eval()
    engine = EmbeddedEngine(tiny, threads=1, model=qwen, busy_prefill_chunk=16)
    await engine.start()
    calls = [(prompt(40 * i + 3, i), i) for i in range(5)]
    done = await asyncio.gather(*[ask(engine, ids, 20, seed=i) for ids, i in calls])
    worst = [distance(qwen, ids, one) for (ids, _), one in zip(calls, done, strict=True)]
    assert max(worst) <= EXACT
    await engine.aclose()


@pytest.mark.real
async def test_smollm2_is_exact(smollm2: ModelDir) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2.tokenizer_path))
    reference = load(smollm2)
    engine = EmbeddedEngine(smollm2, threads=1, busy_prefill_chunk=32)
    await engine.start()
    questions = ["Say hi.", "Write a Python function that reverses a list. " * 4, "What is 12 + 30?"]

    async def session(index: int) -> float:
        temperature = (1.0, 0.7, 1.0)[index]
        text = f"<|im_start|>user\n{questions[index]}<|im_end|>\n<|im_start|>assistant\n"
        ids = tokenizer.encode(text).ids
        first = await ask(engine, ids, 8, temperature=temperature, seed=1)
        more = tokenizer.encode("\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n").ids
        longer = ids + list(first.token_ids) + more
        second = await ask(engine, longer, 8, temperature=temperature, seed=2)
        return max(
            distance(reference, ids, first, temperature),
            distance(reference, longer, second, temperature),
        )

    worst = max(await asyncio.gather(*[session(index) for index in range(3)]))
    assert engine.metrics().cache_hits >= 3
    await engine.aclose()
    assert worst <= 5e-5
