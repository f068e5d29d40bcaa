"""Files in and out: bytes, bounds, and the tricks of an untrusted inside."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from drivetrain.sandboxes import Mount, SandboxBackend, SandboxError, SandboxHandle, SandboxSpec, SandboxStartError

pytestmark = pytest.mark.usefixtures("nothing_left")


def pack(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def pack_members(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    return member, b""


async def test_write_then_read(box: SandboxHandle) -> None:
    data = bytes(range(256)) + b"\r\n\0"
    await box.write("deep/er/ünï 🐍.bin", data, mode=0o750)
    assert await box.read("deep/er/ünï 🐍.bin") == data
    assert await box.read(f"{box.workdir}/deep/er/ünï 🐍.bin") == data
    seen = await box.exec(["stat", "-c", "%a %U", "deep/er/ünï 🐍.bin"])
    assert seen.stdout == b"750 agent\n"
    await box.write("deep/er/ünï 🐍.bin", b"")
    assert await box.read("deep/er/ünï 🐍.bin") == b""
    assert (await box.exec(["ls", "-A", "deep/er"])).stdout.count(b"\n") == 1  # no temporary file stays


async def test_read_errors(box: SandboxHandle) -> None:
    with pytest.raises(FileNotFoundError):
        await box.read("missing")
    with pytest.raises(FileNotFoundError):
        await box.download("missing")
    await box.write("ten", b"0123456789")
    assert await box.read("ten", max_bytes=10) == b"0123456789"
    with pytest.raises(SandboxError, match="more than 9 bytes"):
        await box.read("ten", max_bytes=9)
    with pytest.raises(SandboxError):
        await box.read(box.workdir)


async def test_read_of_a_fifo_or_device_does_not_hang(box: SandboxHandle) -> None:
    await box.exec(["mkfifo", "pipe"])
    for path in ("pipe", "/dev/zero"):
        with pytest.raises(SandboxError, match="not a regular file"):
            await box.read(path)


async def test_write_errors(box: SandboxHandle) -> None:
    for path in ("/usr/new", "/proc/new", box.workdir):
        with pytest.raises(SandboxError):
            await box.write(path, b"x")


async def test_twenty_megabytes_both_ways(box: SandboxHandle) -> None:
    data = os.urandom(20 << 20)
    await box.write("big", data)
    assert await box.read("big") == data
    archive = await box.download(box.workdir)
    await box.upload(archive, "/tmp/copy")
    assert await box.read("/tmp/copy/big") == data


async def test_symlinks_lead_only_to_what_the_inside_sees(box: SandboxHandle, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host only")
    script = 'ln -s "$1" file; ln -s "$2" folder; ln -s /etc/passwd pw'
    await box.exec(["sh", "-c", script, "sh", str(secret), str(tmp_path)])
    for path in ("file", "folder/secret", f"../../../../../../{secret}"):
        with pytest.raises(FileNotFoundError):
            await box.read(path)
    assert b"agent:x:1000" in await box.read("pw")  # the sandbox's own
    with pytest.raises(SandboxError):
        await box.write("folder/new", b"x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["sandboxes", "secret"]
    await box.write("file", b"replaced")
    assert secret.read_text() == "host only"
    assert (await box.exec(["stat", "-c", "%F", "file"])).stdout == b"regular file\n"


async def test_upload_and_download_keep_content_modes_and_links(box: SandboxHandle) -> None:
    script = tarfile.TarInfo("d/run.sh")
    script.mode = 0o755
    await box.upload(
        pack_members(
            (script, b"#!/bin/sh\necho ran\n"), link("d/ln", "run.sh"), link("d/hard", "d/run.sh", tarfile.LNKTYPE)
        ),
        "in/side",
    )
    for name in ("run.sh", "ln", "hard"):
        assert (await box.exec([f"./in/side/d/{name}"])).stdout == b"ran\n"
    with tarfile.open(fileobj=io.BytesIO(await box.download("in/side"))) as archive:
        assert sorted(archive.getnames()) == ["d", "d/hard", "d/ln", "d/run.sh"]
        assert archive.getmember("d/ln").issym()
        assert archive.getmember("d/run.sh").mode & 0o777 == 0o755


async def test_upload_replaces_files_and_links(box: SandboxHandle) -> None:
    await box.exec(["sh", "-c", "mkdir t; echo keep > other; ln -s ../other t/a; echo old > t/b"])
    await box.upload(pack(a=b"new a", b=b"new b"), "t")
    assert (await box.read("t/a"), await box.read("t/b"), await box.read("other")) == (b"new a", b"new b", b"keep\n")


@pytest.mark.parametrize(
    "archive",
    [
        pack(**{"../out": b"x"}),
        pack(**{"/work/out": b"x"}),
        pack(**{"a/../../out": b"x"}),
        pack_members(link("ln", ".."), (tarfile.TarInfo("ln/out"), b"x")),
        pack_members(link("hard", "../victim", tarfile.LNKTYPE)),
        pack_members((tarfile.TarInfo("fifo"), b""), link("dev", "", tarfile.CHRTYPE)),
        b"this is no archive" * 100,
    ],
    ids=["parent", "absolute", "dotdot", "through-link", "hardlink", "device", "garbage"],
)
async def test_upload_refuses_what_leaves_the_target(box: SandboxHandle, archive: bytes) -> None:
    await box.write("victim", b"mine")
    with pytest.raises(SandboxError):
        await box.upload(archive, "target")
    assert (await box.exec(["ls", "-I", "target"])).stdout == b"victim\n"
    assert await box.read("victim") == b"mine"


async def test_download_is_bounded_and_skips_what_is_no_file(box: SandboxHandle) -> None:
    await box.exec(["sh", "-c", "mkdir d; head -c 3000000 /dev/zero > d/zeros; mkfifo d/fifo"])
    with tarfile.open(fileobj=io.BytesIO(await box.download("d"))) as archive:
        assert archive.getnames() == ["zeros"]
    with pytest.raises(SandboxError, match="more than 1000000 bytes"):
        await box.download("d", max_bytes=1_000_000)
    with pytest.raises(SandboxError):
        await box.download("d/zeros")


async def test_mounts(backend: SandboxBackend, tmp_path: Path) -> None:
    (tmp_path / "ro").mkdir()
    (tmp_path / "ro" / "file").write_text("host")
    (tmp_path / "rw").mkdir()
    mounts = (
        Mount(source=tmp_path / "ro", target="/work/vendored"),
        Mount(source=tmp_path / "ro" / "file", target="/opt/single"),
        Mount(source=tmp_path / "rw", target="/data", writable=True),
    )
    box = await backend.create(SandboxSpec(mounts=mounts))
    assert await box.read("vendored/file") == b"host"
    assert await box.read("/opt/single") == b"host"
    done = await box.exec(["sh", "-c", "echo out > /data/new; echo x > vendored/file; echo x > /opt/single"])
    assert done.stderr.count(b"Read-only file system") == 2
    assert (tmp_path / "rw" / "new").read_text() == "out\n"
    assert (tmp_path / "ro" / "file").read_text() == "host"


@pytest.mark.parametrize(
    "target", ["relative", "/a/../usr", "/", "/usr", "/proc", "/.drivetrain/init.py", "/usr/no/such/folder"]
)
async def test_mounts_that_cannot_be(backend: SandboxBackend, tmp_path: Path, target: str) -> None:
    with pytest.raises(SandboxStartError):
        await backend.create(SandboxSpec(mounts=(Mount(source=tmp_path, target=target),)))


async def test_a_missing_mount_source_is_named(backend: SandboxBackend, tmp_path: Path) -> None:
    with pytest.raises(SandboxStartError, match="nowhere"):
        await backend.create(SandboxSpec(mounts=(Mount(source=tmp_path / "nowhere", target="/x"),)))
