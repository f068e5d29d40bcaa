"""Whatever requests, cancellations, deaths, failures and closings meet in a pool: no sandbox and no turn is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from drivetrain.sandboxes import Limits, SandboxGone, SandboxSpec, SandboxStartError
from drivetrain.sandboxes.pool import PooledSandbox, SandboxPool, SandboxPoolFull
from tests.sandboxes.pool_kit import FakeBackend, FakeSandbox, VirtualLoop

SPECS = [SandboxSpec(workdir=f"/{name}", limits=Limits(ttl_s=200.0)) for name in "abc"]
durations = st.sampled_from([0.0, 0.1, 1.0])


class PoolMachine(RuleBasedStateMachine):
    """``requests`` are tasks of ``create``; ``granted`` remembers in which order they came and were served."""

    requests: Bundle[asyncio.Task[PooledSandbox]] = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.backend = FakeBackend()
        self.tasks: list[asyncio.Task[PooledSandbox]] = []
        self.handed: dict[str, PooledSandbox] = {}
        self.ever_handed: set[str] = set()
        self.closing: list[asyncio.Task[None]] = []
        self.pool: SandboxPool

    def go(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(
        total=st.integers(1, 5),
        warm=st.integers(0, 3),
        least=st.integers(0, 1),
        concurrency=st.integers(1, 2),
        in_background=st.booleans(),
        create_s=durations,
        close_s=durations,
        probe_s=durations,
    )
    def begin(
        self,
        total: int,
        warm: int,
        least: int,
        concurrency: int,
        in_background: bool,
        create_s: float,
        close_s: float,
        probe_s: float,
    ) -> None:
        self.total = total
        self.backend.create_s, self.backend.close_s, self.backend.probe_s = create_s, close_s, probe_s
        self.pool = SandboxPool(
            self.backend,
            max_total=total,
            max_warm=warm,
            min_warm=min(least, warm),
            max_age_s=50,
            idle_s=120,
            wait_s=40,
            refill_concurrency=concurrency,
            close_in_background=in_background,
        )

    async def _ask(self, spec: SandboxSpec) -> PooledSandbox:
        box = await self.pool.create(spec)
        # What is handed out works, and nobody had it before.
        assert isinstance(box.sandbox, FakeSandbox)
        assert box.id not in self.ever_handed
        assert box.sandbox.commands == []
        self.ever_handed.add(box.id)
        self.handed[box.id] = box
        return box

    @rule(target=requests, spec=st.sampled_from(SPECS))
    def ask(self, spec: SandboxSpec) -> asyncio.Task[PooledSandbox]:
        task = self.loop.create_task(self._ask(spec))
        self.tasks.append(task)
        return task

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.5, 1.0, 3.0, 45.0, 130.0]))
    def time_passes(self, seconds: float) -> None:
        self.go(asyncio.sleep(seconds))

    @rule(request=consumes(requests))
    def cancel(self, request: asyncio.Task[PooledSandbox]) -> None:
        request.cancel()

    @rule(request=consumes(requests))
    def use_and_close(self, request: asyncio.Task[PooledSandbox]) -> None:
        if not request.done() or request.cancelled() or request.exception() is not None:
            return
        box = request.result()

        async def use() -> None:
            with contextlib.suppress(SandboxGone):
                await box.exec(["true"])
            await box.close()

        self.closing.append(self.loop.create_task(use()))
        self.handed.pop(box.id, None)

    @rule(which=st.integers(0, 10))
    def one_dies(self, which: int) -> None:
        alive = [sandbox for sandbox in self.backend.made if sandbox.alive]
        if alive:
            alive[which % len(alive)].die()

    @rule(count=st.integers(1, 3))
    def starts_fail(self, count: int) -> None:
        self.backend.errors += [SandboxStartError("No.") for _ in range(count)]

    @rule()
    def closings_fail(self) -> None:
        self.backend.close_error = SandboxStartError("Stuck.") if self.backend.close_error is None else None

    @invariant()
    def never_too_many(self) -> None:
        assert self.backend.peak <= getattr(self, "total", 0)

    @invariant()
    def every_sandbox_is_counted(self) -> None:
        if hasattr(self, "pool"):
            counts = self.pool.statistics()
            for name in ("starting", "ready", "checking", "in_use", "closing"):
                assert getattr(counts, name) >= 0, counts
            assert counts.total <= self.total
            assert len(self.backend.present) <= counts.total

    @invariant()
    def nobody_waits_beside_room(self) -> None:
        if hasattr(self, "pool"):
            self.go(asyncio.sleep(0))
            counts = self.pool.statistics()
            if counts.waiting:
                assert counts.total == self.total
                assert counts.ready == 0 or counts.closing >= counts.waiting

    def teardown(self) -> None:
        try:
            if hasattr(self, "pool"):
                self.go(self._end())
        finally:
            self.loop.close()

    async def _end(self) -> None:
        # Half of the time: everybody is served when those who have one give it back.
        if len(self.tasks) % 2:
            while pending := [task for task in self.tasks if not task.done()]:
                for box in list(self.handed.values()):
                    await asyncio.gather(box.close(), return_exceptions=True)
                self.handed.clear()
                await asyncio.wait(pending, timeout=1.0)
            assert self.pool.statistics().waiting == 0
        await self.pool.aclose()
        assert self.backend.present == set()
        assert self.pool.statistics().total == 0
        for result in await asyncio.gather(*self.tasks, return_exceptions=True):
            allowed = (PooledSandbox, SandboxStartError, SandboxPoolFull, asyncio.CancelledError)
            assert isinstance(result, allowed), repr(result)
        await asyncio.gather(*self.closing, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}


PoolMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestPool = PoolMachine.TestCase


def test_turns_are_kept_under_load() -> None:
    """With one spec and no warm ones, requests are served in the order in which they came."""

    async def main() -> None:
        backend = FakeBackend()
        served: list[int] = []
        async with SandboxPool(backend, max_total=3, max_warm=0, wait_s=None) as pool:

            async def use(number: int) -> None:
                box = await pool.create(SPECS[number % 3])
                served.append(number)
                await asyncio.sleep((number * 7 % 5) / 10)
                await box.close()

            await asyncio.gather(*(use(number) for number in range(200)))
        # Starts overlap, so neighbours may swap; nobody is overtaken by more than the places there are.
        assert all(abs(place - number) < 3 for place, number in enumerate(served))
        assert backend.peak == 3

    loop = VirtualLoop()
    loop.run_until_complete(main())
    loop.close()
