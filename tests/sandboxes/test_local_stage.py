"""Root's sandboxes: nobody's identity on the host, root's files all the same, overlays and disks that end with them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drivetrain.sandboxes import Limits, Mount, SandboxSpec, SandboxStartError
from drivetrain.sandboxes.local import LocalBackend, launcher
from drivetrain.sandboxes.local import sandbox as local_sandbox
from drivetrain.sandboxes.local.disk import can_bound
from drivetrain.sandboxes.local.interpreter import find_interpreter
from drivetrain.sandboxes.local.owner import HOST_UID, id_map
from drivetrain.sandboxes.local.reaper import reap

needs_stage = pytest.mark.skipif(
    launcher.why_no_stage(find_interpreter().executable) is not None, reason="no stage can be set here"
)


def owners(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {word for line in lines if line.startswith(("Uid:", "Gid:", "Groups:")) for word in line.split()[1:]}


def folder_of_root(parent: Path) -> Path:
    """Readable by root only, from its parent on."""
    folder = parent / "private" / "a,b:c\\d"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o700)
    (folder / "f").write_text("host\n")
    (folder / "f").chmod(0o600)
    (folder / "deep").mkdir()
    (folder / "deep" / "g").write_text("g\n")
    return folder


def loops(root: Path) -> list[str]:
    return [str(path) for path in Path("/sys/block").glob("loop*/loop/backing_file") if str(root) in path.read_text()]


@needs_stage
async def test_no_process_of_a_sandbox_is_root_on_the_host(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec())
    job = await box.start(["sleep", "4721"])
    pid, seen = job.pid, []
    while pid != os.getpid():
        seen.append(pid)
        assert owners(pid) == {str(HOST_UID)}, pid
        pid = int(next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "PPid" in line)[5:])
    assert len(seen) == 4  # the command, its keeper, PID 1, bubblewrap
    assert (await box.exec(["id", "-u"])).stdout == b"1000\n"
    assert os.getuid() == 0
    await backend.aclose()


@needs_stage
async def test_what_only_root_can_read_is_read_inside_and_what_is_made_is_roots(tmp_path: Path) -> None:
    source = folder_of_root(tmp_path)
    (source / "theirs").write_text("x")
    (source / "theirs").chmod(0o600)
    os.chown(source / "theirs", 1001, 1001)
    backend = LocalBackend(tmp_path / "root")
    mounts = (
        Mount(source=source, target="/opt/ro"),
        Mount(source=source, target="/opt/rw", writable=True),
        Mount(source=source / "f", target="/opt/file"),
    )
    box = await backend.create(SandboxSpec(mounts=mounts))
    done = await box.exec(
        ["sh", "-c", "cat /opt/ro/f /opt/file; echo made > /opt/rw/made; mkdir /opt/rw/dir; echo w > w"]
    )
    assert (done.exit_code, done.stdout) == (0, b"host\nhost\n"), done
    refused = await box.exec(["sh", "-c", "cat /opt/ro/theirs; touch /opt/ro/x; chown 0 /opt/rw/made"])
    assert (refused.stdout, refused.stderr.count(b"\n")) == (b"", 3)
    for made in (source / "made", source / "dir", tmp_path / "root" / box.id / "work" / "w"):
        assert (made.stat().st_uid, made.stat().st_gid) == (0, 0)
    assert (source / "theirs").stat().st_uid == 1001
    await backend.aclose()


@needs_stage
async def test_a_mount_that_cannot_be_staged_is_still_mounted_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = LocalBackend(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # procfs has no owners to exchange
            box = await backend.create(SandboxSpec(mounts=(Mount(source=Path("/proc/version"), target="/opt/v"),)))
            assert (await box.exec(["cat", "/opt/v"])).stdout.startswith(b"Linux")
    assert ["run as root outside" in record.message for record in caplog.records] == [True]
    plain = await backend.create(SandboxSpec())
    job = await plain.start(["sleep", "4721"])
    assert owners(job.pid) == {str(HOST_UID)}
    await backend.aclose()


@pytest.mark.parametrize("staged", [pytest.param(True, marks=needs_stage), False])
async def test_an_overlay_keeps_the_host_as_it_is(
    tmp_path: Path, staged: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not staged:
        monkeypatch.setattr(local_sandbox, "why_no_stage", lambda _python: "a test")
    source = folder_of_root(tmp_path)
    (source / "ln").symlink_to("f")
    os.mkfifo(source / "fifo")
    backend = LocalBackend(tmp_path / "root")
    spec = SandboxSpec(workdir="/opt/o", mounts=(Mount(source=source, target="/opt/o", overlay=True),))
    with caplog.at_level(logging.WARNING):
        box, other = await backend.create(spec), await backend.create(spec)
    assert [record.message for record in caplog.records if "copies" in record.message] == (
        [] if staged else ["overlay mounts are copies here: there is no stage to mount an overlay on"]
    )
    done = await box.exec(["sh", "-c", "cat ln; echo mine > f; rm -r deep; mkdir deep; mv f moved; ls . deep"])
    assert done.stdout.split()[:1] == [b"host"]
    assert b"moved" in done.stdout
    assert (await other.exec(["cat", "f", "deep/g"])).stdout == b"host\ng\n"
    assert (source / "f").read_text() == "host\n"
    assert sorted(entry.name for entry in source.iterdir()) == ["deep", "f", "fifo", "ln"]
    await backend.aclose()
    assert list((tmp_path / "root").iterdir()) == []


async def test_an_overlay_is_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    backend = LocalBackend(tmp_path / "root")
    with pytest.raises(SandboxStartError, match="no folder"):
        await backend.create(SandboxSpec(mounts=(Mount(source=tmp_path / "f", target="/opt/f", overlay=True),)))
    await backend.aclose()


@needs_stage
@pytest.mark.skipif(not can_bound(), reason="no loop devices")
async def test_the_disk_limit_holds_overlays_too_and_its_disk_ends_with_the_sandbox(tmp_path: Path) -> None:
    source = folder_of_root(tmp_path)
    backend = LocalBackend(tmp_path / "root")
    mounts = (Mount(source=source, target="/opt/o", overlay=True),)
    box = await backend.create(SandboxSpec(mounts=mounts, limits=Limits(disk_bytes=16 << 20)))
    assert len(loops(tmp_path)) == 1
    done = await box.exec(["sh", "-c", "head -c 10M /dev/zero > f && head -c 10M /dev/zero > /opt/o/f"])
    assert b"No space left" in done.stderr
    assert sum(path.stat().st_blocks * 512 for path in (tmp_path / "root").rglob("*") if path.is_file()) < 20 << 20
    await box.close()
    assert loops(tmp_path) == []
    with pytest.raises(SandboxStartError, match="too little"):
        await backend.create(SandboxSpec(limits=Limits(disk_bytes=1000)))
    await backend.aclose()


OWNER = """
import asyncio, os, sys
from pathlib import Path
from drivetrain.sandboxes import Limits, Mount, SandboxSpec
from drivetrain.sandboxes.local import LocalBackend
async def main():
    mounts = (Mount(source=Path(sys.argv[2]), target="/opt/o", overlay=True),)
    spec = SandboxSpec(mounts=mounts, limits=Limits(disk_bytes=16 << 20))
    box = await LocalBackend(Path(sys.argv[1])).create(spec)
    await box.exec(["sh", "-c", "echo x > /opt/o/f; (setsid sleep 4722 &)"])
    print("up", flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


@needs_stage
@pytest.mark.skipif(not can_bound(), reason="no loop devices")
def test_a_killed_owner_leaves_no_mount_and_no_loop_device(tmp_path: Path) -> None:
    source = folder_of_root(tmp_path)
    root = tmp_path / "root"
    done = subprocess.run([sys.executable, "-c", OWNER, str(root), str(source)], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-9, b"up\n"), done.stderr.decode()
    assert len(reap(root)) == 1
    assert list(root.iterdir()) == []
    until = time.monotonic() + 60
    while loops(tmp_path):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert (source / "f").read_text() == "host\n"


async def test_without_a_way_to_bound_the_disk_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local_sandbox, "can_bound", lambda: False)
    backend = LocalBackend(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await backend.create(SandboxSpec(limits=Limits(disk_bytes=16 << 20)))
    assert sum("disk limit" in record.message for record in caplog.records) == 1
    await backend.aclose()


def test_the_map_exchanges_two_and_covers_all() -> None:
    ranges = [tuple(map(int, line.split())) for line in id_map().splitlines()]
    where = {(first, shown) for first, shown, _ in ranges}
    assert {(0, HOST_UID), (HOST_UID, 0)} <= where
    assert sum(count for _, _, count in ranges) == 2**32 - 1
