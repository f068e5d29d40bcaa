"""Limits hold, whatever hits one stays usable, and the use is told."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from drivetrain.sandboxes import Limits, SandboxBackend, SandboxError, SandboxStats
from tests.conformance.sandbox.inside import sh, sleepers, until_output
from tests.conformance.sandbox.kits.base import Kit

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20


async def test_file_size_and_open_files_are_limited(backend: SandboxBackend, kit: Kit) -> None:
    box = await backend.create(kit.spec(limits=Limits(file_bytes=MIB, open_files=64)))
    done = await sh(box, "ulimit -n; ulimit -c; ulimit -Hn; head -c 3000000 /dev/zero > f")
    assert done.stdout == b"64\n0\n64\n"
    assert done.exit_code != 0
    assert (await box.exec(["stat", "-c", "%s", "f"])).stdout == b"1048576\n"
    assert (await sh(box, "head -c 3000000 /dev/zero > /tmp/f")).exit_code != 0
    with pytest.raises(SandboxError):
        await box.write("g", b"x" * (2 * MIB))
    assert (await box.exec(["ls"])).stdout == b"f\n"
    # Output is no file, however it is carried.
    assert len((await sh(box, "head -c 3000000 /dev/zero")).stdout) == 3_000_000


@pytest.mark.needs("pids_limit")
async def test_a_fork_bomb_is_contained(backend: SandboxBackend, kit: Kit, nap: str) -> None:
    box = await backend.create(kit.spec(limits=Limits(pids=40)))
    done = await sh(box, f"f() {{ sleep {nap} & f & f & wait; }}; f", timeout_s=2)
    assert b"fork" in done.stderr  # "Cannot fork": it hit the limit
    assert kit.processes(f"sleep {nap}") == []
    assert (await box.exec(["true"])).exit_code == 0


@pytest.mark.needs("pids_limit")
async def test_the_process_limit_is_the_sandboxes_and_not_a_commands(
    backend: SandboxBackend, kit: Kit, nap: str
) -> None:
    box = await backend.create(kit.spec(limits=Limits(pids=30)))
    script = f"i=0; while [ $i -lt 20 ]; do sleep {nap} & i=$((i+1)); done; wait"
    jobs = [await box.start(["sh", "-c", script]) for _ in range(2)]
    await asyncio.sleep(1)
    count = len(kit.processes(f"sleep {nap}"))
    assert 10 <= count <= 46  # the limit, and what a backend allows for its own processes
    for job in jobs:
        await job.kill(0)
    assert await sleepers(box, nap) == 0


@pytest.mark.needs("memory_limit")
async def test_a_memory_bomb_is_contained(backend: SandboxBackend, kit: Kit) -> None:
    box = await backend.create(kit.spec(limits=Limits(memory_bytes=64 * MIB)))
    script = "x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo ${#x}"
    assert (await sh(box, script, timeout_s=60)).exit_code != 0
    assert (await box.exec(["echo", "alive"])).stdout == b"alive\n"
    stats = await box.stats()
    assert stats.oom_kills is None or stats.oom_kills >= 1


@pytest.mark.needs("memory_limit")
async def test_memory_that_files_take_is_limited_too(backend: SandboxBackend, kit: Kit) -> None:
    """/tmp and /dev/shm may lie in memory: full is an error inside, never the end of the sandbox."""
    box = await backend.create(kit.spec(limits=Limits(memory_bytes=64 * MIB)))
    for path in ("/dev/shm/f", "/tmp/f"):
        await sh(box, f"head -c 200000000 /dev/zero > {path}", timeout_s=60)
        assert (await box.exec(["rm", "-f", path])).exit_code == 0
        assert (await box.exec(["echo", "alive"])).stdout == b"alive\n"


@pytest.mark.needs("cpu_limit")
async def test_the_processor_share_is_limited(backend: SandboxBackend, kit: Kit) -> None:
    """CPU seconds over wall seconds, of two busy loops; only an upper bound, since others use this machine too."""
    box = await backend.create(kit.spec(limits=Limits(cpus=0.25)))
    begun = time.monotonic()
    script = "for i in 1 2; do (timeout 2 sh -c 'while :; do :; done') & done; wait; times"
    done = await sh(box, script, timeout_s=60)
    wall = time.monotonic() - begun
    # The last line of `times`: user and system time of the children, as 0m1.230000s.
    spent = sum(
        float(part.split(b"m")[0]) * 60 + float(part.split(b"m")[1].rstrip(b"s")) for part in done.stdout.split()[-2:]
    )
    assert spent / wall < 0.6, (spent, wall)


@pytest.mark.needs("disk_limit")
async def test_a_full_disk_is_an_error_inside(backend: SandboxBackend, kit: Kit) -> None:
    box = await backend.create(kit.spec(limits=Limits(disk_bytes=32 * MIB)))
    for place in (box.workdir, box.home):
        done = await sh(box, f"head -c 100000000 /dev/zero > {place}/big", timeout_s=60)
        assert done.exit_code != 0
        assert b"No space left" in done.stderr or b"quota" in done.stderr.lower(), done.stderr
        size = int((await box.exec(["stat", "-c", "%s", f"{place}/big"])).stdout)
        assert size <= 33 * MIB
        assert (await box.exec(["rm", f"{place}/big"])).exit_code == 0
        await box.write(f"{place}/small", b"fits again")
        assert await box.read(f"{place}/small") == b"fits again"


@pytest.mark.needs("disk_limit")
async def test_many_files_do_not_get_around_the_disk_limit(backend: SandboxBackend, kit: Kit) -> None:
    box = await backend.create(kit.spec(limits=Limits(disk_bytes=32 * MIB)))
    script = (
        "i=0; while [ $i -lt 60 ]; do head -c 1000000 /dev/zero > f$i || break; i=$((i+1)); done; du -sk . | cut -f1"
    )
    done = await sh(box, script, timeout_s=60)
    assert int(done.stdout) <= 34 * 1024
    with pytest.raises(SandboxError):
        await box.write("more", b"x" * (8 * MIB))
    assert (await box.exec(["echo", "alive"])).stdout == b"alive\n"


@pytest.mark.lacks("disk_limit")
async def test_a_disk_limit_that_cannot_be_held_is_said(
    backend: SandboxBackend, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            box = await backend.create(kit.spec(limits=Limits(disk_bytes=MIB)))
    assert (await box.exec(["true"])).exit_code == 0
    assert sum("disk" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.lacks("cpu_limit")
async def test_a_processor_limit_that_cannot_be_held_is_said(
    backend: SandboxBackend, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            box = await backend.create(kit.spec(limits=Limits(cpus=0.5)))
    assert (await box.exec(["true"])).exit_code == 0
    assert sum("cpu" in record.getMessage().lower() for record in caplog.records) == 1


async def test_a_limit_of_one_sandbox_is_not_anothers(backend: SandboxBackend, kit: Kit) -> None:
    small = await backend.create(kit.spec(limits=Limits(open_files=32)))
    large = await backend.create(kit.spec(limits=Limits(open_files=200)))
    assert (await sh(small, "ulimit -n")).stdout == b"32\n"
    assert (await sh(large, "ulimit -n")).stdout == b"200\n"


async def test_stats_follow_what_is_used(backend: SandboxBackend, kit: Kit) -> None:
    box = await backend.create(kit.spec())
    before = await box.stats()
    assert isinstance(before, SandboxStats)
    told = {name for name in SandboxStats.__struct_fields__ if getattr(before, name) is not None}
    assert kit.measured <= told
    job = await box.start(
        [
            "sh",
            "-c",
            "x=$(head -c 30000000 /dev/zero | tr '\\0' x); timeout 1 sh -c 'while :; do :; done'; echo spun; sleep 60",
        ]
    )
    await until_output(job, b"spun")
    after = await box.stats()
    if "cpu_s" in told:
        assert 0 <= before.cpu_s < after.cpu_s < 60
        assert after.cpu_s - before.cpu_s > 0.2
    if "memory_bytes" in told:
        assert 20 * MIB < after.memory_bytes < 4 << 30
    if "memory_peak_bytes" in told:
        assert after.memory_peak_bytes >= max(before.memory_peak_bytes, 25 * MIB)
    if "pids" in told:
        assert 2 <= after.pids < 60
        assert after.pids > before.pids
    if "oom_kills" in told:
        assert (before.oom_kills, after.oom_kills) == (0, 0)
    await job.kill(0)
