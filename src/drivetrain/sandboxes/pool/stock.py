"""What a pool holds: starts sandboxes, ahead or for a request, keeps the warm ones, removes what is done with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.sandboxes.pool.key import spec_key, warm_spec
from drivetrain.sandboxes.pool.places import Places
from drivetrain.sandboxes.pool.shelf import Shelf, Warm
from drivetrain.sandboxes.pool.stats import PoolStats
from drivetrain.sandboxes.protocol import SandboxBackend, SandboxHandle, SandboxSpec, SandboxStartError

logger = logging.getLogger(__name__)

# The first commands in a sandbox that was just handed out go before the start of the next one, seconds: beside a start
# they take two to three times as long (benchmarks/sandbox_lifecycle.py).
HEADWAY_S = 0.05


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How much is kept; times in seconds. See :class:`~drivetrain.sandboxes.pool.SandboxPool`.

    ``spare_s``: how much longer than any request asks for a sandbox that is started ahead lives.
    """

    max_total: int
    max_warm: int
    min_warm: int
    max_age_s: float
    idle_s: float
    refill_concurrency: int
    spare_s: float


class Stock:
    """Sandboxes that nobody uses yet or any more. ``checking`` counts warm ones that were granted, until they are used.

    Bound to the running loop of its first use.
    """

    def __init__(self, backend: SandboxBackend, rules: Rules, counts: PoolStats) -> None:
        self.places = Places(rules.max_total, find=self._find, give_back=self.give_back, changed=self.pump)
        self.checking = 0
        self.closing = 0
        self.closed = False
        self._backend = backend
        self._rules = rules
        self._counts = counts
        self._shelves: dict[str, Shelf] = {}
        self._ready: dict[Warm, asyncio.TimerHandle] = {}
        self._starting: set[asyncio.Task[SandboxHandle]] = set()
        self._refilling = 0
        self._refill_from = 0.0
        self._pumps: set[asyncio.TimerHandle] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: asyncio.Event | None = None

    @property
    def ready(self) -> int:
        """Warm sandboxes."""
        return len(self._ready)

    def shelf(self, spec: SandboxSpec) -> Shelf:
        """Where warm sandboxes for requests like this are; notes that somebody asks."""
        key = spec_key(spec)
        shelf = self._shelves.get(key)
        if shelf is None:
            ahead = warm_spec(spec, self._rules.spare_s)
            shelf = self._shelves[key] = Shelf(key, ahead, least=self._rules.min_warm, most=self._rules.max_warm)
        shelf.asked = asyncio.get_running_loop().time()
        return shelf

    def pump(self) -> None:
        """Serve who waits, in order; then, when nobody does, start ahead. Called after every change."""
        if not self.closed:
            self.places.serve()
            self._make_room()
            if not self.places.waiting:
                self._refill()
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def change(self) -> None:
        """Wait until anything has changed."""
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()

    def give_back(self, warm: Warm | None) -> None:
        """Take back what a request was granted and does not use: a warm sandbox goes, a place is free."""
        if warm is None:
            self._release()
        else:
            self.checking -= 1
            self.retire(warm.sandbox)

    async def start(self, spec: SandboxSpec) -> SandboxHandle:
        """Start one in the place the caller holds; on failure the place is free again, and nothing is left."""
        task = asyncio.create_task(_create(self._backend, spec))
        self._starting.add(task)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            # The place stays taken until the backend has cleaned up, however often we are cancelled.
            task.add_done_callback(self._abandon)
            _cancel(task)
            await asyncio.wait([task])
            raise
        self._starting.discard(task)
        if task.cancelled():
            self._release()
            raise pool_closed()
        if (error := task.exception()) is not None:
            self._release()
            raise error
        if self.closed:
            self.retire(task.result())
            raise pool_closed()
        return task.result()

    def retire(self, sandbox: SandboxHandle) -> asyncio.Task[None]:
        """Close a sandbox whose place is held; the place is free when it is gone."""
        self.closing += 1
        return self._spawn(self._close(sandbox))

    async def end(self, close_used: Callable[[], None]) -> None:
        """Stop starting, remove everything; returns when every place is free."""
        self.closed = True
        self.places.dissolve(pool_closed)
        for timer in self._pumps:
            timer.cancel()
        for task in list(self._starting):
            _cancel(task)
        for warm in list(self._ready):
            self._throw_away(warm)
        close_used()
        while self.places.taken:
            await self.change()
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _find(self, shelf: Shelf, ttl_s: float) -> Warm | None:
        now = asyncio.get_running_loop().time()
        warm = shelf.take(ttl_s, now)
        if warm is not None:
            self._ready.pop(warm).cancel()
            self.checking += 1
            if now >= self._refill_from:  # a stream of requests does not put it off again and again
                self._refill_from = now + HEADWAY_S
                self._pump_after(HEADWAY_S)
        return warm

    def _make_room(self) -> None:
        """Throw the oldest warm ones away for those who wait."""
        while self.closing < self.places.waiting and self._ready:
            self._counts.evicted += 1
            self._throw_away(next(iter(self._ready)))

    def _refill(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._refill_from:
            return
        for shelf in sorted(self._shelves.values(), key=lambda shelf: -shelf.asked):
            while shelf.missing(now) and self._refilling < self._rules.refill_concurrency and self.places.free:
                self.places.taken += 1
                self._refilling += 1
                shelf.refilling += 1
                self._spawn(self._refill_one(shelf))
            if shelf.unused:
                del self._shelves[shelf.key]

    async def _refill_one(self, shelf: Shelf) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            try:
                sandbox = await self.start(shelf.spec)
            finally:
                self._refilling -= 1
                shelf.refilling -= 1
        except Exception as error:
            if not self.closed:
                self._counts.refill_failures += 1
                logger.warning("pool: a sandbox could not be started ahead: %s", error)
                self._try_again_later(shelf, error)
            return
        shelf.succeeded()
        self._counts.refills += 1
        warm = Warm(sandbox, shelf, begun + shelf.spec.limits.ttl_s)
        shelf.ready.append(warm)
        self._ready[warm] = loop.call_later(self._rules.max_age_s, self._aged, warm)
        self.pump()

    def _try_again_later(self, shelf: Shelf, error: Exception) -> None:
        """A start ahead failed: back off, or leave it."""
        loop = asyncio.get_running_loop()
        delay = shelf.failed(error, loop.time(), for_good=isinstance(error, ConfigError | MissingDependency))
        if delay is not None:
            self._pump_after(delay)
        self.pump()

    def _pump_after(self, delay_s: float) -> None:
        def now() -> None:
            self._pumps.discard(timer)
            self.pump()

        timer = asyncio.get_running_loop().call_later(delay_s, now)
        self._pumps.add(timer)

    def _aged(self, warm: Warm) -> None:
        now = asyncio.get_running_loop().time()
        warm.shelf.aged(idle=now - warm.shelf.asked >= self._rules.idle_s)
        self._counts.aged += 1
        self._throw_away(warm)
        self.pump()

    def _throw_away(self, warm: Warm) -> None:
        self._ready.pop(warm).cancel()
        warm.shelf.ready.remove(warm)
        self.retire(warm.sandbox)

    def _abandon(self, task: asyncio.Task[SandboxHandle]) -> None:
        self._starting.discard(task)
        if task.cancelled() or task.exception() is not None:
            self._release()
        else:
            self.retire(task.result())

    async def _close(self, sandbox: SandboxHandle) -> None:
        try:
            await sandbox.close()
        except Exception as error:
            # What is left of it is the reaper's; the place is not lost with it.
            self._counts.close_failures += 1
            logger.warning("pool: sandbox %s could not be closed: %s", sandbox.id, error)
            raise
        finally:
            self.closing -= 1
            self._release()

    def _release(self) -> None:
        self.places.taken -= 1
        self.pump()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # said in the log; whoever waits for the task gets it too


def pool_closed() -> SandboxStartError:
    """What requests to a closed pool get."""
    return SandboxStartError("The sandbox pool is closed.", fix="Make another pool.")


async def _create(backend: SandboxBackend, spec: SandboxSpec) -> SandboxHandle:
    return await backend.create(spec)


def _cancel(task: asyncio.Task[SandboxHandle]) -> None:
    """Cancel a start once: a second time would cut the backend's cleaning up short."""
    if not task.cancelling():
        task.cancel()
