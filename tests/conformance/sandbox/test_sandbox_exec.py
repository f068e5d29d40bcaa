"""Commands: exit codes, environment, streams, deadlines, process trees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.errors import ConfigError
from drivetrain.sandboxes import BgJob, SandboxBackend, SandboxHandle, SandboxSpec

pytestmark = pytest.mark.usefixtures("nothing_left")


async def sleepers(box: SandboxHandle) -> int:
    """How many ``sleep 4711`` run inside. The pattern does not match its own argv."""
    done = await box.exec(["sh", "-c", "grep -lsazx '4[7]11' /proc/[0-9]*/cmdline | wc -l"])
    return int(done.stdout)


async def until_sleepers(box: SandboxHandle, count: int) -> None:
    for _ in range(100):
        if await sleepers(box) == count:
            return
    pytest.fail(f"there are {await sleepers(box)} sleepers, not {count}")


async def until_output(job: BgJob, text: bytes) -> None:
    for _ in range(500):
        if text in job.tail():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"no {text!r} in {job.tail()!r}")


async def test_output_and_exit_code(box: SandboxHandle) -> None:
    done = await box.exec(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.exit_code, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    assert not done.timed_out
    assert not done.truncated
    assert 0 < done.duration_s < 10


@pytest.mark.parametrize(("name", "number"), [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("PIPE", 13), ("XFSZ", 25)])
async def test_a_signal_is_128_plus_its_number(box: SandboxHandle, name: str, number: int) -> None:
    assert (await box.exec(["sh", "-c", f"kill -{name} $$; sleep 5"])).exit_code == 128 + number


async def test_a_command_that_cannot_run_exits_like_in_a_shell(box: SandboxHandle) -> None:
    missing = await box.exec(["no-such-program"])
    assert missing.exit_code == 127
    assert b"no-such-program" in missing.stderr
    await box.write("plain.txt", b"text")
    assert (await box.exec(["./plain.txt"])).exit_code == 126
    assert (await box.exec(["true"], cwd="/no/such/folder")).exit_code == 127


async def test_a_command_is_a_list(box: SandboxHandle) -> None:
    with pytest.raises(ConfigError):
        await box.exec("echo one string")
    with pytest.raises(ConfigError):
        await box.exec([])


async def test_environment_is_spec_plus_call_and_nothing_of_the_host(
    backend: SandboxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", "leaked")
    box = await backend.create(SandboxSpec(env={"FROM_SPEC": "1", "BOTH": "spec"}))
    done = await box.exec(["env", "-0"], env={"BOTH": "call", "LINES": "a\nb=c"})
    seen = dict(entry.split(b"=", 1) for entry in done.stdout.split(b"\0") if entry)
    assert set(seen) == {b"HOME", b"PATH", b"TMPDIR", b"USER", b"LANG", b"FROM_SPEC", b"BOTH", b"LINES"}
    assert (seen[b"FROM_SPEC"], seen[b"BOTH"], seen[b"LINES"]) == (b"1", b"call", b"a\nb=c")
    assert seen[b"HOME"].decode() == box.home
    everything = await box.exec(["sh", "-c", "cat /proc/*/environ"])
    assert b"leaked" not in everything.stdout
    assert b"FROM_SPEC" in everything.stdout


async def test_environment_values_are_in_no_host_argv(backend: SandboxBackend) -> None:
    secret = "value-that-must-not-show-7f3a"
    box = await backend.create(SandboxSpec(env={"SPEC": secret}))
    job = await box.start(["sh", "-c", "echo up; exec sleep 4711"], env={"CALL": secret})
    await until_output(job, b"up")
    await until_sleepers(box, 1)
    lines = []
    for pid in (entry for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            lines.append((pid / "cmdline").read_bytes())
        except OSError:
            continue
    assert any(b"sleep\x004711" in line for line in lines)
    assert not any(secret.encode() in line for line in lines)
    await job.kill(0)


async def test_a_large_environment_and_argv(box: SandboxHandle) -> None:
    big = "x" * 100_000
    done = await box.exec(["sh", "-c", "echo ${#A} ${#B} ${#1}", "sh", big], env={"A": big, "B": big})
    assert done.stdout == b"100000 100000 100000\n"


async def test_cwd_defaults_to_the_workdir(backend: SandboxBackend) -> None:
    box = await backend.create(SandboxSpec(workdir="/testbed/project"))
    assert box.workdir == "/testbed/project"
    assert (await box.exec(["pwd"])).stdout == b"/testbed/project\n"
    assert (await box.exec(["pwd"], cwd="/tmp")).stdout == b"/tmp\n"
    assert (await box.exec(["sh", "-c", "touch here $HOME/there $TMPDIR/tmp && ls"])).stdout == b"here\n"


async def test_stdin_is_null_or_the_given_bytes(box: SandboxHandle) -> None:
    assert (await box.exec(["cat"], timeout_s=5)).stdout == b""
    data = bytes(range(256)) * 4000
    assert (await box.exec(["cat"], stdin=data)).stdout == data
    assert (await box.exec(["sh", "-c", "exec true"], stdin=data)).exit_code == 0  # a reader that does not read
    assert (await box.exec(["cat"], stdin=b"")).stdout == b""


async def test_unicode_in_argv_env_and_names(box: SandboxHandle) -> None:
    done = await box.exec(["sh", "-c", 'echo "$1" "$X"; touch "$1"; ls', "sh", "naïve 🐍"], env={"X": "ключ"})
    assert done.stdout.decode() == "naïve 🐍 ключ\nnaïve 🐍\n"


async def test_output_beyond_the_bound_is_dropped_and_the_command_still_ends(box: SandboxHandle) -> None:
    done = await box.exec(
        ["sh", "-c", "echo first; yes | head -c 30000000; echo last >&2; exit 4"],
        max_output_bytes=1000,
        timeout_s=30,
    )
    assert (done.exit_code, done.stderr, done.timed_out, done.truncated) == (4, b"last\n", False, True)
    assert done.stdout.startswith(b"first\ny\n")
    assert len(done.stdout) == 1000


async def test_output_at_the_bound_is_complete(box: SandboxHandle) -> None:
    done = await box.exec(["sh", "-c", "yes | head -c 1000"], max_output_bytes=1000)
    assert (len(done.stdout), done.truncated) == (1000, False)


async def test_both_streams_full_do_not_deadlock(box: SandboxHandle) -> None:
    script = "yes o | head -c 5000000 & yes e | head -c 5000000 >&2; wait"
    done = await box.exec(["sh", "-c", script], max_output_bytes=8 << 20, timeout_s=30)
    assert (len(done.stdout), len(done.stderr), done.truncated) == (5_000_000, 5_000_000, False)


async def test_the_deadline_kills_the_whole_tree(box: SandboxHandle) -> None:
    script = """
    trap '' TERM
    sleep 4711 &
    setsid sh -c 'sleep 4711; sleep 4711' &
    (setsid env -i sh -c '(sleep 4711 &) ; sleep 4711' &)
    echo started
    sleep 4711
    """
    begun = time.monotonic()
    done = await box.exec(["sh", "-c", script], timeout_s=0.7)
    assert time.monotonic() - begun < 5
    assert done.timed_out
    assert done.exit_code == 137
    assert done.stdout == b"started\n"
    assert await sleepers(box) == 0
    assert (await box.exec(["true"])).exit_code == 0


async def test_sleepers_helper_sees_what_runs(box: SandboxHandle) -> None:
    """The zero above means something only if the helper can count."""
    job = await box.start(["sleep", "4711"])
    assert await sleepers(box) == 1
    await job.kill(0)


async def test_a_tree_that_kills_its_keeper_does_not_outlive_it(box: SandboxHandle) -> None:
    done = await box.exec(["sh", "-c", "(setsid sleep 4711 &); sleep 0.1; kill -9 $PPID; sleep 4711"], timeout_s=10)
    assert done.exit_code == 137
    assert await sleepers(box) == 0


async def test_cancelling_an_exec_kills_its_tree(box: SandboxHandle) -> None:
    running = asyncio.create_task(box.exec(["sh", "-c", "setsid sleep 4711 & sleep 4711"]))
    await until_sleepers(box, 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_sleepers(box, 0)


async def test_a_grandchild_that_holds_stdout_does_not_hang_the_call(box: SandboxHandle) -> None:
    begun = time.monotonic()
    done = await box.exec(["sh", "-c", "sleep 4711 & echo done"], timeout_s=30)
    assert time.monotonic() - begun < 5
    assert (done.exit_code, done.stdout, done.timed_out) == (0, b"done\n", False)
    assert await sleepers(box) == 1  # a daemon a command leaves behind is the command's business


async def test_a_grandchild_that_floods_stdout_does_not_hang_the_call(box: SandboxHandle) -> None:
    begun = time.monotonic()
    done = await box.exec(["sh", "-c", "yes & echo done; exit 3"], timeout_s=30, max_output_bytes=1 << 20)
    assert time.monotonic() - begun < 5
    assert done.exit_code == 3


async def test_orphans_do_not_stay_zombies(box: SandboxHandle) -> None:
    await box.exec(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do (setsid true &); done"])
    script = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
    for _ in range(60):
        if (await box.exec(["sh", "-c", script])).stdout.strip() == b"0":
            return
        await asyncio.sleep(0.05)
    pytest.fail("zombies stay")


async def test_parallel_execs(box: SandboxHandle) -> None:
    results = await asyncio.gather(*(box.exec(["sh", "-c", f"sleep 0.1; echo {i}"]) for i in range(20)))
    assert [int(done.stdout) for done in results] == list(range(20))


async def test_no_descriptor_of_the_owner_is_inherited(box: SandboxHandle) -> None:
    # ls itself opens one to read the folder.
    assert (await box.exec(["ls", "/proc/self/fd"])).stdout.split() == [b"0", b"1", b"2", b"3"]


async def test_descriptors_of_the_owner_do_not_grow(box: SandboxHandle) -> None:
    await box.exec(["true"])
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        await box.exec(["cat"], stdin=b"x")
        await box.exec(["sleep", "5"], timeout_s=0.01)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_job_poll_wait_tail(box: SandboxHandle, alive: Callable[[int], bool]) -> None:
    job = await box.start(["sh", "-c", "echo one; echo two >&2; read line; sleep 0.3; exit 5"])
    assert job.poll() is None
    assert alive(job.pid)
    with pytest.raises(TimeoutError):
        await job.wait(0.05)
    done = await job.wait(10)
    assert (done.exit_code, done.stdout, done.stderr) == (5, b"one\n", b"two\n")
    assert job.poll() == 5
    assert job.tail() == b"one\ntwo\n"
    assert job.tail(4) == b"one\ntwo\n"
    assert not alive(job.pid)
    assert await job.wait() == done


async def test_job_tail_while_running_and_past_the_bound(box: SandboxHandle) -> None:
    job = await box.start(
        ["sh", "-c", "echo head; yes | head -c 1000000; echo the-end; sleep 30"], max_output_bytes=100
    )
    await until_output(job, b"the-end")
    assert job.tail(8) == b"the-end\n"
    await job.kill(0)
    done = await job.wait()
    assert done.truncated
    assert done.stdout.startswith(b"head\ny\n")
    assert len(done.stdout) == 100


async def test_job_kill_is_gentle_first(box: SandboxHandle) -> None:
    job = await box.start(["sh", "-c", "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"])
    await until_output(job, b"ready")
    await job.kill()
    done = await job.wait(5)
    assert (done.exit_code, done.stdout, done.timed_out) == (3, b"ready\nbye\n", False)
    await job.kill()


async def test_job_kill_takes_the_stubborn_tree(box: SandboxHandle) -> None:
    job = await box.start(["sh", "-c", "trap '' TERM; setsid sleep 4711 & echo ready; sleep 4711; sleep 4711"])
    await until_output(job, b"ready")
    begun = time.monotonic()
    await job.kill(0.2)
    assert 0.1 < time.monotonic() - begun < 5
    assert job.poll() == 137
    assert await sleepers(box) == 0


async def test_job_kill_after_its_end_takes_what_it_left(box: SandboxHandle) -> None:
    job = await box.start(["sh", "-c", "setsid sleep 4711 & exit 0"])
    assert (await job.wait(5)).exit_code == 0
    assert await sleepers(box) == 1
    await job.kill()
    await until_sleepers(box, 0)


async def test_job_stdin_is_null(box: SandboxHandle) -> None:
    job = await box.start(["cat"])
    assert (await job.wait(5)).exit_code == 0


async def test_output_beyond_the_bound_is_whole_in_the_spill_folder(box: SandboxHandle, tmp_path: Path) -> None:
    folder = tmp_path / "spill" / "deep"
    done = await box.exec(
        ["sh", "-c", "seq 1 200000; printf brief >&2"], max_output_bytes=1000, spill=folder, timeout_s=60
    )
    whole = b"".join(b"%d\n" % number for number in range(1, 200001))
    assert (done.stdout, done.stderr, done.truncated) == (whole[:1000], b"brief", True)
    assert (folder / "stdout").read_bytes() == whole
    assert not (folder / "stderr").exists(), "what fits needs no file"
    job = await box.start(["sh", "-c", "seq 1 200000 >&2"], max_output_bytes=1000, spill=folder)
    await job.wait(60)
    assert (folder / "stderr").read_bytes() == whole
