"""Process trees: deadlines, kills, orphans, and jobs in the background."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import pytest

from drivetrain.sandboxes import BgJob, SandboxError, SandboxHandle
from tests.conformance.sandbox.inside import sh, sleepers, until_output, until_sleepers
from tests.conformance.sandbox.kits.base import Kit

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_count_of_sleepers_sees_what_runs(box: SandboxHandle, kit: Kit, nap: str) -> None:
    """The zeros below mean something only if the helpers can count."""
    job = await box.start(["sleep", nap])
    await until_sleepers(box, nap, 1)
    assert len(kit.processes(f"sleep {nap}")) >= 1
    await job.kill(0)
    await until_sleepers(box, nap, 0)


@pytest.mark.case("F3")
async def test_the_deadline_kills_the_whole_tree(box: SandboxHandle, kit: Kit, nap: str) -> None:
    script = f"""
    trap '' TERM HUP INT
    sleep {nap} &
    setsid sh -c 'sleep {nap}; sleep {nap}' &
    (setsid env -i PATH="$PATH" sh -c '(sleep {nap} &) ; sleep {nap}' &)
    nohup sleep {nap} > /dev/null 2>&1 &
    echo started
    sleep {nap}
    """
    begun = time.monotonic()
    done = await sh(box, script, timeout_s=2)
    assert time.monotonic() - begun < 20
    assert (done.timed_out, done.exit_code, done.stdout) == (True, 137, b"started\n")
    assert await sleepers(box, nap) == 0
    assert kit.processes(f"sleep {nap}") == []
    assert (await box.exec(["true"])).exit_code == 0


@pytest.mark.case("F3")
async def test_a_tree_that_forks_without_end_is_killed(box: SandboxHandle, nap: str) -> None:
    """Each process lives for a moment and leaves another: whoever lists and then kills is always late."""
    await box.write("run.sh", b'setsid sh run.sh "$1" &\n')
    done = await sh(box, f"for i in 1 2 3; do sh run.sh {nap} & done; sleep 60", timeout_s=1)
    assert done.timed_out
    for _ in range(3):
        assert await sleepers(box, nap) == 0
        await asyncio.sleep(0.1)


@pytest.mark.case("F3")
async def test_a_tree_that_kills_its_parent_does_not_outlive_the_call(box: SandboxHandle, nap: str) -> None:
    """What stands above a command inside may be killed by it, which then forks on: nothing of the tree stays."""
    forks = f"i=0; while [ $i -lt 100 ]; do sleep {nap} & i=$((i+1)); done; wait"
    for _ in range(4):
        with contextlib.suppress(SandboxError):
            assert (await sh(box, f"(setsid sleep {nap} &); kill -9 $PPID; {forks}", timeout_s=1)).exit_code == 137
        assert await sleepers(box, nap) == 0


@pytest.mark.case("F3")
async def test_a_command_that_kills_everything_it_can_ends_only_itself(box: SandboxHandle, nap: str) -> None:
    with contextlib.suppress(SandboxError):
        done = await sh(box, f"sleep {nap} & kill -9 -1", timeout_s=5)
        assert done.exit_code in (0, 137)  # the kernel spares the caller; 137 where what keeps it went with the rest
    done = await box.exec(["echo", "still here"])
    assert done.stdout == b"still here\n"
    assert await sleepers(box, nap) == 0


@pytest.mark.case("F3")
async def test_cancelling_an_exec_kills_its_tree(box: SandboxHandle, kit: Kit, nap: str) -> None:
    running = asyncio.create_task(sh(box, f"setsid sleep {nap} & sleep {nap}"))
    await until_sleepers(box, nap, 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_sleepers(box, nap, 0)
    assert kit.processes(f"sleep {nap}") == []


@pytest.mark.case("F3")
async def test_a_deadline_that_is_over_at_once(box: SandboxHandle, nap: str) -> None:
    done = await box.exec(["sleep", nap], timeout_s=0.001)
    assert (done.timed_out, done.exit_code) == (True, 137)
    await until_sleepers(box, nap, 0)


ZOMBIES = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"


@pytest.mark.case("F2")
async def test_orphans_do_not_stay_zombies(box: SandboxHandle) -> None:
    """Neither those of a command that ended nor those of one that runs on, as an agent does for an hour."""
    orphans = "for i in 1 2 3 4 5 6 7 8 9 10; do (setsid true &); done"
    await sh(box, orphans)
    job = await box.start(["sh", "-c", f"{orphans}; echo up; sleep 60"])
    await until_output(job, b"up")
    until = time.monotonic() + 60
    while (seen := (await sh(box, ZOMBIES)).stdout.strip()) != b"0":
        assert time.monotonic() < until, f"{seen.decode()} zombies stay"
    assert job.poll() is None
    await job.kill(0)


@pytest.mark.case("F2")
async def test_many_orphans_do_not_use_up_the_processes(box: SandboxHandle) -> None:
    """A command that leaves more orphans than a sandbox may have processes; few are still in the table at its end."""
    orphans = "i=0; while [ $i -lt 400 ]; do (true & true &); i=$((i+1)); done"
    done = await sh(box, f"{orphans}; sleep 0.5; ls -d /proc/[0-9]* | wc -l", timeout_s=60)
    assert done.exit_code == 0, done.stderr
    assert int(done.stdout) < 100


async def test_signals_between_processes_inside(box: SandboxHandle) -> None:
    script = """
    sh -c 'trap "echo got; exit 9" USR1; echo up; while :; do sleep 0.02; done' & child=$!
    sleep 0.3; kill -USR1 $child; wait $child; echo code $?
    """
    assert (await sh(box, script)).stdout == b"up\ngot\ncode 9\n"


async def test_job_poll_wait_tail(box: SandboxHandle) -> None:
    job = await box.start(["sh", "-c", "echo one; echo two >&2; read line; sleep 1; exit 5"])
    assert isinstance(job, BgJob)
    assert job.poll() is None
    assert job.pid > 0
    with pytest.raises(TimeoutError):
        await job.wait(0.05)
    done = await job.wait(20)
    assert (done.exit_code, done.stdout, done.stderr, done.timed_out) == (5, b"one\n", b"two\n", False)
    assert job.poll() == 5
    assert job.tail() == b"one\ntwo\n"
    assert await job.wait() == done


@pytest.mark.needs("host_pids")
async def test_job_pid_is_the_hosts(box: SandboxHandle, nap: str, alive: Callable[[int], bool], kit: Kit) -> None:
    job = await box.start(["sleep", nap])
    await until_sleepers(box, nap, 1)
    assert kit.processes(f"sleep {nap}") == [job.pid]
    await job.kill(0)
    assert not alive(job.pid)


@pytest.mark.lacks("host_pids")
async def test_job_pid_is_the_sandboxes(box: SandboxHandle, nap: str) -> None:
    job = await box.start(["sleep", nap])
    await until_sleepers(box, nap, 1)
    assert (await box.exec(["test", "-d", f"/proc/{job.pid}"])).exit_code == 0
    await job.kill(0)
    assert (await box.exec(["test", "-d", f"/proc/{job.pid}"])).exit_code == 1


@pytest.mark.case("F3")
async def test_job_kill_is_gentle_first(box: SandboxHandle) -> None:
    job = await box.start(["sh", "-c", "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"])
    await until_output(job, b"ready")
    await job.kill(10)
    done = await job.wait(5)
    assert (done.exit_code, done.stdout, done.timed_out) == (3, b"ready\nbye\n", False)
    await job.kill()


@pytest.mark.case("F3")
async def test_job_kill_takes_the_stubborn_tree(box: SandboxHandle, nap: str) -> None:
    job = await box.start(["sh", "-c", f"trap '' TERM; setsid sleep {nap} & echo ready; sleep {nap}; sleep {nap}"])
    await until_output(job, b"ready")
    await job.kill(0.2)
    assert job.poll() == 137
    assert await sleepers(box, nap) == 0


@pytest.mark.case("F3")
async def test_job_kill_after_its_end_takes_what_it_left(box: SandboxHandle, nap: str) -> None:
    job = await box.start(["sh", "-c", f"setsid sleep {nap} & exit 0"])
    assert (await job.wait(20)).exit_code == 0
    assert await sleepers(box, nap) == 1
    await job.kill()
    await until_sleepers(box, nap, 0)


@pytest.mark.case("F4")
async def test_job_stdin_is_null(box: SandboxHandle) -> None:
    job = await box.start(["sh", "-c", "cat; echo end"])
    assert (await job.wait(20)).stdout == b"end\n"


async def test_jobs_do_not_disturb_each_other(box: SandboxHandle) -> None:
    jobs = [await box.start(["sh", "-c", f"sleep {60 if i == 3 else 0.3}; echo {i}; exit {i}"]) for i in range(8)]
    await jobs[3].kill(0)
    ends = await asyncio.gather(*(job.wait(30) for job in jobs))
    assert [done.exit_code for done in ends] == [0, 1, 2, 137, 4, 5, 6, 7]
    assert [done.stdout for i, done in enumerate(ends) if i != 3] == [b"%d\n" % i for i in range(8) if i != 3]


@pytest.mark.case("F7")
async def test_a_job_goes_on_when_whoever_waits_is_cancelled(box: SandboxHandle) -> None:
    job = await box.start(["sh", "-c", "echo begun; sleep 1; echo done; exit 3"])
    waiting = asyncio.create_task(job.wait())
    await until_output(job, b"begun")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    done = await job.wait(20)
    assert (done.exit_code, done.stdout) == (3, b"begun\ndone\n")


@pytest.mark.case("F7")
async def test_a_severed_connection_loses_nothing_of_a_job(box: SandboxHandle, kit: Kit) -> None:
    """What was said before, while and after nobody listened, and the exit code."""
    job = await box.start(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.2; done; exit 3"])
    await until_output(job, b"2")
    kit.cut()
    await asyncio.sleep(0.3)
    kit.cut()
    done = await job.wait(30)
    assert (done.exit_code, done.stdout) == (3, b"".join(b"%d\n" % i for i in range(1, 10)))
    assert (await box.exec(["echo", "on"])).stdout == b"on\n"


@pytest.mark.case("F7")
async def test_a_severed_connection_loses_nothing_of_a_command(box: SandboxHandle, kit: Kit) -> None:
    """Run once and not again: a command is not repeated because its reply was lost."""
    running = asyncio.create_task(sh(box, "echo run >> runs; echo a; sleep 1; echo b >&2; exit 4"))
    await asyncio.sleep(0.5)
    kit.cut()
    done = await running
    assert (done.exit_code, done.stdout, done.stderr) == (4, b"a\n", b"b\n")
    assert await box.read("runs") == b"run\n"


@pytest.mark.case("F7")
async def test_a_busy_owner_loses_no_output(box: SandboxHandle) -> None:
    """The event loop stands still (a training step) while jobs fill and end."""
    job = await box.start(["sh", "-c", "seq 1 300000; exit 3"], max_output_bytes=4 << 20)
    time.sleep(1)  # noqa: ASYNC251 (that is the point)
    done = await job.wait(30)
    assert (done.exit_code, done.stdout) == (3, b"".join(b"%d\n" % i for i in range(1, 300_001)))
