"""A tiny model in a table: the next token depends on the last. Honest by default, and with every fault on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from drivetrain.engines.protocol import Completion, ContextOverflow, EngineError, Sampling

VOCAB = 2000
STOP = 2
CODEC: Any = SimpleNamespace(
    stop_ids=(STOP,),
    tokenizer=SimpleNamespace(vocab_size=VOCAB),
    first_prompt=lambda _messages, _tools: list(range(10, 40)),
)
"""What the probe asks of a codec."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with an engine; see the code for each."""

    refuses: bool = False
    boots: int = 0
    no_ids: bool = False
    foreign_id: bool = False
    no_logprobs: bool = False
    one_logprob_less: bool = False
    miscounts: bool = False
    first_logprob: float | None = None
    ignores_max_tokens: bool = False
    shift: int = 0
    shuffled: bool = False
    raw: bool = False
    greedy_scale: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    drops_stop: bool = False
    runs_on: bool = False
    stop_called_length: bool = False
    version: Any = 0
    pinned_seed: bool = False
    no_seed: bool = False
    context: int = 4096
    answers_overflow: bool = False
    overflow_error: bool = False
    swallows_cancel: bool = False


class TableEngine:
    """Implements :class:`drivetrain.engines.protocol.Engine`."""

    name = "table"
    policy_version = 0

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.table = np.random.default_rng(0).normal(0, 2.5, (64, VOCAB))
        self.context_length = self.faults.context
        self.bias: dict[int, float] = {}
        self.calls = 0
        self._fresh = np.random.default_rng()

    async def start(self) -> None:
        """Nothing to load."""

    async def aclose(self) -> None:
        """Nothing to free."""

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        request_id: str,
        session_id: str = "",
    ) -> Completion:
        """Sample, with the faults asked for."""
        faults = self.faults
        self.calls += 1
        if self.calls <= faults.boots:
            raise EngineError("connection refused")
        if faults.refuses:
            raise EngineError("unknown field token_ids", retryable=False)
        if len(prompt_ids) >= self.context_length and not faults.answers_overflow:
            if faults.overflow_error:
                raise EngineError("status 500")
            raise ContextOverflow(len(prompt_ids), self.context_length)
        ids, logprobs, finish = await self._run(prompt_ids[-1], sampling)
        if faults.drops_stop and finish == "stop":
            ids, logprobs = ids[:-1], logprobs[:-1]
        return Completion(
            token_ids=[] if faults.no_ids else [VOCAB + 5, *ids[1:]] if faults.foreign_id else ids,
            logprobs=self._told(logprobs),
            finish_reason="length" if finish == "length" or faults.stop_called_length else "stop",
            policy_version_start=faults.version,
            policy_version_end=faults.version,
            reported_tokens=len(ids) + faults.miscounts,
        )

    async def _run(self, last: int, sampling: Sampling) -> tuple[list[int], list[float], str]:
        seed = 0 if self.faults.pinned_seed else sampling.seed
        random = self._fresh if self.faults.no_seed else np.random.default_rng(seed)
        ids: list[int] = []
        logprobs: list[float] = []
        wanted = sampling.max_tokens + 3 * self.faults.ignores_max_tokens
        while len(ids) < wanted:
            try:
                await asyncio.sleep(0.001 if len(ids) > 20 else 0)
            except asyncio.CancelledError:
                if not self.faults.swallows_cancel:
                    raise
                break
            last, logprob = self._draw(last, sampling.temperature, random)
            ids.append(last)
            logprobs.append(logprob)
            if last in sampling.stop_token_ids and not self.faults.runs_on:
                return ids, logprobs, "stop"
        return ids, logprobs, "length"

    def _draw(self, last: int, temperature: float, random: np.random.Generator) -> tuple[int, float]:
        logits = self.table[last % 64] * self.faults.greedy_scale
        if self.bias:
            logits[list(self.bias)] += list(self.bias.values())
        probs = _softmax(logits / temperature)
        order = np.argsort(-probs)
        kept = np.ones(VOCAB, dtype=bool)
        kept[order[np.cumsum(probs[order]) - probs[order] >= self.faults.top_p]] = False
        kept[order[self.faults.top_k or VOCAB :]] = False
        kept[probs < self.faults.min_p * probs.max()] = False
        probs = np.where(kept, probs, 0) / probs[kept].sum()
        token = int(random.choice(VOCAB, p=probs))
        told = _softmax(logits) if self.faults.raw else probs
        return token, float(min(0.0, np.log(told[token])))

    def _told(self, logprobs: list[float]) -> list[float]:
        faults = self.faults
        if faults.no_logprobs:
            return []
        told = list(np.roll(logprobs, faults.shift)) if logprobs else []
        if faults.shuffled:
            told = [told[(3 * i + 1) % len(told)] - 0.7 * i for i in range(len(told))]
        if faults.first_logprob is not None:
            told[0] = faults.first_logprob
        return told[: len(told) - faults.one_logprob_less]


def _softmax(logits: Any) -> Any:
    exp = np.exp(logits - logits.max())
    return exp / exp.sum()
