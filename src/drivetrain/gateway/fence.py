"""The weight-sync gate: engine calls pass through it, weights change while it is closed (design section 5, "Fence").

No HTTP here. A call that comes while the gate is not open waits inside :meth:`Fence.passing`; its client sees a slow
reply, because keep-alives are sent by whoever holds the connection.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import get_args

import msgspec

from drivetrain.engines.fingerprint import ChecksWeights, Fingerprint
from drivetrain.engines.protocol import Engine, EngineError, Pausable, PrefixCached, VersionSettable
from drivetrain.errors import ConfigError
from drivetrain.gateway.fence_types import (
    FenceBusy,
    FenceCounts,
    FenceFailed,
    FenceState,
    FenceStatus,
    FenceTimeout,
    OnDeadline,
    Passage,
    PauseMode,
    Update,
)

_ABORT_GRACE_S = 10.0
_log = logging.getLogger("drivetrain.gateway")


class _Pause:
    """One closing of the gate, from the request until it opens again."""

    def __init__(self, owner: str, mode: PauseMode, policy_version: int) -> None:
        self.owner = owner
        self.mode = mode
        self.policy_version = policy_version
        self.since = time.monotonic()
        self.state: FenceState = "draining"
        self.settled = asyncio.Event()  # closed, or given up
        self.over = asyncio.Event()  # opened again, or failed
        self.failed = ""
        self.held = False
        self.resuming = False
        self.timer: asyncio.TimerHandle | None = None


class _Inside:
    """A call that has passed and not ended."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self.cancelling = task.cancelling()
        self.broken: FenceFailed | None = None

    def abort(self, why: str) -> None:
        if self.broken is None:
            self.broken = FenceFailed(why)
            self.task.cancel()


class Fence:
    """The gate in front of one engine. All methods are for the event loop that serves the calls; other threads use
    :class:`~drivetrain.gateway.fence_threads.ThreadFence`.

    A pause belongs to its ``owner``, a name: the same owner may ask again (a lost answer) and gets the same pause,
    anybody else gets :class:`FenceBusy`. Between :meth:`pause` and :meth:`resume` no engine step runs and no call is
    let through. Time during which the gate is not open does not count against a session's wall clock.

    A pause that stays closed longer than ``max_pause_s`` has *failed*: its owner may have died half-way through the
    weights, so the gate does not open with either version. Calls that wait, come or are held get
    :class:`FenceFailed`, which is retryable and ends a rollout as an infrastructure failure, never as a zero. The
    owner may still resume; anybody may take over with a :meth:`pause` of their own.

    Args:
        engine: whose calls pass.
        max_pause_s: seconds, may be infinite.
    """

    def __init__(self, engine: Engine, *, max_pause_s: float = 600.0) -> None:
        if not max_pause_s > 0:
            raise ConfigError(f"max_pause_s is {max_pause_s}; it must be positive.", fix="Give it in seconds.")
        self.max_pause_s = max_pause_s
        self._engine = engine
        self._pause: _Pause | None = None
        self._inside: set[_Inside] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiting = 0
        self._verdict = asyncio.Event()  # cleared while weights are being checked
        self._verdict.set()
        self._paused_s = 0.0
        self._clocks: dict[asyncio.Timeout, float | None] = {}  # time limits; what is left of those that stand still
        self._chores: set[asyncio.Task[None]] = set()
        self.counts = FenceCounts()

    @property
    def policy_version(self) -> int:
        """Of the weights that would serve a call dispatched now."""
        return self._engine.policy_version

    @property
    def paused_s(self) -> float:
        """Seconds, since the start, during which the gate was not open."""
        current = time.monotonic() - self._pause.since if self._pause is not None else 0.0
        return self._paused_s + current

    def status(self) -> FenceStatus:
        """State, owner and counters now."""
        pause = self._pause
        return FenceStatus(
            state=pause.state if pause else "open",
            policy_version=self._engine.policy_version,
            waiting=self._waiting,
            in_flight=len(self._inside),
            owner=pause.owner if pause else "",
            mode=pause.mode if pause else "",
            failed=pause.failed if pause else "",
            held=pause.held if pause else False,
            paused_for_s=time.monotonic() - pause.since if pause else 0.0,
            counts=msgspec.structs.replace(self.counts),
        )

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[Passage]:
        """Wait until the gate is open, then run one engine call inside. Cancelling it leaves nothing behind.

        Raises:
            FenceFailed: the pause it waited for failed, or the call was aborted for a weight update.
        """
        passage = Passage(time.time())
        if self._pause is not None:
            await self._wait_until_open()
        task = asyncio.current_task()
        assert task is not None
        inside = _Inside(task)
        self._inside.add(inside)
        self._idle.clear()
        self.counts.passed += 1
        passage.dispatched_at = time.time()
        passage.policy_version = self._engine.policy_version
        try:
            yield passage
            await self._verdict.wait()  # or it ended on weights of which nobody knows yet whose they are
        except asyncio.CancelledError:
            # As asyncio.timeout does: only a cancellation that was ours, and nobody else's too, becomes our error.
            if inside.broken is not None and task.uncancel() <= inside.cancelling:
                raise inside.broken from None
            raise
        finally:
            self._inside.discard(inside)
            if not self._inside:
                self._idle.set()

    @asynccontextmanager
    async def timeout(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """``asyncio.timeout`` for an engine call: it stands still while the engine holds the call.

        Raises:
            TimeoutError: the time is up.
        """
        async with asyncio.timeout(seconds) as clock:
            self._clocks[clock] = None
            try:
                yield clock
            finally:
                del self._clocks[clock]

    async def pause(
        self,
        mode: PauseMode = "drain",
        *,
        deadline_s: float = 60.0,
        on_deadline: OnDeadline = "error",
        owner: str = "trainer",
    ) -> FenceStatus:
        """Close the gate; when this returns, no engine step runs and weights may change.

        If it raises, or is cancelled, the gate is open again with the old version.

        Args:
            mode: what happens to calls in flight.
            deadline_s: how long they may take to finish (``drain``), or the engine to hold them (``hold``).
            on_deadline: of a drain: what happens to those still running then. ``abort`` ends them with an error that
                their clients see; it is never the default, because each costs a rollout (case row E3).
            owner: who pauses.

        Raises:
            FenceTimeout: the deadline passed; says how many calls were running.
            FenceBusy: somebody else has paused, or the same owner in another mode.
            ConfigError: an unknown mode, a deadline that is no positive number, or an engine that cannot hold.
        """
        self._check(mode, deadline_s, on_deadline)
        before = self._pause
        if before is not None and (not before.failed or before.resuming):
            return await self._join(before, mode, owner)
        pause = self._pause = _Pause(owner, mode, self._engine.policy_version)
        if before is not None:  # take over: whoever failed may have left half an update behind
            pause.held, pause.since = before.held, before.since
            pause.policy_version = before.policy_version
            self._disarm(before)
        try:
            await self._settle(pause, mode, deadline_s, on_deadline)
        except BaseException as error:
            self.counts.timeouts += isinstance(error, FenceTimeout)
            if before is None:
                self._open(pause)
            else:
                self._pause = before
                pause.over.set()
            raise
        finally:
            pause.settled.set()
        pause.state = "closed"
        self.counts.pauses += 1
        if math.isfinite(self.max_pause_s):
            loop = asyncio.get_running_loop()
            pause.timer = loop.call_later(
                self.max_pause_s,
                lambda: self._fail(pause, f"the pause of {owner!r} did not end within {self.max_pause_s:g} s"),
            )
        return self.status()

    async def resume(
        self, policy_version: int, *, fingerprint: Fingerprint | None = None, owner: str = "trainer"
    ) -> FenceStatus:
        """Open the gate; calls from now on are served by weights ``policy_version``.

        The engine's prefix cache is reset first: keys and values of old weights are wrong, not merely old (case row
        E4). If this raises, the gate stays closed and may be resumed again.

        Args:
            policy_version: of the weights now; not lower than before the pause. The engine must report it, or let
                itself be told.
            fingerprint: what the trainer's weights say of a fixed text. The engine's servers must say the same before
                the gate opens; where they do not, the pause has failed (see the class), and held calls with it.
            owner: who paused.

        Raises:
            FenceBusy: nobody has paused, somebody else has, or the pause has not come about yet.
            ConfigError: the version is lower than before, or not the one that the engine serves; a fingerprint for an
                engine that cannot be asked.
            WeightsMismatch: the servers' weights are not those of the fingerprint.
            EngineError: the engine could not reset its cache or go on, or be asked for the fingerprint.
        """
        pause = self._owned(owner)
        if fingerprint is not None and not isinstance(self._engine, ChecksWeights):
            raise ConfigError(
                f"engine {self._engine.name} has no server whose weights could be checked.",
                fix="Leave the fingerprint out.",
            )
        if policy_version < pause.policy_version:
            raise ConfigError(
                f"policy version {policy_version} is lower than {pause.policy_version}, which was served before.",
                fix="Versions count updates: they only grow, also when older weights are loaded again.",
            )
        pause.resuming = True
        try:
            await self._publish(policy_version)
            if fingerprint is not None:
                self._verdict.clear()
            if pause.held:
                assert isinstance(self._engine, Pausable)
                await self._engine.resume()
                pause.held = False
                self._start_clocks()
            if fingerprint is not None:
                await self._check_weights(pause, fingerprint)
        finally:
            pause.resuming = False
            self._verdict.set()
        self._open(pause)
        return self.status()

    @asynccontextmanager
    async def paused(
        self,
        mode: PauseMode = "drain",
        *,
        deadline_s: float = 60.0,
        on_deadline: OnDeadline = "error",
        owner: str = "",
    ) -> AsyncIterator[Update]:
        """Change weights in the body and set ``version`` of what it is given (unless the engine counts by itself).
        ``owner`` is made unique: who comes second gets :class:`FenceBusy`.

        When the body raises, nobody knows what the weights are: the pause has failed (see the class), and the gate
        stays closed until somebody pauses and resumes with sound weights.

        Raises:
            ConfigError: no version was given; also what :meth:`pause` and :meth:`resume` raise.
        """
        owner = f"{owner or 'update'}-{secrets.token_hex(4)}"  # no second body may join this pause
        before = (await self.pause(mode, deadline_s=deadline_s, on_deadline=on_deadline, owner=owner)).policy_version
        update = Update()
        try:
            yield update
            if update.version is None and self._engine.policy_version == before:
                raise ConfigError(
                    "the pause ended without a policy version.",
                    fix="Set version to that of the new weights, or to the old one if nothing was changed.",
                )
            version = self._engine.policy_version if update.version is None else update.version
            await self.resume(version, fingerprint=update.fingerprint, owner=owner)
        except BaseException as error:
            if self._pause is not None and self._pause.owner == owner:
                self._fail(self._pause, f"the weight update of {owner!r} broke off ({type(error).__name__})")
            raise

    async def _wait_until_open(self) -> None:
        self._waiting += 1
        self.counts.waited += 1
        try:
            while (pause := self._pause) is not None:
                if pause.failed:
                    raise FenceFailed(f"{pause.failed}; the weights are not known to be whole.")
                await pause.over.wait()
        finally:
            self._waiting -= 1

    def _check(self, mode: str, deadline_s: float, on_deadline: str) -> None:
        for name, value, known in (("mode", mode, PauseMode), ("on_deadline", on_deadline, OnDeadline)):
            if value not in get_args(known):
                raise ConfigError(f"unknown {name} {value!r}.", fix=f"Use one of {', '.join(get_args(known))}.")
        if not deadline_s > 0:
            raise ConfigError(f"deadline_s is {deadline_s}; it must be positive.", fix="Give it in seconds.")
        if "hold" in (mode, on_deadline) and not isinstance(self._engine, Pausable):
            raise ConfigError(f"engine {self._engine.name} cannot hold calls.", fix="Drain it instead.")

    async def _join(self, pause: _Pause, mode: PauseMode, owner: str) -> FenceStatus:
        """A second request of the same owner: the same pause."""
        if pause.owner != owner or pause.mode != mode:
            raise FenceBusy(
                f"the gate is {pause.state}: {pause.owner!r} paused it ({pause.mode}) "
                f"{time.monotonic() - pause.since:.0f} s ago.",
                fix="Wait for the end of that pause.",
            )
        await pause.settled.wait()
        if self._pause is not pause:
            raise FenceBusy("the pause that this request joined did not come about.", fix="Ask again.")
        return self.status()

    def _owned(self, owner: str) -> _Pause:
        pause = self._pause
        if pause is None:
            raise FenceBusy("the gate is open; there is nothing to resume.", fix="Pause first.")
        if pause.owner != owner:
            raise FenceBusy(f"the gate was paused by {pause.owner!r}, not by {owner!r}.", fix="Resume as its owner.")
        if pause.state != "closed" or pause.resuming:
            what = "being resumed" if pause.resuming else "still draining"
            raise FenceBusy(f"the pause of {owner!r} is {what}.", fix="Wait until that request returns.")
        return pause

    async def _settle(self, pause: _Pause, mode: PauseMode, deadline_s: float, on_deadline: OnDeadline) -> None:
        """Until no engine step runs."""
        if mode == "hold":
            await self._hold(pause, deadline_s)
            return
        if await self._drained(deadline_s):
            return
        running = len(self._inside)
        if on_deadline == "error":
            raise FenceTimeout(running, deadline_s)
        if on_deadline == "hold":
            await self._hold(pause, deadline_s)
            return
        self._abort("the call was aborted for a weight update.")
        if not await self._drained(_ABORT_GRACE_S):
            raise FenceTimeout(len(self._inside), deadline_s + _ABORT_GRACE_S)

    async def _drained(self, deadline_s: float) -> bool:
        try:
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _hold(self, pause: _Pause, deadline_s: float) -> None:
        if pause.held:
            return
        assert isinstance(self._engine, Pausable)
        holding = asyncio.create_task(self._engine.pause())
        try:
            done, _ = await asyncio.wait({holding}, timeout=deadline_s)
        except asyncio.CancelledError:
            self._undo(holding, self._engine)
            raise
        if not done:
            self._undo(holding, self._engine)
            raise FenceTimeout(len(self._inside), deadline_s)
        holding.result()
        pause.held = True
        now = asyncio.get_running_loop().time()
        for clock in self._clocks:
            when = clock.when()
            if when is not None and not clock.expired():
                self._clocks[clock] = when - now
                clock.reschedule(None)

    def _start_clocks(self) -> None:
        now = asyncio.get_running_loop().time()
        for clock, left in self._clocks.items():
            if left is not None:
                self._clocks[clock] = None
                clock.reschedule(now + left)

    def _undo(self, holding: asyncio.Task[None], engine: Pausable) -> None:
        """A hold that nobody waits for any more must not stay: it cannot be cancelled once the engine was told."""

        async def undo() -> None:
            await holding
            await engine.resume()

        task = asyncio.create_task(undo())
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _publish(self, policy_version: int) -> None:
        engine = self._engine
        if isinstance(engine, PrefixCached):
            await engine.reset_prefix_cache()
        if engine.policy_version != policy_version and isinstance(engine, VersionSettable):
            await engine.set_policy_version(policy_version)
        if engine.policy_version != policy_version:
            raise ConfigError(
                f"engine {engine.name} serves policy version {engine.policy_version}, not {policy_version}.",
                fix="Update its weights before the gate is opened, or resume with the version it serves.",
            )

    async def _check_weights(self, pause: _Pause, fingerprint: Fingerprint) -> None:
        """A paused server scores nothing, so held calls go on meanwhile; none of them ends before this does."""
        assert isinstance(self._engine, ChecksWeights)
        try:
            await self._engine.check_weights(fingerprint)
        except BaseException as error:
            why = error.what if isinstance(error, EngineError) else type(error).__name__
            self._fail(pause, f"the weights of version {self._engine.policy_version} were not confirmed: {why}")
            raise

    def _open(self, pause: _Pause) -> None:
        self._disarm(pause)
        self._paused_s += time.monotonic() - pause.since
        self._pause = None
        pause.over.set()

    def _fail(self, pause: _Pause, why: str) -> None:
        """The gate stays closed; nobody waits at it any longer."""
        if pause.failed or self._pause is not pause:
            return
        self._disarm(pause)
        pause.failed = why
        self.counts.failed += 1
        _log.error("weight update: %s; calls are refused until the gate is paused and resumed again", why)
        self._abort(f"{why}; the call was aborted.")
        pause.over.set()

    def _abort(self, why: str) -> None:
        self.counts.aborted += len(self._inside)
        for inside in self._inside:
            inside.abort(why)

    @staticmethod
    def _disarm(pause: _Pause) -> None:
        if pause.timer is not None:
            pause.timer.cancel()
            pause.timer = None
