"""Weights move behind the fence; tokens of old weights are withheld while scores count."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.fence import Fence
from drivetrain.gateway.fence_threads import ThreadFence
from drivetrain.trace.sample import HarnessTrace
from drivetrain.training.rows import check_result, is_trainable
from drivetrain.training.sources import RecordedSource
from drivetrain.training.weights import fenced_sync, withhold_stale
from tests.training.test_training_sources import call, prompt, result


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


def test_weights_move_while_the_gate_is_closed(tiny_model: ModelDir, loop: asyncio.AbstractEventLoop) -> None:
    engine = ScriptedEngine(tiny_model, lambda *_: "x")
    fence = ThreadFence(Fence(engine), loop)
    seen: list[Any] = []

    def publish(step: int) -> None:
        seen.append((step, fence.status().state))
        if step == 2:
            raise RuntimeError("out of memory")

    sync = fenced_sync(fence, publish)
    sync(1)
    assert (fence.status().state, engine.policy_version) == ("open", 1)
    with pytest.raises(RuntimeError, match="out of memory"):
        sync(2)
    assert fence.status().failed
    sync(3)
    assert (fence.status().state, engine.policy_version) == ("open", 3)
    assert seen == [(1, "closed"), (2, "closed"), (3, "closed")]


def mixed_row() -> HarnessTrace:
    """Two sampled tokens of version 1, one of the environment, a turn that straddles 1 and 2, one token of 3."""
    return HarnessTrace(
        prompt_ids=[9],
        response_ids=[1, 2, 3, 4, 5, 6],
        loss_mask=[1, 1, 0, 1, 1, 1],
        response_logprobs=[-0.5, -0.5, 0.0, -0.5, -0.5, -0.5],
        metadata={"policy_spans": [[0, 2, 1, 1], [3, 5, 1, 2], [5, 6, 3, 3]], "masked": {"undelivered": 4}},
    )


@pytest.mark.case("E5")
@pytest.mark.parametrize(("lag", "mask"), [(0, [0, 0, 0, 0, 0, 1]), (1, [0, 0, 0, 0, 0, 1]), (2, [1, 1, 0, 1, 1, 1])])
def test_stale_tokens_are_withheld_and_the_score_counts(lag: int, mask: list[int]) -> None:
    before = result("a", 1, rows=[mixed_row()])
    after = withhold_stale(before, 3, lag)
    check_result(after)
    assert after.rows[0].loss_mask == mask
    assert after.rows[0].metadata["masked"] == {"undelivered": 4} | ({"stale_policy": 5 - sum(mask)} if lag < 2 else {})
    assert after.reward == before.reward
    assert before.rows[0] == mixed_row()


@pytest.mark.case("E5")
def test_a_wholly_stale_rollout_keeps_its_place_in_the_baseline() -> None:
    stale = withhold_stale(result("a", 1, rows=[mixed_row()]), 9, 0)
    assert sum(stale.rows[0].loss_mask) == 0
    assert is_trainable(stale)
    # The trainer is at step 0 here, so that rows of version -1 are stale.
    old = mixed_row()
    old.metadata["policy_spans"] = [[0, 6, -1, -1]]
    source = RecordedSource([result("a", 0, rows=[old]), result("a", 1, rows=[mixed_row()])])
    out = call(source, [prompt("a")] * 2, max_policy_lag=0)
    assert out["env_reward"] == [0.0, 1.0]
    assert [sum(mask) for mask in out["env_mask"]] == [0, 5]


def test_a_negative_lag_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_policy_lag"):
        withhold_stale(result("a", 0), 1, -1)
