"""The pool before real sandboxes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drivetrain.sandboxes import Limits, SandboxGone, SandboxSpec
from drivetrain.sandboxes.label import read_label, started
from drivetrain.sandboxes.local.reaper import reap
from drivetrain.sandboxes.pool import SandboxPool, runs_a_command, still_there
from tests.conformance.sandbox.kits.local import LocalKit

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

SPEC = SandboxSpec()


@pytest.fixture
def kit() -> LocalKit:
    return LocalKit()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sandboxes"


def kill(root: Path, sandbox_id: str) -> None:
    label = read_label(root / sandbox_id)
    assert label is not None and label.init_pid is not None
    os.kill(label.init_pid, signal.SIGKILL)
    while started(label.init_pid) == label.init_started:
        time.sleep(0.005)


def folders(root: Path) -> set[str]:
    return {entry.name for entry in root.iterdir()} if root.exists() else set()


async def test_a_hit_is_a_fresh_sandbox_with_the_environment_asked_for(kit: LocalKit, root: Path) -> None:
    async with SandboxPool(kit.make(root)) as pool:
        await pool.warm(SPEC)
        box = await pool.create(SandboxSpec(env={"A": "1", "B": "2"}))
        assert pool.statistics().hits == 1
        done = await box.exec(["sh", "-c", 'echo "$A$B$C"; ls -A; ls -A "$HOME"'], env={"B": "3", "C": "4"})
        assert done.stdout == b"134\n"
        job = await box.start(["sh", "-c", 'printf %s "$A"'])
        assert (await job.wait(20)).stdout == b"1"
        await box.close()
        assert box.id not in folders(root)
    assert kit.left(root) == []


@pytest.mark.case("F7")
@pytest.mark.parametrize("probe", [still_there, runs_a_command])
async def test_one_that_died_while_it_waited_is_never_seen(kit: LocalKit, root: Path, probe: object) -> None:
    async with SandboxPool(kit.make(root), max_warm=2, probe=probe) as pool:  # type: ignore[arg-type]
        await pool.warm(SPEC, 2)
        for name in folders(root):
            kill(root, name)  # and nobody gives the loop time to hear of it
        box = await pool.create(SPEC)
        assert (await box.exec(["echo", "hi"])).stdout == b"hi\n"
        assert pool.statistics().dead >= 1
    assert kit.left(root) == []


async def test_twenty_users_share_three_places(kit: LocalKit, root: Path) -> None:
    most = 0
    async with SandboxPool(kit.make(root), max_total=3, max_warm=2, close_in_background=True) as pool:

        async def use(number: int) -> bytes:
            nonlocal most
            box = await pool.create(SPEC)
            most = max(most, len(folders(root)))
            done = await box.exec(["echo", str(number)])
            await box.close()
            with pytest.raises(SandboxGone):
                await box.exec(["true"])
            return done.stdout

        assert await asyncio.gather(*(use(number) for number in range(20))) == [b"%d\n" % n for n in range(20)]
        assert 1 <= most <= 3
    assert kit.left(root) == []


async def test_its_time_is_the_one_asked_for(kit: LocalKit, root: Path) -> None:
    async with SandboxPool(kit.make(root)) as pool:
        short = SandboxSpec(limits=Limits(ttl_s=1.5))
        await pool.warm(short)
        box = await pool.create(short)
        job = await box.start(["sleep", "60"])
        with pytest.raises(SandboxGone):
            await job.wait(30)
        with pytest.raises(SandboxGone, match="time to live is over"):
            await box.exec(["true"])
        await box.close()  # the pool has begun to; this waits for the end of it
        assert box.id not in folders(root)
    assert kit.left(root) == []


OWNER = """
import asyncio, pathlib, sys
from drivetrain.sandboxes import SandboxSpec
from drivetrain.sandboxes.local import LocalBackend
from drivetrain.sandboxes.pool import SandboxPool

async def main():
    pool = SandboxPool(LocalBackend(pathlib.Path(sys.argv[1])), max_warm=3, close_in_background=True)
    await pool.warm(SandboxSpec(), 3)
    box = await pool.create(SandboxSpec())
    closed = await pool.create(SandboxSpec())
    await closed.close()
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.case("F1")
def test_the_warm_ones_of_a_killed_owner_are_reaped(kit: LocalKit, root: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(root)], stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
    finally:
        owner.kill()
        owner.communicate()
    names = folders(root)
    assert len(names) >= 3
    assert set(reap(root)) == names
    deadline = time.monotonic() + 20
    while kit.left(root) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert kit.left(root) == []
