"""Isolation, limits, and the end of a sandbox: closed, crashed, timed out, orphaned."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.sandboxes import (
    Limits,
    SandboxBackend,
    SandboxError,
    SandboxGone,
    SandboxHandle,
    SandboxSpec,
    SandboxStartError,
)
from drivetrain.sandboxes.local.cgroups import make_groups, remove_cgroups
from drivetrain.sandboxes.local.reaper import reap
from tests.conformance.sandbox.kits.base import Kit

pytestmark = pytest.mark.usefixtures("nothing_left")

OWNER = """
import asyncio, sys
from pathlib import Path
from drivetrain.sandboxes import SandboxSpec
from drivetrain.sandboxes.local import LocalBackend

async def main():
    box = await LocalBackend(Path(sys.argv[1])).create(SandboxSpec(labels={"rollout": "r1"}))
    job = await box.start(["sh", "-c", "trap '' TERM HUP; setsid sleep 4712 & sleep 4712; sleep 4712"])
    await asyncio.sleep(0.2)
    print(box.id, job.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def limits_enforced(kind: str) -> bool:
    groups = make_groups("probe", Limits())
    remove_cgroups(groups.folders)
    held: bool = getattr(groups, kind)
    return held


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 10) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def sleepers(seconds: str) -> list[int]:
    """Host pids of live ``sleep SECONDS`` processes."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "cmdline").read_bytes() == b"sleep\0" + seconds.encode() + b"\0":
                found.append(int(folder.name))
        except OSError:
            continue
    return found


async def test_nothing_of_the_host_is_visible(box: SandboxHandle, tmp_path: Path) -> None:
    (tmp_path / "host-only").touch()
    hidden = ["/root", "/mnt", "/srv", "/boot", "/sys", "/etc/shadow", "/etc/ssl/private", "/etc/ssh", str(tmp_path)]
    hidden += [str(Path(__file__)), str(Path.home())]
    script = 'for p; do if [ -e "$p" ]; then echo "$p"; fi; done'
    assert (await box.exec(["sh", "-c", script, "sh", *hidden])).stdout == b""
    assert (await box.exec(["ls", "-A", "/tmp", "/run", "/home", box.home, box.workdir])).stdout.split() == [
        *b"/home: agent /home/agent: /run: /tmp: /work:".split()
    ]


async def test_only_private_places_are_writable(box: SandboxHandle) -> None:
    private = {box.home, box.workdir, "/tmp", "/run", "/dev/shm", "/dev/pts"}
    found = await box.exec(["sh", "-c", "find / -maxdepth 3 -path /proc -prune -o -type d -writable -print"])
    assert set(found.stdout.decode().split()) == private
    script = "for d in / /usr /etc /dev /proc/sys /proc/irq /.drivetrain; do touch $d/x && echo $d; done"
    done = await box.exec(["sh", "-c", script])
    assert (done.stdout, done.stderr.count(b"cannot touch")) == (b"", 7)
    # A root caller is root to file modes, so what protects the kernel's settings must be the mount.
    found = await box.exec(
        ["sh", "-c", "find /proc/sys -type f -writable | head -3; test -e /proc/sys/kernel/hostname"]
    )
    assert (found.exit_code, found.stdout) == (0, b"")


async def test_no_privileges(box: SandboxHandle) -> None:
    status = (await box.exec(["cat", "/proc/self/status"])).stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert fields["NoNewPrivs"] == "1"
    assert fields["Uid"].split() == ["1000"] * 4
    assert (await box.exec(["unshare", "--user", "--map-root-user", "true"])).exit_code != 0
    assert (await box.exec(["mount", "-t", "tmpfs", "none", "/tmp"])).exit_code != 0


async def test_pid_1_cannot_be_read_or_killed_from_inside(box: SandboxHandle) -> None:
    done = await box.exec(
        ["sh", "-c", "kill -9 1; kill -TERM 1; cat /proc/1/environ; readlink /proc/1/fd/*; cat /proc/1/mem"]
    )
    assert done.stdout == b""
    assert b"ermission denied" in done.stderr
    assert (await box.exec(["true"])).exit_code == 0


async def test_two_sandboxes_do_not_see_each_other(backend: SandboxBackend) -> None:
    one, two = await asyncio.gather(backend.create(SandboxSpec(env={"S": "marker-one"})), backend.create(SandboxSpec()))
    job = await one.start(["sleep", "4713"])
    await one.write("/tmp/file", b"x")
    await one.write(f"{one.home}/file", b"x")
    seen = await two.exec(["sh", "-c", "cat /proc/*/environ /proc/*/cmdline; ls /tmp $HOME ."])
    assert b"marker-one" not in seen.stdout
    assert b"4713" not in seen.stdout
    assert b"file" not in seen.stdout
    assert one.id != two.id
    await job.kill(0)


async def test_close_while_busy(backend: SandboxBackend, alive: Callable[[int], bool]) -> None:
    box = await backend.create(SandboxSpec())
    job = await box.start(["sh", "-c", "trap '' TERM; setsid sleep 4714 & sleep 4714; sleep 4714"])
    running = asyncio.create_task(box.exec(["sleep", "60"]))
    await asyncio.sleep(0.2)
    assert len(sleepers("4714")) == 2
    await asyncio.gather(box.close(), box.close())
    assert sleepers("4714") == []
    assert not alive(job.pid)
    with pytest.raises(SandboxGone):
        await running
    with pytest.raises(SandboxGone):
        await job.wait(5)
    with pytest.raises(SandboxGone):
        job.poll()
    await job.kill()  # still fine
    await box.close()


async def test_every_operation_on_a_closed_sandbox_says_so(backend: SandboxBackend) -> None:
    box = await backend.create(SandboxSpec())
    await box.close()
    for operation in (
        box.exec(["true"]),
        box.start(["true"]),
        box.read("x"),
        box.write("x", b""),
        box.upload(b"", "x"),
        box.download("x"),
    ):
        with pytest.raises(SandboxGone, match="closed"):
            await operation


async def test_aclose_closes_all_twice(backend: SandboxBackend, sandbox_root: Path) -> None:
    await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(4)))
    assert len(list(sandbox_root.iterdir())) == 4
    await backend.aclose()
    assert list(sandbox_root.iterdir()) == []
    await backend.aclose()


async def test_close_removes_what_the_inside_locked(backend: SandboxBackend, sandbox_root: Path) -> None:
    box = await backend.create(SandboxSpec())
    await box.exec(
        ["sh", "-c", "mkdir -p a/b/c; touch a/b/c/f; ln -s / a/b/root; chmod 000 a/b/c; chmod 000 a/b; chmod 000 ."]
    )
    await box.close()
    assert list(sandbox_root.iterdir()) == []


async def test_the_sandbox_kills_itself_at_its_deadline(backend: SandboxBackend) -> None:
    box = await backend.create(SandboxSpec(limits=Limits(ttl_s=0.7)))
    job = await box.start(["sh", "-c", "trap '' TERM; setsid sleep 4715 & sleep 4715"])
    with pytest.raises(SandboxGone, match="time to live"):
        await job.wait(10)
    wait_until(lambda: not sleepers("4715"), "processes outlive the deadline")
    with pytest.raises(SandboxGone, match="time to live"):
        await box.exec(["true"])
    await box.close()


def test_a_killed_owner_leaves_no_process_and_the_reaper_takes_the_folder(
    kit: Kit, sandbox_root: Path, alive: Callable[[int], bool]
) -> None:
    assert kit.name == "local"
    sandbox_root.mkdir()
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(sandbox_root)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    name, pid = owner.stdout.readline().split()
    assert alive(int(pid))
    assert len(sleepers("4712")) == 2
    assert reap(sandbox_root) == []  # its owner lives
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not sleepers("4712") and not alive(int(pid)), "processes outlive their owner")
    assert [entry.name for entry in sandbox_root.iterdir()] == [name]
    assert reap(sandbox_root) == [name]
    assert list(sandbox_root.iterdir()) == []
    assert not list(Path("/sys/fs/cgroup").glob(f"**/drivetrain-{name}"))


def test_a_terminated_owner_is_no_different(kit: Kit, sandbox_root: Path) -> None:
    assert kit.name == "local"
    sandbox_root.mkdir()
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(sandbox_root)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    owner.stdout.readline()
    owner.send_signal(signal.SIGTERM)
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not sleepers("4712"), "processes outlive their owner")
    assert len(reap(sandbox_root)) == 1


async def test_file_size_and_open_files_are_limited(backend: SandboxBackend) -> None:
    box = await backend.create(SandboxSpec(limits=Limits(file_bytes=1 << 20, open_files=64)))
    done = await box.exec(["sh", "-c", "ulimit -n; ulimit -c; head -c 3000000 /dev/zero > f"])
    assert done.stdout == b"64\n0\n"
    assert (await box.exec(["stat", "-c", "%s", "f"])).stdout == b"1048576\n"
    done = await box.exec(["sh", "-c", "head -c 3000000 /dev/zero > /tmp/f"])
    assert done.exit_code != 0
    with pytest.raises(SandboxError):
        await box.write("g", b"x" * (2 << 20))
    assert (await box.exec(["ls"])).stdout == b"f\n"


@pytest.mark.skipif(not limits_enforced("pids"), reason="no control group for pids here")
async def test_a_fork_bomb_is_contained(backend: SandboxBackend) -> None:
    box = await backend.create(SandboxSpec(limits=Limits(pids=40)))
    done = await box.exec(["sh", "-c", "f() { sleep 4716 & f & f & wait; }; f"], timeout_s=1.5)
    assert b"fork" in done.stderr  # "Cannot fork": it hit the limit
    assert sleepers("4716") == []
    assert (await box.exec(["true"])).exit_code == 0


@pytest.mark.skipif(not limits_enforced("memory"), reason="no control group for memory here")
async def test_a_memory_bomb_is_contained(backend: SandboxBackend) -> None:
    box = await backend.create(SandboxSpec(limits=Limits(memory_bytes=64 << 20)))
    done = await box.exec(["sh", "-c", "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}"], timeout_s=30)
    assert done.exit_code == 137
    assert (await box.exec(["echo", "alive"])).stdout == b"alive\n"
    for path in ("/dev/shm/f", "/tmp/f", "/run/f"):  # file systems in memory
        done = await box.exec(["sh", "-c", f"head -c 200000000 /dev/zero > {path}"], timeout_s=30)
        assert b"No space left" in done.stderr
        assert (await box.exec(["rm", path])).exit_code == 0


async def test_a_failed_start_leaves_nothing(backend: SandboxBackend, sandbox_root: Path) -> None:
    with pytest.raises(SandboxStartError, match="bwrap"):
        await backend.create(SandboxSpec(workdir="/usr/bin/sh/below-a-file"))
    with pytest.raises(SandboxStartError):
        await backend.create(SandboxSpec(limits=Limits(ttl_s=0)))
    assert list(sandbox_root.iterdir()) == []


async def test_a_cancelled_start_leaves_nothing(backend: SandboxBackend, sandbox_root: Path) -> None:
    await (await backend.create(SandboxSpec())).close()
    for delay in (0.0, 0.005, 0.02, 0.05):
        starting = asyncio.create_task(backend.create(SandboxSpec()))
        await asyncio.sleep(delay)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await starting).close()
        assert list(sandbox_root.iterdir()) == []
