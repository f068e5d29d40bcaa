"""What goes wrong on purpose: killed helpers, odd files, forked owners, a kernel's corners."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from drivetrain.sandboxes import Limits, Mount, SandboxGone, SandboxSpec
from drivetrain.sandboxes.local import LocalBackend
from drivetrain.sandboxes.local import sandbox as local_sandbox

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


async def test_a_killed_bubblewrap_takes_everything_with_it(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec())
    job = await box.start(["sh", "-c", "trap '' TERM HUP; setsid sleep 4731 & sleep 4731"])
    first = parent(parent(job.pid))
    bubblewrap = parent(first)
    assert parent(bubblewrap) == os.getpid()
    os.kill(bubblewrap, signal.SIGKILL)
    with pytest.raises(SandboxGone):
        await job.wait(10)
    for _ in range(500):
        if not alive(first) and not alive(job.pid):
            break
        await asyncio.sleep(0.01)
    assert not alive(first)
    assert not alive(job.pid)
    await box.close()
    assert list(tmp_path.iterdir()) == []
    await backend.aclose()


async def test_an_argv_the_kernel_refuses_is_an_exit_code(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec())
    done = await box.exec(["echo", "x" * 200_000])  # one word may have 128 KiB
    assert (done.exit_code, done.stderr) == (126, b"drivetrain: echo: Argument list too long\n")
    done = await box.exec(["echo", *["y" * 100_000] * 60])
    assert done.exit_code == 126
    many = await box.exec(["sh", "-c", 'echo $#; echo "$#" "${1}"', "sh", *["z" * 50] * 20_000])
    assert many.stdout.split() == [b"20000", b"20000", b"z" * 50]
    await backend.aclose()


@pytest.mark.parametrize("staged", [True, False])
async def test_the_kernels_files_say_little_and_take_nothing(
    tmp_path: Path, staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not staged:
        monkeypatch.setattr(local_sandbox, "why_no_stage", lambda _python: "a test")
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec())
    masked = "kcore kmsg keys timer_list sched_debug latency_stats"
    readable = f"for f in {masked}; do head -c 1 /proc/$f; done; ls /proc/acpi"
    assert (await box.exec(["sh", "-c", readable])).stdout == b""
    script = "find /proc -maxdepth 1 -type f -writable; find /proc/sys /proc/irq /proc/bus /proc/fs -writable"
    writable = {Path(name).name for name in (await box.exec(["sh", "-c", script])).stdout.decode().split()}
    assert writable <= set(masked.split())  # covered by /dev/null
    for text in ("echo h > /proc/sysrq-trigger", "echo x > /proc/sys/kernel/core_pattern", "echo 1 > /proc/1/oom_adj"):
        assert (await box.exec(["sh", "-c", text])).exit_code != 0
    await backend.aclose()


@root_only
async def test_device_nodes_and_set_uid_programs_of_a_mount_do_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    os.mknod(source / "disk", stat.S_IFBLK | 0o666, os.makedev(7, 0))
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (source / "id").write_bytes(Path("/usr/bin/id").read_bytes())
    (source / "id").chmod(0o4755)
    backend = LocalBackend(tmp_path / "root")
    for writable, overlay in ((False, False), (True, False), (False, True)):
        mount = Mount(source, "/opt/m", writable, overlay)
        box = await backend.create(SandboxSpec(mounts=(mount,)))
        done = await box.exec(["sh", "-c", "cat /opt/m/disk; cat < /opt/m/null; /opt/m/id -u; mknod /tmp/n c 1 3"])
        assert done.stdout == b"1000\n", mount
        assert done.stderr.lower().count(b"denied") == 2
        assert b"not permitted" in done.stderr
        await box.close()
    devices = await backend.create(SandboxSpec())
    found = await devices.exec(["find", "/dev", "-type", "c", "-o", "-type", "b"])
    names = {name.decode() for name in found.stdout.split()}
    assert names <= {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "console")} | {
        "/dev/pts/ptmx"
    }
    await backend.aclose()


async def test_a_forked_owner_makes_its_own(tmp_path: Path) -> None:
    """The thread that starts sandboxes is not in the fork, and the parent's sandboxes are not its to close."""
    script = """
import asyncio, os, sys
from pathlib import Path
from drivetrain.sandboxes import SandboxSpec
from drivetrain.sandboxes.local import LocalBackend
async def run(name):
    backend = LocalBackend(Path(sys.argv[1]) / name)
    box = await backend.create(SandboxSpec())
    print((await box.exec(["echo", name])).stdout.decode(), end="", flush=True)
    return backend
async def parent():
    backend = await run("parent")
    pid = os.fork()
    if pid == 0:
        return None
    assert os.waitpid(pid, 0)[1] == 0
    print((await next(iter(backend._open)).exec(["echo", "still"])).stdout.decode(), end="", flush=True)
    await backend.aclose()
    os._exit(0)
loop = asyncio.new_event_loop()
loop.run_until_complete(parent())
async def child():
    await (await run("child")).aclose()
fresh = asyncio.new_event_loop()
asyncio.set_event_loop(fresh)
fresh.run_until_complete(child())
os._exit(0)
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert output.split() == [b"parent", b"child", b"still"]
    assert [list(folder.iterdir()) for folder in tmp_path.iterdir()] == [[], []]


async def test_the_thread_that_starts_sandboxes_changes_nothing_for_the_others(tmp_path: Path) -> None:
    namespace, mounts = Path("/proc/self/ns/mnt").readlink(), Path("/proc/self/mountinfo").read_text()
    cwd, umask = Path.cwd(), os.umask(0o022)
    os.umask(umask)
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec(mounts=(Mount(tmp_path, "/opt/m", overlay=True),)))
    assert (Path("/proc/self/ns/mnt").readlink(), Path.cwd(), os.umask(umask)) == (namespace, cwd, umask)
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert os.geteuid() == Path("/proc/self").stat().st_uid
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            assert (task / "ns" / "mnt").readlink() == namespace
    await box.close()
    await backend.aclose()


async def test_descriptors_do_not_grow_with_sandboxes(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    source = tmp_path / "source"
    source.mkdir()
    spec = SandboxSpec(mounts=(Mount(source, "/opt/m", overlay=True),), limits=Limits(disk_bytes=8 << 20))
    await (await backend.create(spec)).close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        await (await backend.create(spec)).close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    await backend.aclose()
