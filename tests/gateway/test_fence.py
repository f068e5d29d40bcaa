"""The weight-sync gate by itself: who waits, who passes, who owns a pause, and what is left when one goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Completion, EngineError, Sampling
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.fence import Fence
from drivetrain.gateway.fence_threads import ThreadFence
from drivetrain.gateway.fence_types import FenceBusy, FenceFailed, FenceTimeout, Passage

SAMPLING = Sampling(max_tokens=64)
SLOW = 0.02  # seconds per token: a call that is running when it is looked at
TEXT = "one two three four five six"


@pytest.fixture
def engine(tiny_model: ModelDir) -> ScriptedEngine:
    return ScriptedEngine(tiny_model, lambda *_: TEXT, per_token_s=SLOW)


async def call(fence: Fence, engine: ScriptedEngine) -> tuple[Passage, Completion]:
    async with fence.passing() as passage:
        return passage, await engine.generate([5, 6], SAMPLING, request_id="r")


@asynccontextmanager
async def calls(fence: Fence, engine: ScriptedEngine, count: int) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Calls that have been started and had the time to get as far as they can."""
    tasks = [asyncio.create_task(call(fence, engine)) for _ in range(count)]
    await asyncio.sleep(2 * SLOW)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.case("E1", "E2")
async def test_drain_lets_calls_finish_and_makes_new_ones_wait(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    async with calls(fence, engine, 3) as before:
        pausing = asyncio.create_task(fence.pause(owner="t"))
        await asyncio.sleep(0)
        assert (fence.status().state, fence.status().in_flight) == ("draining", 3)
        async with calls(fence, engine, 2) as during:
            status = await pausing
            assert (status.state, status.in_flight, status.waiting, engine.running) == ("closed", 0, 2, 0)
            assert [task.done() for task in before] == [True] * 3
            engine.policy_version = 1
            assert (await fence.resume(1, owner="t")).state == "open"
            old, new = await asyncio.gather(*before), await asyncio.gather(*during)
    for done, version in ((old, 0), (new, 1)):
        for passage, completion in done:
            assert passage.policy_version == version
            assert (completion.policy_version_start, completion.policy_version_end) == (version, version)
    assert all(passage.dispatched_at > passage.entered_at for passage, _ in new)
    assert engine.prefix_resets == 1
    assert (fence.counts.pauses, fence.counts.passed, fence.counts.waited, fence.counts.aborted) == (1, 5, 2, 0)


@pytest.mark.case("E2", "E3")
async def test_hold_straddles_and_says_where(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    async with calls(fence, engine, 2) as held:
        async with fence.paused("hold") as update:
            await asyncio.sleep(4 * SLOW)
            assert not any(task.done() for task in held)
            assert fence.status().in_flight == 2
            update.version = 7
        for passage, completion in await asyncio.gather(*held):
            assert passage.policy_version == completion.policy_version_start == 0
            assert completion.policy_version_end == 7
            assert [version for _, version in completion.version_spans] == [0, 7]
            assert sum(count for count, _ in completion.version_spans) == len(completion.token_ids)
    assert fence.counts.aborted == 0


@pytest.mark.case("E3")
async def test_a_drain_that_takes_too_long_reopens_and_says_how_many(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    async with calls(fence, engine, 3) as running:
        with pytest.raises(FenceTimeout, match="3 engine calls") as error:
            await fence.pause(deadline_s=SLOW)
        assert error.value.in_flight == 3
        assert fence.status().state == "open"
        await asyncio.gather(*running)  # nobody was aborted
    assert (fence.counts.timeouts, fence.counts.aborted) == (1, 0)


async def test_on_deadline_hold(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    async with calls(fence, engine, 1) as running:
        await fence.pause(deadline_s=SLOW, on_deadline="hold")
        await asyncio.sleep(4 * SLOW)
        assert not running[0].done()
        await fence.resume(1)
        _, completion = await running[0]
    assert (completion.policy_version_start, completion.policy_version_end) == (0, 1)


async def test_on_deadline_abort_is_a_retryable_error_and_no_cancellation(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    async with calls(fence, engine, 2) as running:
        await fence.pause(deadline_s=SLOW, on_deadline="abort")
        assert engine.running == 0
        for result in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(result, FenceFailed)
            assert result.retryable
        await fence.resume(0)
    assert fence.counts.aborted == 2


async def test_cancelled_calls_leave_nothing_behind(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    await fence.pause()
    async with calls(fence, engine, 2) as waiting:
        assert fence.status().waiting == 2
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        assert fence.status().waiting == 1
        await fence.resume(1)
        await waiting[1]
    async with calls(fence, engine, 1) as running:
        assert fence.status().in_flight == 1
        running[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await running[0]
    assert fence.status().in_flight == 0
    assert len(engine.calls) == 2  # the call that was cancelled at the gate never came


async def test_a_client_that_leaves_while_its_call_is_aborted_is_cancelled(engine: ScriptedEngine) -> None:
    fence = Fence(engine, max_pause_s=4 * SLOW)
    async with calls(fence, engine, 1) as running:
        await fence.pause("hold")
        fence._abort("test")
        running[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await running[0]
        await fence.resume(0)


async def test_one_owner_at_a_time(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    async with calls(fence, engine, 1):
        first, again = await asyncio.gather(fence.pause(owner="a"), fence.pause(owner="a"))
        assert first.owner == again.owner == "a"
        assert fence.counts.pauses == 1
        with pytest.raises(FenceBusy, match=r"'a' paused it \(drain\)"):
            await fence.pause(owner="b")
        with pytest.raises(FenceBusy):
            await fence.pause("hold", owner="a")
        with pytest.raises(FenceBusy, match="paused by 'a'"):
            await fence.resume(1, owner="b")
        await fence.resume(1, owner="a")
        with pytest.raises(FenceBusy, match="nothing to resume"):
            await fence.resume(1, owner="a")
        await fence.pause(owner="b")
        await fence.resume(2, owner="b")


async def test_resume_before_the_pause_came_about_and_a_cancelled_pause(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    async with calls(fence, engine, 1) as running:
        pausing = asyncio.create_task(fence.pause())
        await asyncio.sleep(0)
        with pytest.raises(FenceBusy, match="still draining"):
            await fence.resume(1)
        pausing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pausing
        assert fence.status().state == "open"
        await call(fence, engine)
        await running[0]


@pytest.mark.case("E1")
async def test_the_version_must_be_the_engines(engine: ScriptedEngine) -> None:
    class Counting:
        """An engine that counts by itself and has no cache, and cannot hold."""

        name, context_length, policy_version = "counting", 100, 3

        async def generate(self, *_: Any, **__: Any) -> Completion:
            return await engine.generate([5], SAMPLING, request_id="r")

        async def start(self) -> None: ...
        async def aclose(self) -> None: ...

    counting = Counting()
    fence = Fence(counting)
    with pytest.raises(ConfigError, match="cannot hold"):
        await fence.pause("hold")
    with pytest.raises(ConfigError, match="cannot hold"):
        await fence.pause(on_deadline="hold")
    await fence.pause()
    with pytest.raises(ConfigError, match="serves policy version 3, not 4"):
        await fence.resume(4)
    with pytest.raises(ConfigError, match="lower"):
        await fence.resume(2)
    assert fence.status().state == "closed"
    counting.policy_version = 4
    await fence.resume(4)
    async with fence.paused():
        counting.policy_version = 5
    assert fence.policy_version == 5


async def test_bad_arguments(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    for options in ({"mode": "stop"}, {"deadline_s": 0.0}, {"deadline_s": float("nan")}, {"on_deadline": "kill"}):
        with pytest.raises(ConfigError):
            await fence.pause(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        Fence(engine, max_pause_s=0)
    assert fence.status().state == "open"


async def test_a_dead_owner_does_not_hang_rollouts_and_does_not_open_the_gate(engine: ScriptedEngine) -> None:
    fence = Fence(engine, max_pause_s=3 * SLOW)
    async with calls(fence, engine, 1) as held:
        await fence.pause("hold", owner="dead")
        async with calls(fence, engine, 1) as waiting:
            for result in await asyncio.gather(*held, *waiting, return_exceptions=True):
                assert isinstance(result, FenceFailed)
        with pytest.raises(FenceFailed, match="'dead' did not end"):
            await call(fence, engine)
    status = fence.status()
    assert (status.state, status.waiting, status.in_flight) == ("closed", 0, 0)
    assert "'dead'" in status.failed
    await fence.pause(owner="new")  # anybody may put it right
    await fence.resume(1, owner="new")
    _, completion = await call(fence, engine)
    assert completion.policy_version_start == 1
    assert fence.counts.failed == 1


async def test_a_late_owner_may_still_resume(engine: ScriptedEngine) -> None:
    fence = Fence(engine, max_pause_s=SLOW)
    await fence.pause("hold")
    await asyncio.sleep(2 * SLOW)
    assert fence.status().failed
    await fence.resume(1)
    await call(fence, engine)


async def test_an_update_that_breaks_off_keeps_the_gate_closed(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    async with calls(fence, engine, 0):
        with pytest.raises(ZeroDivisionError):
            async with fence.paused():
                waiting = asyncio.create_task(call(fence, engine))
                await asyncio.sleep(SLOW)
                raise ZeroDivisionError
        with pytest.raises(FenceFailed, match="broke off"):
            await waiting
    with pytest.raises(ConfigError, match="without a policy version"):
        async with fence.paused():
            pass
    async with fence.paused() as update:
        update.version = 1
    assert (await call(fence, engine))[1].policy_version_start == 1


@pytest.mark.case("E4")
async def test_a_cache_that_cannot_be_reset_keeps_the_gate_closed(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = Fence(engine)

    async def refuse() -> None:
        raise EngineError("no reset today")

    await fence.pause()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "reset_prefix_cache", refuse)
        with pytest.raises(EngineError, match="no reset today"):
            await fence.resume(1)
    assert (fence.status().state, engine.policy_version) == ("closed", 0)
    await fence.resume(1)
    assert (engine.prefix_resets, engine.policy_version) == (1, 1)


async def test_an_engine_that_is_slow_to_hold_is_let_go_again(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = Fence(engine)
    told = asyncio.Event()
    really = engine.pause

    async def slow() -> None:
        await told.wait()
        await really()

    monkeypatch.setattr(engine, "pause", slow)
    with pytest.raises(FenceTimeout):
        await fence.pause("hold", deadline_s=SLOW)
    told.set()
    await call(fence, engine)  # would hang for ever if the late hold had stayed


async def test_paused_time_is_counted(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    assert fence.paused_s == 0
    await fence.pause()
    await asyncio.sleep(SLOW)
    during = fence.paused_s
    assert during > 0
    await fence.resume(0)
    after = fence.paused_s
    assert after >= during
    await asyncio.sleep(SLOW)
    assert fence.paused_s == after


async def test_two_updates_of_one_name_do_not_share_a_pause(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    async with fence.paused(owner="t") as update:
        with pytest.raises(FenceBusy):
            async with fence.paused(owner="t"):
                pass
        update.version = 1
    assert fence.status().state == "open"


async def test_a_failed_pause_is_not_taken_over_while_it_is_being_resumed(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = Fence(engine, max_pause_s=SLOW)
    reset = asyncio.Event()
    monkeypatch.setattr(engine, "reset_prefix_cache", reset.wait)
    await fence.pause(owner="slow")
    resuming = asyncio.create_task(fence.resume(1, owner="slow"))
    while not fence.status().failed:  # noqa: ASYNC110
        await asyncio.sleep(SLOW)
    with pytest.raises(FenceBusy):
        await fence.pause(owner="other")
    reset.set()
    assert (await resuming).state == "open"


async def test_a_trainer_in_another_thread(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    threads = ThreadFence(fence, asyncio.get_running_loop())

    def train() -> None:
        with threads.paused(owner="t") as update:
            with pytest.raises(FenceBusy):
                threads.pause(owner="other")
            assert threads.status().state == "closed"
            update.version = 1
        threads.pause("hold")
        threads.resume(2)
        with pytest.raises(ZeroDivisionError), threads.paused():
            raise ZeroDivisionError
        assert threads.status().failed
        with pytest.raises(ConfigError, match="without a policy version"), threads.paused():
            pass

    async with calls(fence, engine, 1) as running:
        await asyncio.to_thread(train)
        await running[0]
    with pytest.raises(ConfigError, match="on the gateway's event loop"):
        threads.status()
    with pytest.raises(ConfigError, match="not running"):
        ThreadFence(fence, asyncio.new_event_loop()).status()


async def test_time_limits_stand_still_while_calls_are_held(engine: ScriptedEngine) -> None:
    fence = Fence(engine)
    started = asyncio.Event()

    async def limited(limit: float) -> None:
        async with fence.passing(), fence.timeout(limit):
            started.set()
            await engine.generate([5], SAMPLING, request_id="r")

    fits = asyncio.create_task(limited(50 * SLOW))
    await started.wait()
    await fence.pause("hold")
    await asyncio.sleep(60 * SLOW)
    await fence.resume(1)
    await fits
    with pytest.raises(TimeoutError):
        await limited(SLOW)
    async with fence.timeout(None):
        await fence.pause("hold")
        await fence.resume(2)
