"""The warm pool: what is handed out, what is kept, who waits; in virtual time with a backend made of nothing."""

from __future__ import annotations

import asyncio
import inspect
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.sandboxes import (
    Limits,
    Mount,
    SandboxBackend,
    SandboxGone,
    SandboxHandle,
    SandboxSpec,
    SandboxStartError,
    SandboxTimeout,
    SandboxUnsupported,
)
from drivetrain.sandboxes.pool import PooledSandbox, SandboxPool, SandboxPoolFull, runs_a_command
from drivetrain.sandboxes.pool.key import spec_key
from drivetrain.sandboxes.pool.shelf import BACKOFF_LIMIT_S, GIVE_UP_AFTER
from drivetrain.sandboxes.pool.stock import HEADWAY_S
from tests.sandboxes.pool_kit import FakeBackend, FakeSandbox, run

SPEC = SandboxSpec(limits=Limits(ttl_s=3600))
OTHER = SandboxSpec(workdir="/elsewhere")


def raw(handed: PooledSandbox) -> FakeSandbox:
    sandbox = handed.sandbox
    assert isinstance(sandbox, FakeSandbox)
    return sandbox


def now() -> float:
    return asyncio.get_running_loop().time()


def test_it_is_a_backend_and_its_sandboxes_are_handles() -> None:
    async def test() -> None:
        async with SandboxPool(FakeBackend()) as pool:
            assert isinstance(pool, SandboxBackend)
            assert (pool.name, pool.features) == ("fake", {"mount"})
            box = await pool.create(SPEC)
            assert isinstance(box, SandboxHandle)
            assert await pool.reap() == ["dt-dead"]

    run(test)


@pytest.mark.parametrize("name", [name for name in vars(SandboxHandle) if not name.startswith("_")])
def test_a_handle_has_the_signatures_of_the_contract(name: str) -> None:
    wanted, found = getattr(SandboxHandle, name), getattr(PooledSandbox, name)
    if isinstance(wanted, property):
        assert isinstance(found, property)
    else:
        assert inspect.signature(found) == inspect.signature(wanted)


def test_the_second_request_finds_a_warm_one() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend) as pool:
            first = await pool.create(SPEC)
            assert now() == 1.0
            await asyncio.sleep(10)
            second = await pool.create(SPEC)
            assert now() == 11.0  # not started for it
            assert second.id != first.id
            await first.close()
            await second.close()
            counts = pool.statistics()
            assert (counts.hits, counts.misses, counts.refills) == (1, 1, 1)
        assert backend.present == set()
        assert backend.closings == 1

    run(test)


def test_a_used_sandbox_is_never_handed_out_again() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_total=3) as pool:
            seen: set[str] = set()
            for _ in range(20):
                box = await pool.create(SPEC)
                assert box.id not in seen
                seen.add(box.id)
                await box.close()
                await box.close()

    run(test)


def test_environment_labels_and_time_to_live_come_with_the_request() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend) as pool:
            secret = {"KEY": "secret", "A": "1"}
            asked = msgspec.structs.replace(SPEC, env=secret, labels={"run": "r1"}, limits=Limits(ttl_s=3000))
            cold = await pool.create(asked)
            assert raw(cold).spec == asked  # started for it: exactly what was asked for
            await asyncio.sleep(5)
            other = msgspec.structs.replace(asked, env={"KEY": "mine"}, labels={}, limits=Limits(ttl_s=2500))
            box = await pool.create(other)
            assert pool.statistics().hits == 1
            waited = raw(box).spec
            assert waited.env == {}  # no secret waits in a warm sandbox
            assert waited.labels == {"pool": "warm"}
            await box.exec(["x"], env={"B": "2"})
            await box.exec(["x"], env={"KEY": "call"})
            assert raw(box).commands == [{"KEY": "mine", "B": "2"}, {"KEY": "call"}]

    run(test)


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "debian"},
        {"workdir": "/w"},
        {"network": "open"},
        {"mounts": (Mount(source=Path("/usr"), target="/x"),)},
        {"limits": Limits(memory_bytes=1 << 30)},
        {"limits": Limits(cpus=0.5)},
        {"limits": Limits(ttl_s=60)},
    ],
)
def test_everything_else_is_in_the_key(changes: dict[str, Any]) -> None:
    assert spec_key(msgspec.structs.replace(SPEC, **changes)) != spec_key(SPEC)


def test_near_times_to_live_share_a_key() -> None:
    def key(ttl_s: float) -> str:
        return spec_key(SandboxSpec(limits=Limits(ttl_s=ttl_s)))

    assert key(2100) == key(3600) == key(4096)
    assert len({key(2048), key(3600), key(5000), key(float("inf"))}) == 4


def test_a_replaced_mount_is_another_key(tmp_path: Path) -> None:
    source = tmp_path / "bundle"
    source.mkdir()
    spec = SandboxSpec(mounts=(Mount(source=source, target="/b"),))
    before = spec_key(spec)
    assert spec_key(spec) == before
    source.rename(tmp_path / "old")
    source.mkdir()
    assert spec_key(spec) != before


def test_a_restarted_gateway_is_another_key(tmp_path: Path) -> None:
    socket = tmp_path / "gateway.sock"
    socket.touch()
    spec = SandboxSpec(network="gateway", gateway_socket=socket)
    before = spec_key(spec)
    socket.rename(tmp_path / "old")
    socket.touch()
    assert spec_key(spec) != before


def test_a_warm_sandbox_outlives_the_request_and_ends_when_it_says() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_age_s=300) as pool:
            spec = SandboxSpec(limits=Limits(ttl_s=100))
            await pool.warm(spec)
            await asyncio.sleep(290)  # almost too old
            box = await pool.create(spec)
            assert pool.statistics().hits == 1
            await asyncio.sleep(99)
            await box.exec(["true"])
            await asyncio.sleep(2)
            with pytest.raises(SandboxGone, match="its time to live is over"):
                await box.exec(["true"])
            assert raw(box).closed
            assert pool.statistics().expired == 1
            assert pool.statistics().in_use == 0  # its place is free though nobody closed it

    run(test)


@pytest.mark.parametrize(("age", "hits"), [(225, 1), (233, 0), (290, 0)])
def test_one_that_would_end_too_soon_is_passed_over(age: float, hits: int) -> None:
    async def test() -> None:
        backend = FakeBackend()
        backend.create_s = 100.0  # the time to live began with the start
        async with SandboxPool(backend, max_age_s=300, probe_timeout_s=5) as pool:
            spec = SandboxSpec(limits=Limits(ttl_s=128))
            await pool.warm(spec)
            assert raw_ttl(backend) == 128 + 300 + 5 + 30
            await asyncio.sleep(age)  # of 463 s less 100 for the start, 133 are needed
            await pool.create(spec)
            assert pool.statistics().hits == hits

    def raw_ttl(backend: FakeBackend) -> float:
        return backend.made[0].spec.limits.ttl_s

    run(test)


@pytest.mark.case("F7")
def test_a_dead_one_is_replaced_and_nobody_sees_it() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_warm=3) as pool:
            await pool.warm(SPEC, 3)
            for sandbox in backend.made:
                sandbox.die()
            backend.made[0].alive = True  # the oldest: tried last
            box = await pool.create(SPEC)
            await box.exec(["true"])
            assert raw(box) is backend.made[0]
            assert pool.statistics().dead == 2
            for sandbox in backend.made[3:]:
                sandbox.die()
            box = await pool.create(SPEC)
            await box.exec(["true"])
            assert all(sandbox.closed for sandbox in backend.made if not sandbox.alive)

    run(test)


def test_a_dead_one_at_the_limit_does_not_cost_the_turn() -> None:
    async def test() -> None:
        backend = FakeBackend()
        backend.probe_s = 1.0
        async with SandboxPool(backend, max_total=1, max_warm=1) as pool:
            await pool.warm(SPEC)
            backend.made[0].die()
            order: list[str] = []

            async def ask(name: str) -> None:
                box = await pool.create(SPEC)
                order.append(name)
                await box.close()

            first = asyncio.create_task(ask("first"))
            await asyncio.sleep(0.5)
            await asyncio.gather(first, ask("second"))
            assert order == ["first", "second"]

    run(test)


def test_a_sandbox_that_hangs_fails_the_probe() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, probe_timeout_s=2.0) as pool:
            await pool.warm(SPEC)
            backend.probe_s = 1000.0
            begun = now()
            await pool.create(SPEC)
            dead = pool.statistics().dead
            assert 1 <= dead <= 3
            assert now() <= begun + 3 * 2.0 + 2 * backend.create_s  # and no request tries for ever
            assert (pool.statistics().hits, pool.statistics().misses) == (0, 1)

    run(test)


def test_the_probe_can_be_a_command() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, probe=runs_a_command) as pool:
            await pool.warm(SPEC)
            box = await pool.create(SPEC)
            assert len(raw(box).commands) == 1
            assert pool.statistics().hits == 1

    run(test)


def test_what_waits_too_long_is_thrown_away_and_demand_is_forgotten() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_age_s=100, idle_s=1e6, max_warm=4) as pool:
            await pool.warm(SPEC, 2)
            await asyncio.sleep(150)
            assert pool.statistics().aged == 2
            await asyncio.sleep(1000)
            assert pool.statistics().total == 0
            assert backend.present == set()
            assert len(backend.starts) == 2

    run(test)


def test_the_least_is_kept_fresh_until_the_key_is_idle() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_age_s=100, idle_s=1000, min_warm=2, max_warm=4) as pool:
            await (await pool.create(SPEC)).close()
            await asyncio.sleep(950)
            assert pool.statistics().ready == 2
            assert all(sandbox.closed for sandbox in backend.made[:10])  # fresh ones
            await asyncio.sleep(1000)
            assert pool.statistics().total == 0

    run(test)


def test_demand_raises_what_is_kept_up_to_the_most() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_warm=3) as pool:
            boxes = await asyncio.gather(*(pool.create(SPEC) for _ in range(2)))
            await asyncio.sleep(10)
            assert pool.statistics().ready == 2
            boxes += await asyncio.gather(*(pool.create(SPEC) for _ in range(8)))
            await asyncio.sleep(10)
            assert pool.statistics().ready == 3
            await asyncio.gather(*(box.close() for box in boxes))

    run(test)


def test_starts_ahead_are_few_at_a_time() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_warm=6, refill_concurrency=2) as pool:
            await pool.warm(SPEC, 6)
            assert backend.starts == [0, 0, 1, 1, 2, 2]

    run(test)


def test_a_start_ahead_leaves_the_first_commands_of_a_new_user_alone() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_warm=4) as pool:
            await pool.warm(SPEC, 4)
            before = len(backend.starts)
            begun = now()
            for _ in range(4):  # a stream of them does not put it off for ever
                await pool.create(SPEC)
                await asyncio.sleep(0.03)
            assert backend.starts[before] == pytest.approx(begun + HEADWAY_S)
            await asyncio.sleep(20)
            assert pool.statistics().ready == 4

    run(test)


def test_at_the_limit_requests_wait_in_order() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_total=2, max_warm=0) as pool:
            order: list[int] = []

            async def use(number: int) -> None:
                async with asyncio.timeout(1000):
                    box = await pool.create(SPEC if number % 2 else OTHER)
                order.append(number)
                await asyncio.sleep(5)
                await box.close()

            await asyncio.gather(*(use(number) for number in range(10)))
            assert order == list(range(10))
            assert backend.peak == 2
            assert pool.statistics().waited == 8

    run(test)


def test_warm_sandboxes_make_room_for_requests() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_total=2, max_warm=2) as pool:
            await pool.warm(SPEC, 2)
            box = await pool.create(OTHER)
            assert now() == backend.create_s + backend.close_s + backend.create_s
            assert pool.statistics().evicted == 1
            assert backend.peak == 2
            await box.close()

    run(test)


def test_a_full_pool_says_so_in_time() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_total=1, wait_s=30) as pool:
            box = await pool.create(SPEC)
            with pytest.raises(SandboxPoolFull, match=r"1 of 1 places are taken.*Raise max_total") as caught:
                await pool.create(SPEC)
            assert isinstance(caught.value, SandboxTimeout)
            assert now() == 31.0
            with pytest.raises(SandboxPoolFull):
                await pool.warm(OTHER)
            assert pool.statistics().timeouts == 1
            await box.close()
            await pool.create(SPEC)

    run(test)


def test_a_removal_counts_until_it_is_done() -> None:
    async def test() -> None:
        backend = FakeBackend()
        backend.close_s = 20.0
        async with SandboxPool(backend, max_total=1, max_warm=0, close_in_background=True) as pool:
            box = await pool.create(SPEC)
            begun = now()
            await box.close()
            assert now() == begun  # not waited for
            with pytest.raises(SandboxGone, match="it was closed"):
                await box.exec(["true"])
            assert pool.statistics().closing == 1
            await pool.create(SPEC)
            assert now() == begun + 20 + backend.create_s
            assert backend.peak == 1
        assert backend.present == set()

    run(test)


def test_a_failing_spec_is_not_tried_over_and_over(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_warm=2, min_warm=2, max_age_s=1e6, refill_concurrency=4) as pool:
            backend.errors = []
            box = await pool.create(SPEC)
            backend.broken = SandboxStartError("No.")
            await asyncio.sleep(1e5)
            assert len(backend.starts) <= 2 * GIVE_UP_AFTER + 1
            gaps = [after - before for before, after in zip(backend.starts[3:], backend.starts[4:], strict=False)]
            assert max(gaps) < 1.25 * BACKOFF_LIMIT_S + 2
            before = len(backend.starts)
            with pytest.raises(SandboxStartError, match="No"):
                await pool.create(SPEC)
            await asyncio.sleep(1e5)
            assert len(backend.starts) == before + 1  # a request is tried, nothing ahead of it
            backend.broken = None
            await (await pool.create(SPEC)).close()
            await asyncio.sleep(100)
            assert pool.statistics().ready == 2  # it works again
            assert pool.statistics().failures == 1
            await box.close()

    with caplog.at_level(logging.WARNING):
        run(test)
    assert "could not be started ahead: No." in caplog.text


@pytest.mark.parametrize("error", [SandboxUnsupported("Never."), MissingDependency("Never.")])
def test_what_can_never_work_is_not_retried(error: Exception) -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend) as pool:
            await pool.create(SPEC)
            backend.broken = error
            with pytest.raises(type(error)):
                await pool.create(OTHER)
            with pytest.raises(type(error)):
                await pool.warm(OTHER)
            before = len(backend.starts)
            await asyncio.sleep(1e4)
            assert len(backend.starts) == before

    run(test)


def test_one_failing_spec_does_not_stop_another() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, refill_concurrency=1) as pool:
            backend.errors = [SandboxStartError("No.")]
            with pytest.raises(SandboxStartError):
                await pool.warm(OTHER)
            await pool.warm(SPEC)
            assert pool.statistics().ready == 1

    run(test)


def test_a_failed_start_gives_its_place_back() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_total=1) as pool:
            backend.errors = [SandboxStartError("No."), SandboxStartError("No.")]
            results = await asyncio.gather(*(pool.create(SPEC) for _ in range(3)), return_exceptions=True)
            assert [type(result) for result in results] == [SandboxStartError, SandboxStartError, PooledSandbox]
            assert backend.peak == 1

    run(test)


def test_a_failed_close_is_told_and_costs_no_place() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_total=1, max_warm=0) as pool:
            box = await pool.create(SPEC)
            backend.close_error = SandboxTimeout("Stuck.")
            with pytest.raises(SandboxTimeout, match="Stuck"):
                await box.close()
            backend.close_error = None
            assert pool.statistics().close_failures == 1
            await pool.create(SPEC)

    run(test)


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.0, 1.5, 2.2, 3.0])
@pytest.mark.parametrize("warm", [False, True])
def test_a_cancelled_request_loses_nothing(moment: float, warm: bool) -> None:
    async def test() -> None:
        backend = FakeBackend()
        backend.probe_s = 1.0
        async with SandboxPool(backend, max_total=2, max_warm=1) as pool:
            if warm:
                await pool.warm(SPEC)
            tasks = [asyncio.create_task(pool.create(spec)) for spec in (SPEC, SPEC, OTHER, SPEC)]
            await asyncio.sleep(moment)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            boxes = [result for result in results if isinstance(result, PooledSandbox)]
            await asyncio.gather(*(box.close() for box in boxes))
            await asyncio.sleep(60)
            counts = pool.statistics()
            assert (counts.in_use, counts.starting, counts.checking, counts.closing, counts.waiting) == (0,) * 5
            assert len(backend.present) == counts.ready
            await asyncio.gather(*[pool.create(OTHER), pool.create(OTHER)])  # every place is there
        assert backend.present == set()

    run(test)


def test_a_cancelled_start_is_cleaned_up_before_the_request_ends() -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend) as pool:
            request = asyncio.create_task(pool.create(SPEC))
            await asyncio.sleep(0.5)
            request.cancel()
            await asyncio.wait([request])
            assert request.cancelled()
            assert backend.present == set()

    run(test)


@pytest.mark.parametrize("warm", [False, True])
def test_what_is_granted_to_a_request_that_is_just_cancelled_goes_to_the_next(warm: bool) -> None:
    async def test() -> None:
        backend = FakeBackend()
        async with SandboxPool(backend, max_total=1, max_warm=1) as pool:
            if warm:
                ahead = asyncio.create_task(pool.warm(SPEC))  # becomes ready while the others wait
                await asyncio.sleep(0.1)
                (grants,) = pool._stock._tasks
            else:
                box = await pool.create(SPEC)
                await asyncio.sleep(0)
                grants = box.begin_close("it was closed")
            first, second = (asyncio.create_task(pool.create(SPEC)) for _ in range(2))
            seen: list[tuple[int, bool]] = []

            def cancel(_: asyncio.Task[None]) -> None:
                seen.append((pool.statistics().waiting, first.done()))
                first.cancel()

            grants.add_done_callback(cancel)
            box = await second
            assert seen == [(1, False)]  # granted, and not awake yet
            assert first.cancelled()
            await box.close()
            if warm:
                ahead.cancel()
        assert backend.present == set()

    run(test)


@pytest.mark.parametrize("moment", [0.0, 0.5, 1.0, 1.2, 1.7, 2.5])
def test_closing_takes_everything_with_it(moment: float) -> None:
    async def test() -> None:
        backend = FakeBackend()
        pool = SandboxPool(backend, max_total=3, max_warm=3)
        tasks = [asyncio.create_task(pool.create(spec)) for spec in (SPEC, SPEC, OTHER, SPEC, OTHER)]
        await asyncio.sleep(moment)
        await asyncio.gather(pool.aclose(), pool.aclose())
        assert backend.present == set()
        assert backend.closings == 1
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, PooledSandbox):
                with pytest.raises(SandboxGone, match="the pool was closed"):
                    await result.exec(["true"])
            else:
                assert isinstance(result, SandboxStartError)
                assert "pool is closed" in str(result)
        with pytest.raises(SandboxStartError, match="pool is closed"):
            await pool.create(SPEC)
        with pytest.raises(SandboxStartError, match="pool is closed"):
            await pool.warm(SPEC)
        await pool.aclose()

    run(test)


def test_a_pool_that_is_just_closed_starts_nothing_more() -> None:
    async def test() -> None:
        backend = FakeBackend()
        pool = SandboxPool(backend, max_total=1)
        box = await pool.create(SPEC)
        request = asyncio.create_task(pool.create(SPEC))
        await asyncio.sleep(0)
        closing: list[asyncio.Task[None]] = []

        def close(_: asyncio.Task[None]) -> None:
            # The first thing that aclose does; the request has its place and is not awake yet.
            pool._stock.closed = True
            closing.append(asyncio.create_task(pool.aclose()))

        box.begin_close("it was closed").add_done_callback(close)
        with pytest.raises(SandboxStartError, match="pool is closed"):
            await request
        assert len(backend.starts) == 1
        await closing[0]

    run(test)


@pytest.mark.parametrize(
    "options",
    [{"max_total": 0}, {"min_warm": 3, "max_warm": 2}, {"refill_concurrency": 0}, {"max_age_s": 0}, {"wait_s": -1}],
)
def test_what_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SandboxPool(FakeBackend(), **options)


def test_more_warm_than_allowed_is_refused() -> None:
    async def test() -> None:
        async with SandboxPool(FakeBackend(), max_warm=1) as pool:
            with pytest.raises(ConfigError, match="Raise max_warm"):
                await pool.warm(SPEC, 2)

    run(test)
