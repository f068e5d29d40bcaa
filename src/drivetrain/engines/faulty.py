"""An engine that fails as a script tells it: around any engine, for tests and for trying out the probe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from drivetrain.engines.protocol import Completion, Engine, Sampling

Bend = Literal[
    "empty",  # no token
    "abort",  # finish reason abort
    "short_logprobs",  # one log-prob too few
    "long_logprobs",  # one too many
    "no_logprobs",
    "nan_logprob",
    "positive_logprob",
    "shifted_logprobs",  # each at the next token, as engines report those of a prompt
    "no_ids",  # None where the ids should be
    "text_ids",
    "negative_id",
    "version_jump",  # weights changed while it ran
]
"""How a sound completion is spoilt."""

_HANG_S = 10**9


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong in one call, in this order: ``delay_s`` is waited, ``hang`` waits until cancelled, ``error`` is
    raised; else the call is served and its completion spoilt by ``bend``. ``deaf_s`` is how long a cancelled call goes
    on regardless."""

    delay_s: float = 0.0
    hang: bool = False
    error: Exception | None = None
    bend: Bend | None = None
    deaf_s: float = 0.0


class FaultyEngine:
    """Implements :class:`drivetrain.engines.protocol.Engine` around another one.

    Args:
        engine: serves the calls.
        faults: of the first calls, in order of arrival, None where nothing goes wrong; or a function of the call's
            number (from 0). Calls after the last are sound.
    """

    def __init__(self, engine: Engine, faults: Sequence[Fault | None] | Callable[[int], Fault | None]) -> None:
        self._engine = engine
        self._faults = faults
        self.outcomes: list[str] = []
        """``pending``, ``served``, ``error`` or ``cancelled`` per call, in order of arrival."""

    @property
    def name(self) -> str:
        """The inner engine's."""
        return self._engine.name

    @property
    def context_length(self) -> int:
        """The inner engine's."""
        return self._engine.context_length

    @property
    def policy_version(self) -> int:
        """The inner engine's."""
        return self._engine.policy_version

    async def start(self) -> None:
        """Start the inner engine."""
        await self._engine.start()

    async def aclose(self) -> None:
        """Close the inner engine."""
        await self._engine.aclose()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session_id: str = ""
    ) -> Completion:
        """Serve a call or fail it.

        Raises:
            EngineError: the script says so, or the inner engine does.
        """
        number = len(self.outcomes)
        self.outcomes.append("pending")
        fault = self._fault(number) or Fault()
        try:
            await self._wait(fault)
            if fault.error is not None:
                raise fault.error
            done = await self._engine.generate(prompt_ids, sampling, request_id=request_id, session_id=session_id)
        except asyncio.CancelledError:
            self.outcomes[number] = "cancelled"
            raise
        except Exception:
            self.outcomes[number] = "error"
            raise
        self.outcomes[number] = "served"
        return done if fault.bend is None else bent(done, fault.bend)

    def _fault(self, number: int) -> Fault | None:
        if callable(self._faults):
            return self._faults(number)
        return self._faults[number] if number < len(self._faults) else None

    async def _wait(self, fault: Fault) -> None:
        try:
            await asyncio.sleep(_HANG_S if fault.hang else fault.delay_s)
        except asyncio.CancelledError:
            if not fault.deaf_s:
                raise
            await asyncio.sleep(fault.deaf_s)


def bent(done: Completion, bend: Bend) -> Completion:
    """A completion with one defect; it has at least two tokens."""
    ids, logprobs = list(done.token_ids), list(done.logprobs)
    changes: dict[Bend, dict[str, Any]] = {
        "empty": {"token_ids": [], "logprobs": []},
        "abort": {"finish_reason": "abort"},
        "short_logprobs": {"logprobs": logprobs[:-1]},
        "long_logprobs": {"logprobs": [*logprobs, -0.5]},
        "no_logprobs": {"logprobs": None},
        "nan_logprob": {"logprobs": [float("nan"), *logprobs[1:]]},
        "positive_logprob": {"logprobs": [0.5, *logprobs[1:]]},
        "shifted_logprobs": {"logprobs": [None, *logprobs[:-1]]},
        "no_ids": {"token_ids": None},
        "text_ids": {"token_ids": [str(token) for token in ids]},
        "negative_id": {"token_ids": [-1, *ids[1:]]},
        "version_jump": {"policy_version_end": done.policy_version_start + 1},
    }
    return msgspec.structs.replace(done, **changes[bend])
