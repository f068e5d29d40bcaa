"""``SandboxPool``: a backend in front of a backend, with warm sandboxes and a limit on how many there are."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

import msgspec

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.sandboxes.pool.handle import PooledSandbox
from drivetrain.sandboxes.pool.key import spec_key, warm_spec
from drivetrain.sandboxes.pool.probe import Probe, still_there
from drivetrain.sandboxes.pool.shelf import Shelf, Warm
from drivetrain.sandboxes.pool.stats import PoolStats
from drivetrain.sandboxes.protocol import (
    Feature,
    SandboxBackend,
    SandboxHandle,
    SandboxSpec,
    SandboxStartError,
    SandboxTimeout,
    Snapshot,
)

logger = logging.getLogger(__name__)

# A sandbox started for its request says itself that its time is over; the pool steps in after this, seconds.
_OWN_EXPIRY_S = 5.0
# After so many warm sandboxes that failed the probe a request starts its own.
_MOST_PROBES = 3
# What a start may take of the time to live of a sandbox that is started ahead, seconds.
_START_SPARE_S = 30.0


class SandboxPoolFull(SandboxTimeout):
    """No sandbox of the pool was closed in time to make room for one more."""


class _Waiter:
    """A request that waits for a warm sandbox or for room; the future gets the one, or None for the other."""

    def __init__(self, shelf: Shelf, ttl_s: float) -> None:
        self.shelf = shelf
        self.ttl_s = ttl_s
        self.granted: asyncio.Future[Warm | None] = asyncio.get_running_loop().create_future()


class SandboxPool:
    """Implements ``SandboxBackend``; use it in place of the backend it is given, which it owns from then on.

    A sandbox is handed out once and closed after use, never used again. A request takes a warm one that was started
    for an equal spec (``key.spec_key``) and passes ``probe``; else one is started for it. Every sandbox, from the begin
    of its start to the end of its removal, counts against ``max_total``; at the limit a request first takes the room
    of warm sandboxes of other specs, then waits, first come, first served.

    How many are kept warm follows demand for each key: a request that found none raises the number by one, up to
    ``max_warm``; one that ages unused lowers it, down to ``min_warm``; a key nobody asked for in ``idle_s`` keeps none.
    A spec whose start fails is tried ahead again after 1 s, 2 s, ... 60 s, and after six failures in a row not before a
    request for it has succeeded.

    Bound to the event loop of the first ``create``. Cancelling a request, at any point, loses no sandbox.

    Args:
        backend: makes the sandboxes.
        max_total: sandboxes at the same time, the warm ones included.
        max_warm: warm sandboxes for one key at most; 0 is a pool that only limits.
        min_warm: warm sandboxes for a key that is in use at least.
        max_age_s: a warm sandbox that waited so long is thrown away, seconds.
        idle_s: see above, seconds.
        wait_s: how long a request waits for room, seconds; None for ever. The start itself is not bounded by it.
        refill_concurrency: how many are started ahead at the same time.
        probe: what a warm sandbox has to pass before it is handed out (``still_there``, ``runs_a_command``).
        probe_timeout_s: a probe that takes longer has failed, seconds.
        close_in_background: see :meth:`PooledSandbox.close`.
    """

    def __init__(
        self,
        backend: SandboxBackend,
        *,
        max_total: int = 16,
        max_warm: int = 2,
        min_warm: int = 0,
        max_age_s: float = 300.0,
        idle_s: float = 600.0,
        wait_s: float | None = 600.0,
        refill_concurrency: int = 2,
        probe: Probe = still_there,
        probe_timeout_s: float = 5.0,
        close_in_background: bool = False,
    ) -> None:
        if max_total < 1 or refill_concurrency < 1 or not 0 <= min_warm <= max_warm:
            raise ConfigError(
                f"A pool of {max_total} sandboxes with {min_warm} to {max_warm} warm and {refill_concurrency} started "
                "ahead at the same time cannot be.",
                fix="Needed: max_total >= 1, 0 <= min_warm <= max_warm, refill_concurrency >= 1.",
            )
        if max_age_s <= 0 or idle_s <= 0 or probe_timeout_s <= 0 or (wait_s is not None and wait_s < 0):
            raise ConfigError("The times of a pool must be above 0 s (wait_s may be 0).", fix="Correct them.")
        self._backend = backend
        self._max_total = max_total
        self._max_warm = max_warm
        self._min_warm = min_warm
        self._max_age_s = max_age_s
        self._spare_s = max_age_s + probe_timeout_s + _START_SPARE_S
        self._idle_s = idle_s
        self._wait_s = wait_s
        self._refill_concurrency = refill_concurrency
        self._probe = probe
        self._probe_timeout_s = probe_timeout_s
        self._close_in_background = close_in_background
        self._shelves: dict[str, Shelf] = {}
        self._waiters: deque[_Waiter] = deque()
        self._starting: set[asyncio.Task[SandboxHandle]] = set()
        self._handed: set[PooledSandbox] = set()
        self._timers: dict[Warm, asyncio.TimerHandle] = {}
        self._retries: set[asyncio.TimerHandle] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refilling = 0
        # Places taken, of ``max_total``. What holds one: a start, a warm sandbox, a probe, a user, a removal.
        self._used = 0
        self._checking = 0
        self._closing = 0
        self._counts = PoolStats()
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        self._changed: asyncio.Event | None = None

    @property
    def name(self) -> str:
        """The backend's."""
        return self._backend.name

    @property
    def features(self) -> frozenset[Feature]:
        """The backend's."""
        return self._backend.features

    @property
    def backend(self) -> SandboxBackend:
        """What makes the sandboxes."""
        return self._backend

    def statistics(self) -> PoolStats:
        """Counts and what there is now."""
        ready = len(self._timers)
        return msgspec.structs.replace(
            self._counts,
            waiting=len(self._waiters),
            ready=ready,
            checking=self._checking,
            in_use=len(self._handed),
            closing=self._closing,
            starting=self._used - ready - self._checking - len(self._handed) - self._closing,
        )

    async def create(self, spec: SandboxSpec) -> PooledSandbox:
        """A warm sandbox, or a new one; waits for room.

        Raises:
            SandboxPoolFull: there was no room within ``wait_s``.
            SandboxStartError: it did not come up, or the pool was closed meanwhile; nothing is left behind.
            SandboxUnsupported: the spec asks for what the backend cannot do.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        shelf = self._shelf(spec)
        until = None if self._wait_s is None else loop.time() + self._wait_s
        bad = 0
        while True:
            # Warm ones that all fail the probe are made anew as fast as they are thrown away: not for ever.
            ttl_s = spec.limits.ttl_s if bad < _MOST_PROBES else math.inf
            warm = await self._acquire(shelf, ttl_s, until, first=bad > 0)
            if warm is None:
                break
            if await self._passes(warm):
                self._counts.hits += 1
                return self._hand_out(warm.sandbox, spec, spec.limits.ttl_s)
            bad += 1
        try:
            sandbox = await self._start(spec)
        except Exception as error:
            self._counts.failures += 1
            self._note_failure(shelf, error)
            raise
        self._counts.misses += 1
        shelf = self._shelf(spec)  # again: it may have been dropped as unused, or a mount replaced, meanwhile
        shelf.succeeded()
        shelf.missed()
        handed = self._hand_out(sandbox, spec, spec.limits.ttl_s + _OWN_EXPIRY_S)
        self._pump()
        return handed

    async def warm(self, spec: SandboxSpec, count: int = 1) -> None:
        """Have ``count`` sandboxes ready for requests like ``spec``; returns when they are.

        They are kept as those that demand asks for, so they go when nobody wants them.

        Raises:
            ConfigError: more than ``max_warm`` or ``max_total``.
                SandboxPoolFull: there was no room within ``wait_s``.
            SandboxError: one did not come up; the others stay.
        """
        self._check_open()
        if count > min(self._max_warm, self._max_total):
            raise ConfigError(
                f"{count} warm sandboxes are more than the pool keeps.", fix="Raise max_warm (and max_total)."
            )
        shelf = self._shelf(spec)
        shelf.target = max(shelf.target, count, self._min_warm)
        shelf.succeeded()  # asked for by name: tried now, whatever happened before
        self._pump()
        try:
            async with asyncio.timeout(self._wait_s):
                while len(shelf.ready) < count:
                    if shelf.error is not None:
                        raise shelf.error
                    await self._change().wait()
                    self._check_open()
        except TimeoutError as error:
            raise self._full() from error

    async def drop(self, snapshot: Snapshot) -> None:
        """Remove a snapshot."""
        await self._backend.drop(snapshot)

    async def reap(self) -> list[str]:
        """Remove sandboxes of dead owners and past deadlines; their ids."""
        return await self._backend.reap()

    async def aclose(self) -> None:
        """Close every sandbox, also those in use and those that are just starting, then the backend; idempotent.

        Requests that still wait or start get a ``SandboxStartError``.
        """
        self._closed = True
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def __aenter__(self) -> SandboxPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Room: who gets the next place.

    async def _acquire(self, shelf: Shelf, ttl_s: float, until: float | None, *, first: bool) -> Warm | None:
        """A warm sandbox, or None for a place to start one in; the caller holds its place from here.

        ``first``: it had its turn already, and what it got was no good.
        """
        loop = asyncio.get_running_loop()
        waiter = _Waiter(shelf, ttl_s + self._probe_timeout_s)
        self._waiters.insert(0 if first else len(self._waiters), waiter)
        self._pump()
        if not waiter.granted.done():
            self._counts.waited += 1
            try:
                await asyncio.wait([waiter.granted], timeout=None if until is None else max(0.0, until - loop.time()))
            except asyncio.CancelledError:
                self._leave(waiter)
                raise
            if not waiter.granted.done():
                self._leave(waiter)
                self._counts.timeouts += 1
                raise self._full()
        warm = waiter.granted.result()
        if self._closed:
            self._give_back(warm)
            self._check_open()
        return warm

    def _leave(self, waiter: _Waiter) -> None:
        """A request goes away; what it was granted at the same moment goes to the next."""
        if not waiter.granted.done():
            waiter.granted.cancel()
            self._waiters.remove(waiter)
        elif not waiter.granted.cancelled() and waiter.granted.exception() is None:
            self._give_back(waiter.granted.result())
        self._pump()

    def _full(self) -> SandboxPoolFull:
        return SandboxPoolFull(
            f"There was no room for one more sandbox within {self._wait_s:g} s: {self._used} of {self._max_total} "
            f"places are taken, {len(self._waiters)} more requests wait.",
            fix="Raise max_total if the machine bears it, close sandboxes sooner, or run fewer at once.",
        )

    def _give_back(self, warm: Warm | None) -> None:
        if warm is None:
            self._release()
        else:
            self._checking -= 1
            self._retire(warm.sandbox)

    def _release(self) -> None:
        self._used -= 1
        self._pump()

    def _pump(self) -> None:
        """Serve who waits, in order; then, when nobody does, start ahead. Called after every change."""
        if not self._closed:
            self._serve()
            if not self._waiters:
                self._refill()
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def _serve(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._waiters:
            head = self._waiters[0]
            warm = head.shelf.take(head.ttl_s, now)
            if warm is not None:
                self._timers.pop(warm).cancel()
                self._checking += 1
            elif self._used < self._max_total:
                self._used += 1
            else:
                break
            self._waiters.popleft()
            head.granted.set_result(warm)
        while self._closing < len(self._waiters) and self._timers:
            oldest = next(iter(self._timers))
            self._take_off(oldest)
            self._counts.evicted += 1

    def _refill(self) -> None:
        now = asyncio.get_running_loop().time()
        for shelf in sorted(self._shelves.values(), key=lambda shelf: -shelf.asked):
            while shelf.missing(now) and self._refilling < self._refill_concurrency and self._used < self._max_total:
                self._used += 1
                self._refilling += 1
                shelf.refilling += 1
                self._spawn(self._refill_one(shelf))
            if shelf.unused:
                del self._shelves[shelf.key]

    # Making sandboxes.

    def _shelf(self, spec: SandboxSpec) -> Shelf:
        key = spec_key(spec)
        shelf = self._shelves.get(key)
        if shelf is None:
            shelf = self._shelves[key] = Shelf(
                key, warm_spec(spec, self._spare_s), least=self._min_warm, most=self._max_warm
            )
        shelf.asked = asyncio.get_running_loop().time()
        return shelf

    async def _refill_one(self, shelf: Shelf) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            try:
                sandbox = await self._start(shelf.spec)
            finally:
                self._refilling -= 1
                shelf.refilling -= 1
        except Exception as error:
            if not self._closed:
                self._counts.refill_failures += 1
                logger.warning("pool: a sandbox could not be started ahead: %s", error)
                self._note_failure(shelf, error)
            return
        shelf.succeeded()
        self._counts.refills += 1
        warm = Warm(sandbox, shelf, begun + shelf.spec.limits.ttl_s)
        shelf.ready.append(warm)
        self._timers[warm] = loop.call_later(self._max_age_s, self._aged, warm)
        self._pump()

    async def _start(self, spec: SandboxSpec) -> SandboxHandle:
        """Start one in the place the caller holds; on failure the place is free again, and nothing is left."""
        task = asyncio.create_task(self._create(spec))
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
            raise _pool_closed()
        if (error := task.exception()) is not None:
            self._release()
            raise error
        sandbox = task.result()
        if self._closed:
            self._retire(sandbox)
            raise _pool_closed()
        return sandbox

    async def _create(self, spec: SandboxSpec) -> SandboxHandle:
        return await self._backend.create(spec)

    def _abandon(self, task: asyncio.Task[SandboxHandle]) -> None:
        self._starting.discard(task)
        if task.cancelled() or task.exception() is not None:
            self._release()
        else:
            self._retire(task.result())

    def _note_failure(self, shelf: Shelf, error: Exception) -> None:
        loop = asyncio.get_running_loop()
        for_good = isinstance(error, ConfigError | MissingDependency)
        delay = shelf.failed(error, loop.time(), for_good=for_good)
        if delay is not None and not self._closed:
            self._retry_after(delay)
        self._pump()

    def _retry_after(self, delay_s: float) -> None:
        def again() -> None:
            self._retries.discard(timer)
            self._pump()

        timer = asyncio.get_running_loop().call_later(delay_s, again)
        self._retries.add(timer)

    # Handing out and taking back.

    async def _passes(self, warm: Warm) -> bool:
        """Probe a warm sandbox; one that fails is thrown away. The caller has it in ``_checking``."""
        try:
            async with asyncio.timeout(self._probe_timeout_s):
                await self._probe(warm.sandbox)
        except Exception as error:
            self._counts.dead += 1
            logger.info("pool: warm sandbox %s is no good: %s", warm.sandbox.id, error)
            self._give_back(warm)
            return False
        except BaseException:
            self._give_back(warm)
            raise
        if self._closed:
            self._give_back(warm)
            self._check_open()
        self._checking -= 1
        return True

    def _hand_out(self, sandbox: SandboxHandle, spec: SandboxSpec, expires_s: float) -> PooledSandbox:
        handed = PooledSandbox(sandbox, spec, retire=self._take_back, in_background=self._close_in_background)
        self._handed.add(handed)
        handed.expiry = asyncio.get_running_loop().call_later(expires_s, self._expire, handed)
        return handed

    def _expire(self, handed: PooledSandbox) -> None:
        self._counts.expired += 1
        handed.begin_close("its time to live is over")

    def _take_back(self, handed: PooledSandbox) -> asyncio.Task[None]:
        self._handed.discard(handed)
        return self._retire(handed.sandbox)

    def _aged(self, warm: Warm) -> None:
        now = asyncio.get_running_loop().time()
        warm.shelf.aged(idle=now - warm.shelf.asked >= self._idle_s)
        self._counts.aged += 1
        self._take_off(warm)
        self._pump()

    def _take_off(self, warm: Warm) -> None:
        """Throw a warm sandbox away."""
        self._timers.pop(warm).cancel()
        warm.shelf.ready.remove(warm)
        self._retire(warm.sandbox)

    def _retire(self, sandbox: SandboxHandle) -> asyncio.Task[None]:
        """Close a sandbox whose place is held; the place is free when it is gone."""
        self._closing += 1
        return self._spawn(self._close(sandbox))

    async def _close(self, sandbox: SandboxHandle) -> None:
        try:
            await sandbox.close()
        except Exception as error:
            # What is left of it is the reaper's; the place is not lost with it.
            self._counts.close_failures += 1
            logger.warning("pool: sandbox %s could not be closed: %s", sandbox.id, error)
            raise
        finally:
            self._closing -= 1
            self._release()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # said in the log; whoever waits for the task gets it too

    def _change(self) -> asyncio.Event:
        if self._changed is None:
            self._changed = asyncio.Event()
        return self._changed

    # The end.

    def _check_open(self) -> None:
        if self._closed:
            raise _pool_closed()

    async def _end(self) -> None:
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            waiter.granted.set_exception(_pool_closed())
            waiter.granted.exception()  # one that is cancelled at the same time never asks
        for timer in self._retries:
            timer.cancel()
        for task in list(self._starting):
            _cancel(task)
        for warm in list(self._timers):
            self._take_off(warm)
        for handed in list(self._handed):
            handed.begin_close("the pool was closed")
        while self._used or self._tasks:
            await self._change().wait() if self._used else await asyncio.wait(self._tasks)
        await self._backend.aclose()


def _pool_closed() -> SandboxStartError:
    return SandboxStartError("The sandbox pool is closed.", fix="Make another pool.")


def _cancel(task: asyncio.Task[SandboxHandle]) -> None:
    """Cancel a start once: a second time would cut the backend's cleaning up short."""
    if not task.cancelling():
        task.cancel()
