"""The embedded engine behind the fence: weights change in place, and no key or value of the old ones is used again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Completion, Pausable, PrefixCached, VersionSettable
from drivetrain.gateway.fence import Fence
from drivetrain.gateway.fence_threads import ThreadFence
from drivetrain.gateway.fence_types import FenceTimeout
from tests.engines.test_embedded import EXACT, ask, distance, generated, load, prompt

torch = pytest.importorskip("torch")


@pytest.fixture
async def engine(tiny: ModelDir) -> AsyncIterator[EmbeddedEngine]:
    made = EmbeddedEngine(tiny, threads=1, model=load(tiny))
    await made.start()
    yield made
    await made.aclose()


def change(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)


async def call(fence: Fence, engine: EmbeddedEngine, ids: list[int], tokens: int, **sampling: Any) -> Completion:
    async with fence.passing():
        return await ask(engine, ids, tokens, **sampling)


@pytest.mark.case("E4")
async def test_a_continuation_after_an_update_in_place_is_exact(engine: EmbeddedEngine) -> None:
    assert isinstance(engine, Pausable) and isinstance(engine, PrefixCached) and isinstance(engine, VersionSettable)
    fence = Fence(engine)
    ids = prompt(60)
    first = await call(fence, engine, ids, 20, seed=1)
    async with fence.paused() as update:
        change(engine.model)
        update.version = 3
    longer = [*ids, *first.token_ids, *prompt(5, seed=2)]
    second = await call(fence, engine, longer, 20, seed=2)
    assert (second.policy_version_start, second.policy_version_end) == (3, 3)
    assert distance(engine.model, longer, second) <= EXACT
    third = [*longer, *second.token_ids, 7]
    assert distance(engine.model, third, await call(fence, engine, third, 5, seed=3)) <= EXACT
    assert engine.metrics().cached_tokens == len(longer) + 19  # the third call's prefix, and nothing of the first's


@pytest.mark.case("E4")
async def test_without_the_reset_the_same_continuation_is_wrong(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the test above can fail."""

    async def nothing(*_: Any) -> None: ...

    async def only_say(version: int) -> None:
        engine._version = version

    monkeypatch.setattr(engine, "reset_prefix_cache", nothing)
    monkeypatch.setattr(engine, "set_policy_version", only_say)
    fence = Fence(engine)
    ids = prompt(60)
    first = await call(fence, engine, ids, 20, seed=1)
    async with fence.paused() as update:
        change(engine.model)
        update.version = 3
    longer = [*ids, *first.token_ids, *prompt(5, seed=2)]
    assert distance(engine.model, longer, await call(fence, engine, longer, 20, seed=2)) > 100 * EXACT


@pytest.mark.case("E2", "E3")
async def test_a_held_call_is_exact_under_each_of_its_versions(engine: EmbeddedEngine, tiny: ModelDir) -> None:
    fence = Fence(engine)
    ids = prompt(30)
    running = asyncio.ensure_future(call(fence, engine, ids, 300, seed=1))
    await generated(engine, 20)
    with pytest.raises(FenceTimeout):
        await fence.pause(deadline_s=0.001)

    def train() -> None:
        with ThreadFence(fence, loop).paused("hold") as update:
            change(engine.model)
            update.version = 1

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(train)
    done = await running
    (before, old), (after, new) = done.version_spans
    assert (old, new, before + after) == (0, 1, 300)
    assert done.first_token_at > 0

    def part(start: int, stop: int) -> tuple[list[int], Completion]:
        cut = Completion(
            token_ids=done.token_ids[start:stop],
            logprobs=done.logprobs[start:stop],
            finish_reason="length",
            policy_version_start=0,
            policy_version_end=0,
        )
        return ids + list(done.token_ids[:start]), cut

    assert distance(load(tiny), *part(0, before)) <= EXACT
    assert distance(engine.model, *part(before, 300)) <= EXACT
