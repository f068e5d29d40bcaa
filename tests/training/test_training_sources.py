"""Routing, cardinality and order of the rollout function; recorded and live sources."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.errors import ConfigError, InfrastructureError
from drivetrain.rollout.result import RolloutResult
from drivetrain.trace.sample import HarnessTrace
from drivetrain.training.rollout_func import build_requests, build_rollout_func, env_reward
from drivetrain.training.rows import RowError
from drivetrain.training.sources import EpisodeRequest, LiveSource, RecordedSource


def row(**changes: Any) -> HarnessTrace:
    fields: dict[str, Any] = {
        "prompt_ids": [1],
        "response_ids": [4],
        "loss_mask": [1],
        "response_logprobs": [-0.5],
        "metadata": {"policy_versions": [[3, 3]]},
    }
    return HarnessTrace(**{**fields, **changes})


def result(task: str, group: int, **changes: Any) -> RolloutResult:
    fields: dict[str, Any] = {
        "rollout_id": f"{task}-{group}",
        "session_id": "s",
        "task_id": task,
        "agent": "pi",
        "group": group,
        "status": "ok",
        "reward": float(group),
        "rows": [row(prompt_ids=[10 + group])],
    }
    return RolloutResult(**{**fields, **changes})


def prompt(task: str, **extra: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "fix it", "task_id": task, "agent": "pi", **extra}]


def trainer(copies: int = 2, *, rank: int = 0, step: int = 0) -> Any:
    return SimpleNamespace(
        num_generations=copies,
        accelerator=SimpleNamespace(process_index=rank),
        state=SimpleNamespace(global_step=step),
        model=None,
    )


def call(source: Any, prompts: list[Any], copies: int = 2, **options: Any) -> dict[str, Any]:
    return build_rollout_func(source, eos_id=2, pad_id=0, **options)(prompts, trainer(copies))


def test_recorded_rollouts_come_back_in_prompt_order() -> None:
    source = RecordedSource([result("b", 1), result("a", 0), result("b", 0), result("a", 1)], policy_version=3)
    out = call(source, [prompt("b"), prompt("b"), prompt("a"), prompt("a")])
    assert out["rollout_id"] == ["b-0", "b-1", "a-0", "a-1"]
    assert out["prompt_ids"] == [[10], [11], [10], [11]]
    assert env_reward(prompts=[], **{"env_reward": out["env_reward"]}) == [0.0, 1.0, 0.0, 1.0]


def test_recorded_source_refuses_small_groups_unknown_tasks_and_other_policies() -> None:
    source = RecordedSource([result("a", 0), result("a", 1)])
    with pytest.raises(ConfigError, match="2 recorded rollouts; copy 2"):
        call(source, [prompt("a")] * 3, copies=3)
    with pytest.raises(ConfigError, match="has 0 recorded"):
        call(source, [prompt("z")] * 2)
    with pytest.raises(ConfigError, match="agent other has 0"):
        call(source, [prompt("a", agent="other")] * 2)
    with pytest.raises(ConfigError, match=r"policy version 3.*version 4"):
        RecordedSource([result("a", 0)], policy_version=4)


def test_a_prompt_without_a_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no task"):
        call(RecordedSource([]), [[{"role": "user", "content": "x"}]])
    with pytest.raises(ConfigError, match="names no task"):
        call(RecordedSource([]), ["plain text"])


def test_copies_are_numbered_across_ranks_and_seeds_differ() -> None:
    prompts = [prompt("a")] * 3
    first = build_requests(prompts, trainer(2, rank=0), default_agent="", seed=1)
    second = build_requests(prompts, trainer(2, rank=1), default_agent="", seed=1)
    assert [request.group for request in first + second] == [0, 1, 0, 1, 0, 1]
    later = build_requests(prompts, trainer(2, step=1), default_agent="", seed=1)
    assert len({request.seed for request in first[:2] + later[:2]}) == 4
    assert first == build_requests(prompts, trainer(2, rank=0), default_agent="", seed=1)


def test_default_agent_fills_in() -> None:
    requests = build_requests([prompt("a", agent=None)], trainer(), default_agent="pi", seed=0)
    assert requests[0].key == ("a", "pi")


class Broken:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def run(self, requests: Sequence[EpisodeRequest]) -> list[RolloutResult]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_wrong_cardinality_or_order_of_a_source_is_refused() -> None:
    prompts = [prompt("a"), prompt("b")]
    with pytest.raises(ConfigError, match="1 results for 2 requests"):
        call(Broken([result("a", 0)]), prompts, copies=1)
    with pytest.raises(ConfigError, match="3 results for 2 requests"):
        call(Broken([result("a", 0)] * 3), prompts, copies=1)
    with pytest.raises(ConfigError, match="in the order of the requests"):
        call(Broken([result("b", 0), result("a", 0)]), prompts, copies=1)


@pytest.mark.case("E7")
def test_failures_of_rollouts_never_reach_the_trainer() -> None:
    out = call(Broken(InfrastructureError("no sandbox")), [prompt("a")] * 2)
    assert out["env_reward"] == [None, None]
    assert out["error"] == ["no sandbox", "no sandbox"]
    bad = result("a", 0, rows=[row(response_logprobs=[0.5])])
    forked = result("a", 1, rows=[row(), row()])
    out = call(RecordedSource([bad, forked]), [prompt("a")] * 2)
    assert out["status"] == ["unscorable", "unscorable"]
    assert out["env_mask"] == [[0], [0]]
    assert "[bad_logprob]" in out["error"][0]
    assert "[forked]" in out["error"][1]
    with pytest.raises(RowError):
        call(RecordedSource([bad, forked]), [prompt("a")] * 2, bad_rollouts="raise")


@pytest.mark.case("E7")
def test_a_contract_error_of_one_episode_stops_nothing() -> None:
    async def episode(request: EpisodeRequest) -> RolloutResult:
        if request.group == 0:
            raise ConfigError("the trace breaks the contract.")
        if request.group == 1:
            return result(request.task_id, 1, rows=[row(loss_mask=[2])])
        return result(request.task_id, request.group)

    source = LiveSource(episode)
    try:
        for _ in range(2):  # and the next batch is served as well
            out = call(source, [prompt("a")] * 3, copies=3)
            assert out["env_reward"] == [None, None, 2.0]
            assert out["env_mask"] == [[0], [0], [1]]
            assert "the contract" in out["error"][0]
            assert "[bad_mask]" in out["error"][1]
    finally:
        source.close()


def test_live_source_is_concurrent_ordered_and_bounded() -> None:
    running = peak = 0

    async def episode(request: EpisodeRequest) -> RolloutResult:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.05 - 0.01 * request.group)  # later copies finish first
        running -= 1
        if request.group == 1:
            raise RuntimeError("boom")
        if request.group == 2:
            await asyncio.sleep(30)
        return result(request.task_id, request.group)

    source = LiveSource(episode, concurrency=3, timeout=0.5)
    try:
        out = call(source, [prompt("a")] * 4, copies=4)
    finally:
        source.close()
        source.close()
    assert out["env_reward"] == [0.0, None, None, 3.0]
    assert out["status"] == ["ok", "infra_error", "infra_error", "ok"]
    assert "RuntimeError: boom" in out["error"][1]
    assert "longer than 0.5 s" in out["error"][2]
    assert peak == 3


def test_live_source_needs_a_positive_concurrency() -> None:
    with pytest.raises(ConfigError, match="concurrency"):
        LiveSource(lambda request: asyncio.sleep(0), concurrency=0)  # type: ignore[arg-type, return-value]
