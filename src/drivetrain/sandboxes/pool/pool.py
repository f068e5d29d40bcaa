"""``SandboxPool``: a backend in front of a backend, with warm sandboxes and a limit on how many there are."""

from __future__ import annotations

import asyncio
import logging
import math
from types import TracebackType

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.sandboxes.pool.handle import PooledSandbox
from drivetrain.sandboxes.pool.probe import Probe, still_there
from drivetrain.sandboxes.pool.shelf import Warm
from drivetrain.sandboxes.pool.stats import PoolStats
from drivetrain.sandboxes.pool.stock import Rules, Stock, pool_closed
from drivetrain.sandboxes.protocol import Feature, SandboxBackend, SandboxHandle, SandboxSpec, Snapshot

logger = logging.getLogger(__name__)

# A sandbox started for its request says itself that its time is over; the pool steps in after this, seconds.
_OWN_EXPIRY_S = 5.0
# After so many warm sandboxes that failed the probe a request starts its own.
_MOST_PROBES = 3
# What a start may take of the time to live of a sandbox that is started ahead, seconds.
_START_SPARE_S = 30.0


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

    Raises:
        ConfigError: numbers that cannot be.
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
        self._rules = Rules(
            max_total=max_total,
            max_warm=max_warm,
            min_warm=min_warm,
            max_age_s=max_age_s,
            idle_s=idle_s,
            refill_concurrency=refill_concurrency,
            spare_s=max_age_s + probe_timeout_s + _START_SPARE_S,
        )
        self._wait_s = wait_s
        self._probe = probe
        self._probe_timeout_s = probe_timeout_s
        self._close_in_background = close_in_background
        self._counts = PoolStats()
        self._stock = Stock(backend, self._rules, self._counts)
        self._handed: set[PooledSandbox] = set()
        self._ending: asyncio.Task[None] | None = None

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
        stock = self._stock
        known = stock.ready + stock.checking + len(self._handed) + stock.closing
        return msgspec.structs.replace(
            self._counts,
            waited=stock.places.waited,
            timeouts=stock.places.timeouts,
            waiting=stock.places.waiting,
            ready=stock.ready,
            checking=stock.checking,
            in_use=len(self._handed),
            closing=stock.closing,
            starting=stock.places.taken - known,
        )

    async def create(self, spec: SandboxSpec) -> PooledSandbox:
        """A warm sandbox, or a new one; waits for room.

        Raises:
            SandboxPoolFull: there was no room within ``wait_s``.
            SandboxStartError: it did not come up, or the pool was closed meanwhile; nothing is left behind.
            SandboxUnsupported: the spec asks for what the backend cannot do.
        """
        self._check_open()
        warm = await self._find_room(spec)
        if warm is not None:
            self._counts.hits += 1
            return self._hand_out(warm.sandbox, spec, spec.limits.ttl_s)
        try:
            sandbox = await self._stock.start(spec)
        except Exception:
            self._counts.failures += 1
            raise
        self._counts.misses += 1
        handed = self._hand_out(sandbox, spec, spec.limits.ttl_s + _OWN_EXPIRY_S)
        shelf = self._stock.shelf(spec)
        shelf.succeeded()
        shelf.missed()
        self._stock.pump()
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
        if count > min(self._rules.max_warm, self._rules.max_total):
            raise ConfigError(
                f"{count} warm sandboxes are more than the pool keeps.", fix="Raise max_warm (and max_total)."
            )
        shelf = self._stock.shelf(spec)
        shelf.target = max(shelf.target, count, self._rules.min_warm)
        shelf.succeeded()  # asked for by name: tried now, whatever happened before
        self._stock.pump()
        try:
            async with asyncio.timeout(self._wait_s):
                while len(shelf.ready) < count:
                    if shelf.error is not None:
                        raise shelf.error
                    await self._stock.change()
                    self._check_open()
        except TimeoutError as error:
            raise self._stock.places.full() from error

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
        if self._ending is None:
            self._stock.closed = True
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def __aenter__(self) -> SandboxPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _find_room(self, spec: SandboxSpec) -> Warm | None:
        """A warm sandbox that has passed the probe, or None for a place to start one in."""
        loop = asyncio.get_running_loop()
        until = None if self._wait_s is None else loop.time() + self._wait_s
        shelf = self._stock.shelf(spec)
        bad = 0
        while True:
            # Warm ones that all fail the probe are made anew as fast as they are thrown away: not for ever.
            ttl_s = spec.limits.ttl_s + self._probe_timeout_s if bad < _MOST_PROBES else math.inf
            timeout_s = None if until is None else max(0.0, until - loop.time())
            warm = await self._stock.places.wait(shelf, ttl_s, timeout_s, first=bad > 0)
            if self._stock.closed:
                self._stock.give_back(warm)
                raise pool_closed()
            if warm is None or await self._passes(warm):
                return warm
            bad += 1

    async def _passes(self, warm: Warm) -> bool:
        """Probe a warm sandbox that was granted; one that fails is thrown away."""
        try:
            async with asyncio.timeout(self._probe_timeout_s):
                await self._probe(warm.sandbox)
            self._check_open()
        except Exception as error:
            self._stock.give_back(warm)
            self._check_open()
            self._counts.dead += 1
            logger.info("pool: warm sandbox %s is no good: %s", warm.sandbox.id, error)
            return False
        except BaseException:
            self._stock.give_back(warm)
            raise
        self._stock.checking -= 1
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
        return self._stock.retire(handed.sandbox)

    def _check_open(self) -> None:
        if self._stock.closed:
            raise pool_closed()

    async def _end(self) -> None:
        def close_used() -> None:
            for handed in list(self._handed):
                handed.begin_close("the pool was closed")

        await self._stock.end(close_used)
        await self._backend.aclose()
