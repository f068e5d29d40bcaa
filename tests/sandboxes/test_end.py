"""A background task ends, even if the first cancellation is lost in a library below it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from drivetrain.sandboxes import end
from drivetrain.sandboxes.remote.patience import patiently
from drivetrain.sandboxes.remote.transport import LinkLost


async def test_a_lost_cancellation_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end, "AGAIN_S", 0.05)
    lost = 0

    async def deaf() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if lost == 2:
                    raise
                lost += 1

    async def failing() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise LinkLost("cut") from None

    tasks = [asyncio.create_task(each) for each in (deaf(), failing())]
    await asyncio.sleep(0)
    await asyncio.wait_for(end.end(*tasks), 30)
    assert lost == 2
    assert tasks[0].cancelled()


async def test_nothing_to_end_is_fine() -> None:
    await end.end()


@pytest.mark.parametrize("outcome", ["answers", "fails"])
async def test_a_call_that_answers_a_cancellation_is_cancelled_all_the_same(outcome: str) -> None:
    calls = 0

    async def deaf() -> str:
        nonlocal calls
        calls += 1
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        if outcome == "fails":
            raise LinkLost("cut")
        return "an answer"

    asking = asyncio.create_task(patiently("ask", deaf))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking], timeout=30)
    assert asking.cancelled()
    assert calls == 1
