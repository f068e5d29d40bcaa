"""The gate opens after an update only on weights that were confirmed, where the trainer says what to expect."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from drivetrain.engines.fingerprint import Fingerprint, WeightsMismatch
from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import EngineError
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.errors import ConfigError
from drivetrain.gateway.fence import Fence
from drivetrain.gateway.fence_types import FenceFailed
from tests.gateway.test_fence import SLOW, TEXT, call, calls

GOOD = Fingerprint(token_ids=(1, 2), logprobs=(-1.0,), tolerance=0.1)


class Asked(ScriptedEngine):
    """Says what it is told to say about its weights."""

    wrong: Exception | None = None
    answering = asyncio.Event()
    asked = 0

    async def check_weights(self, fingerprint: Fingerprint) -> float:
        self.asked += 1
        await self.answering.wait()
        if self.wrong is not None:
            raise self.wrong
        return 0.0


@pytest.fixture
def engine(tiny_model: ModelDir) -> Asked:
    made = Asked(tiny_model, lambda *_: TEXT, per_token_s=SLOW)
    made.answering = asyncio.Event()
    made.answering.set()
    return made


def mixed() -> WeightsMismatch:
    return WeightsMismatch("neither", 0.7, "log-probs differ by 0.7", "send them again")


@pytest.mark.case("E1", "E4")
@pytest.mark.parametrize("mode", ["drain", "hold"])
async def test_weights_that_are_not_the_trainers_keep_the_gate_closed(engine: Asked, mode: str) -> None:
    fence = Fence(engine)
    engine.wrong = mixed()
    async with calls(fence, engine, 2) as before:
        await fence.pause(mode, owner="t")  # type: ignore[arg-type]
        async with calls(fence, engine, 1) as during:
            with pytest.raises(WeightsMismatch, match=r"differ by 0\.7"):
                await fence.resume(1, fingerprint=GOOD, owner="t")
            status = fence.status()
            assert (status.state, engine.asked) == ("closed", 1)
            assert status.failed == "the weights of version 1 were not confirmed: log-probs differ by 0.7"
            with pytest.raises(FenceFailed, match="not known to be whole"):
                await during[0]
        done = await asyncio.gather(*before, return_exceptions=True)
        assert [isinstance(result, FenceFailed) for result in done] == [mode == "hold"] * 2
    with pytest.raises(FenceFailed):
        await call(fence, engine)
    engine.wrong = None
    assert (await fence.resume(1, fingerprint=GOOD, owner="t")).state == "open"  # sent again, and right
    assert engine.asked == 2
    await call(fence, engine)


@pytest.mark.case("E1", "E2")
@pytest.mark.parametrize("good", [True, False])
async def test_a_held_call_does_not_end_before_the_verdict(engine: Asked, good: bool) -> None:
    """A paused server scores nothing, so it goes on while it is asked; its tokens of that time may be anyone's."""
    fence = Fence(engine)
    engine.answering.clear()
    engine.wrong = None if good else mixed()
    async with calls(fence, engine, 1) as (held,):
        await fence.pause("hold")
        resuming = asyncio.create_task(fence.resume(1, fingerprint=GOOD))
        while engine.running or not engine.asked:  # noqa: ASYNC110
            await asyncio.sleep(SLOW)
        await asyncio.sleep(2 * SLOW)
        assert not held.done() and not resuming.done()
        engine.answering.set()
        if good:
            assert (await resuming).state == "open"
            _, completion = await held
            assert completion.policy_version_end == 1
        else:
            with pytest.raises(WeightsMismatch):
                await resuming
            with pytest.raises(FenceFailed, match="not confirmed"):
                await held


async def test_a_body_of_paused_gives_the_fingerprint(engine: Asked) -> None:
    fence = Fence(engine)
    async with fence.paused() as update:
        update.version, update.fingerprint = 1, GOOD
    assert (engine.asked, fence.status().state) == (1, "open")
    engine.wrong = mixed()
    with pytest.raises(WeightsMismatch):
        async with fence.paused() as update:
            update.version, update.fingerprint = 2, GOOD
    assert fence.status().failed
    with contextlib.suppress(FenceFailed):
        await call(fence, engine)
    assert engine.running == 0


async def test_a_server_that_cannot_be_asked_is_no_confirmation(engine: Asked) -> None:
    fence = Fence(engine)
    engine.wrong = EngineError("connection refused")
    await fence.pause()
    with pytest.raises(EngineError, match="refused"):
        await fence.resume(1, fingerprint=GOOD)
    assert "not confirmed: connection refused" in fence.status().failed


async def test_a_resume_that_is_cancelled_while_it_asks_confirms_nothing(engine: Asked) -> None:
    fence = Fence(engine)
    engine.answering.clear()
    await fence.pause()
    resuming = asyncio.create_task(fence.resume(1, fingerprint=GOOD))
    while not engine.asked:  # noqa: ASYNC110
        await asyncio.sleep(0)
    resuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resuming
    assert (fence.status().state, bool(fence.status().failed)) == ("closed", True)


async def test_an_engine_in_this_process_needs_none(tiny_model: ModelDir) -> None:
    engine = ScriptedEngine(tiny_model, lambda *_: TEXT)
    fence = Fence(engine)
    await fence.pause()
    with pytest.raises(ConfigError, match="no server whose weights could be checked"):
        await fence.resume(1, fingerprint=GOOD)
    assert engine.policy_version == 0, "nothing was published"
    await fence.resume(1)
