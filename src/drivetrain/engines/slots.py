"""The slot loop: one thread, one packed forward pass per step, requests join and leave between steps."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

import msgspec
import torch

from drivetrain.engines import packed
from drivetrain.engines.few_rows import FewRows
from drivetrain.engines.kv_cache import KVShape, PrefixCache, SequenceKV, Tokens, as_tokens, common_prefix
from drivetrain.engines.protocol import Completion, EngineError, EngineFinish, Sampling
from drivetrain.engines.sampling import generator, sample

_GROW = 256  # tokens reserved beyond the prompt; buffers grow after that
_WORTH_SHARING = 16  # tokens; below it, waiting for a neighbour's prefix costs more than computing it


class Metrics(msgspec.Struct):
    """Counters since start, and gauges (``running``, ``waiting``, ``cache_bytes``, ``cache_entries``)."""

    requests: int = 0
    steps: int = 0
    generated_tokens: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cancelled: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    cache_bytes: int = 0
    cache_entries: int = 0


class Slot:
    """One request: its tokens so far, how many of them are in the KV buffer, and how to answer."""

    def __init__(self, prompt: Sequence[int], sampling: Sampling, room: int) -> None:
        self.prompt: Tokens = as_tokens(prompt)
        self.tokens: list[int] = self.prompt.tolist()
        self.sampling = sampling
        self.max_new = min(sampling.max_tokens, room)
        self.answer: Future[Completion] = Future()
        self.logprobs: list[float] = []
        self.random = generator(sampling.seed)
        self.kv: SequenceKV | None = None
        self.counted = False
        self.versions: list[list[int]] = []  # runs of (tokens, policy version)
        self.first_token_at = 0.0

    @property
    def todo(self) -> int:
        """Tokens that have no keys and values yet; 1 while decoding."""
        return len(self.tokens) - (self.kv.length if self.kv else 0)


class SlotLoop:
    """Runs slots until closed. ``submit``, ``pause`` and ``close`` may be called from any thread."""

    def __init__(
        self,
        model: Any,
        *,
        max_batch: int,
        cache_bytes: int,
        prefill_chunk: int,
        busy_prefill_chunk: int,
        threads: int,
        version: Callable[[], int],
    ) -> None:
        self.model = model
        self.shape: KVShape = packed.kv_shape(model)
        self._few_rows = FewRows(model)
        self.cache = PrefixCache(cache_bytes)
        self.metrics = Metrics()
        self._max_batch = max_batch
        self._chunk = prefill_chunk
        self._busy_chunk = busy_prefill_chunk
        self._threads = threads
        self._version = version
        self._slots: list[Slot] = []
        self._waiting: deque[Slot] = deque()
        self._changed = threading.Condition()
        self._pauses = 0
        self._stepping = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="drivetrain-engine", daemon=True)
        self._thread.start()

    def submit(self, slot: Slot) -> None:
        """Queue a request; its ``answer`` future completes from the engine thread. Cancel the future to drop it."""
        with self._changed:
            if self._closed:
                raise EngineError("the engine is closed.", retryable=False)
            self._waiting.append(slot)
            self.metrics.requests += 1
            self._changed.notify_all()

    def pause(self) -> None:
        """Return when no step runs and none will start before as many :meth:`resume` calls."""
        with self._changed:
            self._pauses += 1
            self._changed.wait_for(lambda: not self._stepping)

    def resume(self) -> None:
        """Undo one :meth:`pause`."""
        with self._changed:
            self._pauses -= 1
            self._changed.notify_all()

    def forget(self) -> None:
        """Drop every key and value; running requests compute theirs again. Call while paused."""
        self.cache.clear()
        for slot in self._slots:
            slot.kv = None
        self.shape = packed.kv_shape(self.model)
        self._few_rows = FewRows(self.model)

    def close(self) -> None:
        """Fail what runs or waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._fail([*self._slots, *self._waiting], EngineError("the engine was closed.", retryable=False))
        self._slots.clear()
        self._waiting.clear()
        self.cache.clear()

    def snapshot(self) -> Metrics:
        """Counters and gauges now."""
        with self._changed:
            return msgspec.structs.replace(
                self.metrics,
                running=len(self._slots),
                waiting=len(self._waiting),
                cache_bytes=self.cache.nbytes,
                cache_entries=len(self.cache),
            )

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # OpenMP keeps this per thread: the trainer's own threads are not touched
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or (not self._pauses and bool(self._slots or self._waiting))
                )
                if self._closed:
                    return
                self._stepping = True
                self._admit()
            try:
                self._step()
            except Exception as error:
                self._fail(self._slots, _typed(error))
                self._slots.clear()
                self.cache.clear()  # a step that broke off may have left half-written keys behind
            finally:
                with self._changed:
                    self._stepping = False
                    self._changed.notify_all()

    def _admit(self) -> None:
        """Free the slots of cancelled requests and fill them with waiting ones."""
        for slot in [slot for slot in self._slots if slot.answer.cancelled()]:
            self.metrics.cancelled += 1
            self._leave(slot)
        while self._waiting and len(self._slots) < self._max_batch:
            slot = self._waiting.popleft()
            if slot.answer.cancelled():
                self.metrics.cancelled += 1
            else:
                self._slots.append(slot)

    def _step(self) -> None:
        chosen = self._plan()
        if not chosen:
            return
        spans = []
        for slot, count in chosen:
            assert slot.kv is not None
            done = slot.kv.length
            spans.append(packed.Span(slot.kv, slot.tokens[done : done + count]))
            if slot.todo > 1 or not slot.logprobs:
                self.metrics.prefill_tokens += count
        ready = [i for i, (slot, count) in enumerate(chosen) if count == slot.todo]
        with self._few_rows.used():
            logits = packed.forward(self.model, spans, ready)
        self.metrics.steps += 1
        for row, index in enumerate(ready):
            self._advance(chosen[index][0], logits[row])

    def _plan(self) -> list[tuple[Slot, int]]:
        """How many tokens each slot runs in this step.

        Decoding slots run one each. Prompts share a budget, first come first served, small while others decode so
        that a long prompt does not stall them. A prompt that shares its beginning with one ahead of it waits until
        those keys exist and copies them: a group of equal prompts is computed once.
        """
        decoding = [slot for slot in self._slots if slot.kv is not None and slot.todo == 1]
        budget = self._busy_chunk if decoding else self._chunk
        plan = [(slot, 1) for slot in decoding]
        filling: list[Slot] = []
        for slot in self._slots:
            if budget <= 0 or slot in decoding:
                continue
            source, shared = (None, slot.kv.length) if slot.kv else self._longest_prefix(slot)
            worth = shared + _WORTH_SHARING
            if any(common_prefix(slot.prompt, ahead.prompt) > worth for ahead in filling):
                continue
            if slot.kv is None:
                self._begin(slot, source, shared)
            count = min(slot.todo, budget)
            plan.append((slot, count))
            filling.append(slot)
            budget -= count
        return plan

    def _longest_prefix(self, slot: Slot) -> tuple[SequenceKV | None, int]:
        """The longest computed prefix of ``slot``'s tokens: a finished sequence's or a running neighbour's."""
        tokens = as_tokens(slot.tokens)
        kv, shared = self.cache.find(tokens)
        for other in self._slots:
            if other is not slot and other.kv is not None and other.kv.length > shared:
                live = min(common_prefix(other.prompt, tokens), other.kv.length)
                if live > shared:
                    kv, shared = other.kv, live
        return kv, min(shared, len(tokens) - 1)  # the last token must run to give logits

    def _begin(self, slot: Slot, source: SequenceKV | None, shared: int) -> None:
        """Give ``slot`` a buffer that starts with a copy of the ``shared`` first tokens of ``source``."""
        capacity = len(slot.tokens) + min(slot.max_new, _GROW)
        slot.kv = source.fork(shared, capacity) if source and shared else SequenceKV(self.shape, capacity)
        self.metrics.cached_tokens += shared
        if not slot.counted:
            slot.counted = True
            if shared:
                self.metrics.cache_hits += 1
            else:
                self.metrics.cache_misses += 1

    def _advance(self, slot: Slot, logits: Any) -> None:
        """Sample the next token of ``slot``; answer when it was the last."""
        try:
            token, logprob = sample(logits, slot.sampling.temperature, slot.random)
        except EngineError as error:
            self._fail([slot], error)
            self._slots.remove(slot)
            return
        version = self._version()
        if not slot.logprobs:
            slot.first_token_at = time.time()
        if not slot.versions or slot.versions[-1][1] != version:
            slot.versions.append([0, version])
        slot.versions[-1][0] += 1
        slot.tokens.append(token)
        slot.logprobs.append(logprob)
        self.metrics.generated_tokens += 1
        if token in slot.sampling.stop_token_ids:
            self._finish(slot, "stop")
        elif len(slot.logprobs) >= slot.max_new:
            self._finish(slot, "length")

    def _finish(self, slot: Slot, reason: EngineFinish) -> None:
        self._leave(slot)
        completion = Completion(
            token_ids=slot.tokens[len(slot.prompt) :],
            logprobs=slot.logprobs,
            finish_reason=reason,
            policy_version_start=slot.versions[0][1],
            policy_version_end=slot.versions[-1][1],
            version_spans=[(count, version) for count, version in slot.versions],
            first_token_at=slot.first_token_at,
        )
        try:
            slot.answer.set_result(completion)
        except InvalidStateError:  # cancelled in this very step
            self.metrics.cancelled += 1

    def _leave(self, slot: Slot) -> None:
        """Free the slot; its keys and values, if any, serve the session's next call."""
        self._slots.remove(slot)
        if slot.kv is not None and slot.kv.length:
            self.cache.put(as_tokens(slot.tokens[: slot.kv.length]), slot.kv)

    def _fail(self, slots: Sequence[Slot], error: EngineError) -> None:
        for slot in slots:
            self.metrics.failed += 1
            if not slot.answer.cancelled():
                try:
                    slot.answer.set_exception(error)
                except InvalidStateError:
                    continue


def _typed(error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    wrapped = EngineError(f"a step of the embedded engine failed: {type(error).__name__}: {error}", retryable=True)
    wrapped.__cause__ = error
    return wrapped
