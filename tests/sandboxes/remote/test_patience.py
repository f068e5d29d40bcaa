"""Asking again: within bounds, as long as asked, and only when it can help."""

from __future__ import annotations

import pytest

from drivetrain.sandboxes import SandboxError, SandboxGone, SandboxTimeout
from drivetrain.sandboxes.remote import patience
from drivetrain.sandboxes.remote.transport import Busy, LinkLost


class Attempts:
    """Raises these, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it slept; the clock moves with it."""
    slept: list[float] = []
    now = [0.0]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(patience.asyncio, "sleep", sleep)
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    return slept


async def test_waits_double_and_are_jittered(waits: list[float]) -> None:
    attempts = Attempts(*(LinkLost("cut") for _ in range(4)))
    assert await patience.patiently("ask", attempts) == "answer"
    for wait, base in zip(waits, (0.1, 0.2, 0.4, 0.8), strict=True):
        assert base <= wait <= base * 1.25
    assert len({round(wait / base, 6) for wait, base in zip(waits, (0.1, 0.2, 0.4, 0.8), strict=True)}) > 1


async def test_what_the_provider_asks_for_is_waited(waits: list[float]) -> None:
    await patience.patiently("ask", Attempts(Busy("full", after_s=7.0), Busy("full", after_s=3.0)))
    assert 7 <= waits[0] <= 8.75
    assert 3 <= waits[1] <= 3.75


async def test_it_ends(waits: list[float]) -> None:
    with pytest.raises(SandboxTimeout, match="Could not ask within 5 s"):
        await patience.patiently("ask", Attempts(*(LinkLost("cut") for _ in range(100))), patience_s=5)
    assert sum(waits) <= 5
    with pytest.raises(SandboxError, match="busy or a quota"):
        await patience.patiently("ask", Attempts(Busy("full", after_s=60.0)), patience_s=5)


@pytest.mark.parametrize("error", [SandboxGone("over"), SandboxError("refused"), FileNotFoundError("x"), ValueError()])
async def test_what_asking_again_cannot_help_is_not_asked_again(waits: list[float], error: Exception) -> None:
    attempts = Attempts(error)
    with pytest.raises(type(error)):
        await patience.patiently("ask", attempts)
    assert attempts.count == 1
    assert waits == []
