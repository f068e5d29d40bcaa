"""The three ways to sample that ``engine_embedded.py`` compares; each runs the same conversations."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch
from transformers import AutoModelForCausalLM

from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Engine, Sampling
from drivetrain.engines.vllm import VLLMEngine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.real.vllm_server import live_server

_LOWEST_ID = 100  # below it are special tokens


@dataclass(frozen=True)
class Load:
    """``conversations`` at the same time; each of their ``turns`` adds about ``delta`` tokens and samples ``new``."""

    conversations: int = 8
    turns: int = 10
    delta: int = 60
    new: int = 64

    @property
    def sampled(self) -> int:
        """Tokens sampled in one run."""
        return self.conversations * self.turns * self.new

    def deltas(self, vocab: int, seed: int) -> list[list[list[int]]]:
        """Random ids ``[conversation][turn][token]``; lengths are spread by a third around ``delta``."""
        draw = random.Random(seed)
        spread = self.delta // 3

        def one() -> list[int]:
            length = draw.randint(self.delta - spread, self.delta + spread)
            return [draw.randrange(_LOWEST_ID, vocab) for _ in range(length)]

        return [[one() for _ in range(self.turns)] for _ in range(self.conversations)]


class Side(Protocol):
    """One way to sample."""

    name: str

    async def start(self) -> None:
        """Load everything and sample a little, so that no run pays for it."""

    async def run(self, deltas: Sequence[Sequence[Sequence[int]]], seed: int) -> None:
        """All conversations, from empty caches to their last turn."""

    def cpu_s(self) -> float:
        """CPU seconds spent so far by every process of this side."""

    async def aclose(self) -> None:
        """End it."""


class Embedded:
    """Our engine: keys and values stay from turn to turn."""

    def __init__(self, model: ModelDir, load: Load, *, dtype: Any, threads: int) -> None:
        self.name = "embedded"
        self._load = load
        self._engine = EmbeddedEngine(model, dtype=dtype, threads=threads, max_batch=load.conversations)

    async def start(self) -> None:
        await self._engine.start()
        await _warm_up(self._engine, self._load)

    async def run(self, deltas: Sequence[Sequence[Sequence[int]]], seed: int) -> None:
        await self._engine.reset_prefix_cache()
        await _converse(self._engine, deltas, self._load.new, seed)

    def cpu_s(self) -> float:
        return time.process_time()

    async def aclose(self) -> None:
        await self._engine.aclose()


class Plain:
    """``generate`` of transformers over the whole batch, left padded, which computes every prompt from its start."""

    def __init__(self, model: ModelDir, load: Load, *, dtype: Any, threads: int) -> None:
        self.name = "plain generate"
        self._dir, self._load, self._dtype, self._threads = model, load, dtype, threads
        self._model: Any = None

    async def start(self) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(self._dir.path, dtype=getattr(torch, self._dtype)).eval()
        self._model.generation_config.eos_token_id = None  # as many tokens as the others
        self._generate([[_LOWEST_ID] * 16] * self._load.conversations, new=4)

    async def run(self, deltas: Sequence[Sequence[Sequence[int]]], seed: int) -> None:
        torch.manual_seed(seed)
        prompts: list[list[int]] = [[] for _ in deltas]
        for turn in range(self._load.turns):
            for prompt, delta in zip(prompts, deltas, strict=True):
                prompt.extend(delta[turn])
            # In a thread, so that an interrupt is heard between turns.
            sampled_now = await asyncio.to_thread(self._generate, prompts, self._load.new)
            for prompt, sampled in zip(prompts, sampled_now, strict=True):
                prompt.extend(sampled)

    def _generate(self, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        torch.set_num_threads(self._threads)
        longest = max(map(len, prompts))
        ids = torch.zeros((len(prompts), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                max_new_tokens=new,
                pad_token_id=0,
            )
        assert out.shape[1] == longest + new, "plain generate stopped early"
        return out[:, longest:].tolist()

    def cpu_s(self) -> float:
        return time.process_time()

    async def aclose(self) -> None:
        self._model = None


class VLLM:
    """vLLM's CPU build behind our client. Its processes are frozen while the others run."""

    def __init__(
        self, model: ModelDir, load: Load, *, dtype: Any, threads: int, python: Path, log: Path, eager: bool
    ) -> None:
        self.name = "vllm-cpu eager" if eager else "vllm-cpu"
        self._load = load
        self._open = ExitStack()
        self._server_args: dict[str, Any] = {"dtype": dtype, "threads": threads, "eager": eager}
        self._where = (python, model, log)
        self._engine: VLLMEngine | None = None
        self._root: psutil.Process | None = None

    async def start(self) -> None:
        flags = ("--enable-scale-out", "--enable-prefix-caching", "--max-num-seqs", str(self._load.conversations))
        server = self._open.enter_context(
            live_server(*self._where, mode="processed_logprobs", flags=flags, **self._server_args)
        )
        self._engine = VLLMEngine(server.url, boot_timeout_s=600)
        await self._engine.start()
        self._root = psutil.Process(server.pid)
        await _warm_up(self._engine, self._load)
        self._signal(signal.SIGSTOP)

    async def run(self, deltas: Sequence[Sequence[Sequence[int]]], seed: int) -> None:
        assert self._engine is not None
        self._signal(signal.SIGCONT)
        try:
            await self._engine.reset_prefix_cache()
            await _converse(self._engine, deltas, self._load.new, seed)
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        assert self._root is not None
        os.killpg(self._root.pid, number)

    def cpu_s(self) -> float:
        assert self._root is not None
        spent = [process.cpu_times() for process in (self._root, *self._root.children(recursive=True))]
        return time.process_time() + sum(each.user + each.system for each in spent)

    async def aclose(self) -> None:
        if self._root is not None:
            self._signal(signal.SIGCONT)
        if self._engine is not None:
            await self._engine.aclose()
        await asyncio.to_thread(self._open.close)


async def _warm_up(engine: Engine, load: Load) -> None:
    """Two short turns of a batch."""
    warm = Load(load.conversations, 2, 16, 8)
    await _converse(engine, warm.deltas(_LOWEST_ID + 100, -1), warm.new, -1)


async def _converse(engine: Engine, deltas: Sequence[Sequence[Sequence[int]]], new: int, seed: int) -> None:
    async def conversation(index: int) -> None:
        ids: list[int] = []
        for turn, delta in enumerate(deltas[index]):
            ids += delta
            extra = {"ignore_eos": True} if isinstance(engine, VLLMEngine) else {}
            sampling = Sampling(max_tokens=new, seed=seed * 10_000 + index * 100 + turn, extra=extra)
            name = f"{seed}-{index}"
            done = await engine.generate(ids, sampling, request_id=f"{name}-{turn}", session_id=name)
            assert len(done.token_ids) == len(done.logprobs) == new, f"{engine.name} stopped early"
            ids += done.token_ids

    await asyncio.gather(*[conversation(index) for index in range(len(deltas))])
