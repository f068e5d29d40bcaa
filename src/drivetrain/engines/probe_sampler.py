"""The calls a probe makes: whole completions, and many single tokens behind one prefix."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from drivetrain.engines.protocol import Completion, Engine, EngineError, Sampling, max_temperature

LADDER = (1.0, 0.5, 0.25, 2.0, 4.0, 0.1, 8.0)
"""Temperatures to try, the most natural first, until draws repeat often enough to be compared."""
DRAWS = 24
_REPEATS = (0.2, 0.97)
_AT_ONCE = 8
_SPREAD = 0.05  # nats; below it two log-probs are too close for a comparison to prove anything


class NoEvidence(Exception):
    """The samples prove nothing either way."""


class Pool(msgspec.Struct, frozen=True):
    """Single tokens drawn behind one prefix at one temperature: how often each came, and its reported log-prob."""

    temperature: float
    counts: dict[int, int]
    logprobs: dict[int, float]

    @property
    def repeats(self) -> float:
        """Probability that two draws are equal, estimated."""
        total = sum(self.counts.values())
        return sum(n * (n - 1) for n in self.counts.values()) / max(1, total * (total - 1))

    @property
    def spread(self) -> float:
        """Largest difference between two log-probs, nats."""
        return max(self.logprobs.values()) - min(self.logprobs.values())

    @property
    def mass(self) -> float:
        """Probability of all tokens seen, as reported."""
        return math.fsum(math.exp(value) for value in self.logprobs.values())


class Sampler:
    """Asks an engine; pools are drawn once. ``prompt`` is the prompt of every call, before an optional prefix."""

    def __init__(self, engine: Engine, prompt: Sequence[int], *, call_timeout_s: float) -> None:
        self.engine = engine
        self.prompt = list(prompt)
        self.max_temperature = max_temperature(engine)
        self._timeout_s = call_timeout_s
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._numbers = itertools.count()
        self._pools: dict[tuple[tuple[int, ...], float], Pool] = {}

    async def sample(
        self,
        *,
        max_tokens: int,
        seed: int,
        temperature: float = 1.0,
        stop: Sequence[int] = (),
        prefix: Sequence[int] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> Completion:
        """One completion behind prompt + prefix; ``extra`` are knobs that the engine honours.

        Raises:
            EngineError: from the engine, or no answer in time.
        """
        sampling = Sampling(
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stop_token_ids=tuple(stop),
            extra=dict(extra or {}),
        )
        async with self._gate:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self.engine.generate(
                        [*self.prompt, *prefix],
                        sampling,
                        request_id=f"probe-{next(self._numbers)}",
                        session_id="probe",
                    )
            except TimeoutError:
                raise EngineError(f"no answer within {self._timeout_s:g} s.") from None

    async def pool(self, temperature: float, *, prefix: Sequence[int] = (), draws: int = DRAWS) -> Pool:
        """Single tokens behind prompt + prefix, each under its own seed.

        Raises:
            NoEvidence: a call for one token came back with anything but one id and one log-prob.
        """
        key = (tuple(prefix), temperature)
        known = self._pools.get(key)
        if known is None or sum(known.counts.values()) < draws:
            asked = [
                self.sample(max_tokens=1, seed=1000 + index, temperature=temperature, prefix=prefix)
                for index in range(draws)
            ]
            pairs = [_single(done) for done in await asyncio.gather(*asked)]
            self._pools[key] = Pool(temperature, dict(Counter(token for token, _ in pairs)), dict(pairs))
        return self._pools[key]

    async def comparable(self) -> Pool:
        """The pool of the first temperature at which draws repeat and yet differ; twice it is not too hot either.

        Raises:
            NoEvidence: there is none: the distribution is certain or flat at every temperature.
        """
        ladder = [temperature for temperature in LADDER if 2 * temperature <= self.max_temperature]
        for temperature in ladder:
            pool = await self.pool(temperature)
            if _REPEATS[0] <= pool.repeats <= _REPEATS[1] and pool.spread > _SPREAD:
                return pool
        raise NoEvidence(f"at no temperature from {min(ladder)} to {max(ladder)} do draws both repeat and differ.")


class Evidence(msgspec.Struct, frozen=True):
    """What checks read: a sampler and the model the engine is supposed to serve."""

    sampler: Sampler
    stop_ids: tuple[int, ...]
    vocab_size: int


def _single(done: Completion) -> tuple[int, float]:
    if len(done.token_ids) != 1 or len(done.logprobs) != 1:
        raise NoEvidence(
            f"asked for one token: {len(done.token_ids)} ids and {len(done.logprobs)} log-probs came back."
        )
    return done.token_ids[0], done.logprobs[0]
