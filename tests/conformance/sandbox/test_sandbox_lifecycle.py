"""The start and the end of a sandbox: closed, vanished, timed out, orphaned; and many at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.errors import InfrastructureError
from drivetrain.sandboxes import (
    BgJob,
    Limits,
    SandboxBackend,
    SandboxError,
    SandboxGone,
    SandboxHandle,
    SandboxStartError,
)
from tests.conformance.sandbox.inside import sh, until, until_sleepers
from tests.conformance.sandbox.kits.base import Kit

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).resolve().parents[3]

OWNER = """
import asyncio, sys
from pathlib import Path
from tests.conformance.sandbox.kits import get_kit

async def main(name, root, nap):
    kit = get_kit(name)
    assert kit.missing() is None
    kit.start()
    backend = kit.make(Path(root))
    box = await backend.create(kit.spec(labels={"rollout": "r1"}))
    await box.start(["sh", "-c", f"trap '' TERM HUP INT; setsid sleep {nap} & sleep {nap}; sleep {nap}"])
    while (await box.exec(["sh", "-c", f"grep -lsazx '{nap}' /proc/[0-9]*/cmdline | wc -l"])).stdout.strip() < b"2":
        pass
    print(box.id, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


class Owner:
    """A process that made a sandbox and will never close it."""

    def __init__(self, kit: Kit, root: Path, nap: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, kit.name, str(root), nap],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **kit.environ()},
        )
        assert self.process.stdout is not None
        self.sandbox = self.process.stdout.readline().strip()
        assert self.sandbox, "the owner did not get a sandbox"

    def end(self, signum: int) -> None:
        self.process.send_signal(signum)
        self.process.wait(20)


@pytest.fixture
def owner(kit: Kit, sandbox_root: Path, nap: str) -> Iterator[Owner]:
    made = Owner(kit, sandbox_root, nap)
    yield made
    made.process.kill()
    made.process.wait()
    assert made.process.stdout is not None
    made.process.stdout.close()


async def ended_by(job: BgJob, patience_s: float = 30) -> None:
    """Wait until a job's sandbox is found to be gone."""
    with pytest.raises(SandboxGone):
        await job.wait(patience_s)


async def test_a_sandbox_is_what_the_protocol_says(backend: SandboxBackend, kit: Kit) -> None:
    box = await backend.create(kit.spec(workdir="/work/here"))
    assert isinstance(backend, SandboxBackend)
    assert isinstance(box, SandboxHandle)
    assert backend.name == kit.name
    assert box.id
    assert box.workdir == "/work/here"
    assert box.home.startswith("/")


async def test_a_sandbox_starts_and_ends_fast_enough_to_be_one_per_rollout(backend: SandboxBackend, kit: Kit) -> None:
    """No target (benchmarks have those): only that nothing waits for a time-out on the way."""
    begun = time.monotonic()
    for _ in range(3):
        box = await backend.create(kit.spec())
        assert (await box.exec(["true"])).exit_code == 0
        await box.close()
    assert time.monotonic() - begun < 60


@pytest.mark.case("F1")
async def test_close_leaves_nothing_and_may_be_repeated(
    backend: SandboxBackend, kit: Kit, sandbox_root: Path, nap: str
) -> None:
    box = await backend.create(kit.spec())
    await box.start(["sh", "-c", f"trap '' TERM; setsid sleep {nap} & sleep {nap}"])
    await until_sleepers(box, nap, 2)
    assert kit.left(sandbox_root), "or an empty list below shows nothing"
    assert kit.processes(f"sleep {nap}")
    await box.close()
    assert kit.processes(f"sleep {nap}") == []
    assert kit.left(sandbox_root) == []
    await box.close()
    await asyncio.gather(box.close(), box.close())


@pytest.mark.case("F1")
async def test_close_while_busy(backend: SandboxBackend, kit: Kit, nap: str) -> None:
    box = await backend.create(kit.spec())
    job = await box.start(["sh", "-c", f"trap '' TERM; setsid sleep {nap} & sleep {nap}; sleep {nap}"])
    running = asyncio.create_task(box.exec(["sleep", "60"]))
    reading = asyncio.create_task(box.upload(b"\0" * (40 << 20), "target"))
    await until_sleepers(box, nap, 2)
    await asyncio.gather(box.close(), box.close())
    assert kit.processes(f"sleep {nap}") == []
    for busy in (running, job.wait(10)):
        with pytest.raises(SandboxGone):
            await busy
    with contextlib.suppress(SandboxError):
        await reading
    with pytest.raises(SandboxGone):
        job.poll()
    await job.kill()  # still fine
    assert isinstance(job.tail(), bytes)
    await box.close()


@pytest.mark.case("F1")
async def test_a_cancelled_close_still_closes(backend: SandboxBackend, kit: Kit, sandbox_root: Path) -> None:
    box = await backend.create(kit.spec())
    closing = asyncio.create_task(box.close())
    await asyncio.sleep(0)
    closing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await closing
    await until(lambda: kit.left(sandbox_root) == [], "a cancelled close left something")


async def test_every_operation_on_a_closed_sandbox_says_so(backend: SandboxBackend, kit: Kit) -> None:
    box = await backend.create(kit.spec())
    await box.close()
    for operation in (
        box.exec(["true"]),
        box.start(["true"]),
        box.read("x"),
        box.write("x", b""),
        box.upload(b"", "x"),
        box.download("x"),
        box.stats(),
    ):
        with pytest.raises(SandboxGone, match="closed"):
            await operation


@pytest.mark.case("F1")
async def test_aclose_closes_all_twice(backend: SandboxBackend, kit: Kit, sandbox_root: Path) -> None:
    await asyncio.gather(*(backend.create(kit.spec()) for _ in range(4)))
    assert len(kit.left(sandbox_root)) >= 4
    await backend.aclose()
    assert kit.left(sandbox_root) == []
    await backend.aclose()


@pytest.mark.case("F1")
async def test_close_removes_what_the_inside_locked(backend: SandboxBackend, kit: Kit, sandbox_root: Path) -> None:
    box = await backend.create(kit.spec())
    script = "mkdir -p a/b/c; touch a/b/c/f; ln -s / a/b/root; chmod 000 a/b/c; chmod 000 a/b; chmod 000 ."
    await sh(box, f"{script}; chmod 000 $HOME")
    await box.close()
    assert kit.left(sandbox_root) == []


@pytest.mark.case("F1")
async def test_a_failed_start_leaves_nothing(backend: SandboxBackend, kit: Kit, sandbox_root: Path) -> None:
    with pytest.raises(SandboxStartError):
        await backend.create(kit.spec(limits=Limits(ttl_s=0)))
    with pytest.raises((SandboxStartError, SandboxError)):
        await backend.create(kit.spec(workdir="/bin/sh/below-a-file"))
    assert kit.left(sandbox_root) == []
    assert (await (await backend.create(kit.spec())).exec(["true"])).exit_code == 0


@pytest.mark.case("F1")
async def test_a_cancelled_start_leaves_nothing(backend: SandboxBackend, kit: Kit, sandbox_root: Path) -> None:
    begun = time.monotonic()
    await (await backend.create(kit.spec())).close()
    whole = time.monotonic() - begun
    for part in (0.0, 0.05, 0.2, 0.4, 0.6, 0.8):
        starting = asyncio.create_task(backend.create(kit.spec()))
        await asyncio.sleep(part * whole)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await starting).close()
        await until(lambda: kit.left(sandbox_root) == [], f"a start cancelled at {part} left something")


async def test_the_sandbox_kills_itself_at_its_deadline(backend: SandboxBackend, kit: Kit, nap: str) -> None:
    box = await backend.create(kit.spec(limits=Limits(ttl_s=3)))
    job = await box.start(["sh", "-c", f"trap '' TERM; setsid sleep {nap} & sleep {nap}"])
    await ended_by(job)
    await until(lambda: kit.processes(f"sleep {nap}") == [], "processes outlive the deadline")
    with pytest.raises(SandboxGone):
        await box.exec(["true"])
    await box.close()


@pytest.mark.case("F7")
async def test_a_sandbox_that_vanishes_is_a_typed_error(
    backend: SandboxBackend, kit: Kit, sandbox_root: Path, nap: str
) -> None:
    """Whoever waits hears of it at once, whoever comes later too; an infrastructure failure and never an exit code."""
    box = await backend.create(kit.spec())
    job = await box.start(["sleep", nap])
    running = asyncio.create_task(box.exec(["sleep", "300"], timeout_s=600))
    await until_sleepers(box, nap, 1)
    kit.vanish(box)
    await ended_by(job)
    with pytest.raises(SandboxGone) as caught:
        await asyncio.wait_for(running, 30)
    assert isinstance(caught.value, InfrastructureError)
    for operation in (box.exec(["true"]), box.start(["true"]), box.read("x"), box.write("x", b""), box.stats()):
        with pytest.raises(SandboxGone):
            await operation
    with pytest.raises(SandboxGone):
        job.poll()
    await job.kill()
    await box.close()
    assert kit.left(sandbox_root) == []


@pytest.mark.case("F8")
async def test_one_sandbox_that_vanishes_leaves_the_others_alone(backend: SandboxBackend, kit: Kit) -> None:
    boxes = await asyncio.gather(*(backend.create(kit.spec()) for _ in range(3)))
    jobs = [await box.start(["sh", "-c", "sleep 2; echo done"]) for box in boxes]
    kit.vanish(boxes[1])
    await ended_by(jobs[1])
    ends = await asyncio.gather(jobs[0].wait(30), jobs[2].wait(30))
    assert [done.stdout for done in ends] == [b"done\n", b"done\n"]
    assert (await (await backend.create(kit.spec())).exec(["echo", "new"])).stdout == b"new\n"


@pytest.mark.case("F1")
async def test_what_a_killed_owner_left_is_reaped(
    backend: SandboxBackend, kit: Kit, sandbox_root: Path, owner: Owner, nap: str
) -> None:
    assert kit.processes(f"sleep {nap}")
    assert owner.sandbox not in await backend.reap()  # its owner lives
    assert kit.processes(f"sleep {nap}")
    owner.end(signal.SIGKILL)
    await backend.reap()
    await until(lambda: kit.processes(f"sleep {nap}") == [], "processes outlive their owner and the reaper")
    await until(lambda: kit.left(sandbox_root) == [], "the reaper left something")
    assert owner.sandbox not in await backend.reap()


@pytest.mark.case("F1")
async def test_a_terminated_owner_is_no_different(
    backend: SandboxBackend, kit: Kit, sandbox_root: Path, owner: Owner, nap: str
) -> None:
    owner.end(signal.SIGTERM)
    await backend.reap()
    await until(lambda: kit.processes(f"sleep {nap}") == [], "processes outlive their owner and the reaper")
    await until(lambda: kit.left(sandbox_root) == [], "the reaper left something")


@pytest.mark.case("F1")
async def test_the_reaper_spares_the_living(backend: SandboxBackend, kit: Kit, sandbox_root: Path) -> None:
    box = await backend.create(kit.spec())
    other = kit.make(sandbox_root)
    assert box.id not in await other.reap()
    assert (await box.exec(["echo", "alive"])).stdout == b"alive\n"
    await other.aclose()
    assert (await box.exec(["echo", "alive"])).stdout == b"alive\n"


async def test_twenty_sandboxes_at_once(backend: SandboxBackend, kit: Kit) -> None:
    boxes = await asyncio.gather(*(backend.create(kit.spec(env={"N": str(n)})) for n in range(20)))
    assert len({box.id for box in boxes}) == 20
    ends = await asyncio.gather(*(sh(box, "echo $N > f; sleep 0.2; cat f", timeout_s=60) for box in boxes))
    assert [int(done.stdout) for done in ends] == list(range(20))
    await asyncio.gather(*(box.close() for box in boxes[:10]))
    assert [int(await box.read("f")) for box in boxes[10:]] == list(range(10, 20))
