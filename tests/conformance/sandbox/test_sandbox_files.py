"""Files in and out: bytes, bounds, and the tricks of an untrusted inside."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from drivetrain.sandboxes import SandboxError, SandboxHandle
from tests.conformance.sandbox.inside import sh

pytestmark = pytest.mark.asyncio(loop_scope="module")


def pack(**files: bytes) -> bytes:
    return pack_members(*((tarfile.TarInfo(name), data) for name, data in files.items()))


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
    seen = await sh(box, "stat -c '%a %u' deep/er/*; echo 750 $(id -u)")
    assert len(set(seen.stdout.splitlines())) == 1, seen.stdout
    await box.write("deep/er/ünï 🐍.bin", b"")
    assert await box.read("deep/er/ünï 🐍.bin") == b""
    assert (await box.exec(["ls", "-A", "deep/er"])).stdout.count(b"\n") == 1  # no temporary file stays


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o400])
async def test_a_written_file_has_the_mode(box: SandboxHandle, mode: int) -> None:
    await box.write("f", b"old", mode=0o644)
    await box.write("f", b"new", mode=mode)
    assert (await box.exec(["stat", "-c", "%a", "f"])).stdout == b"%o\n" % mode
    assert await box.read("f") == b"new"


@pytest.mark.parametrize("name", ["-rf", "a b", "new\nline", "quo'te\"", "$HOME", "*", "tab\t", ".hidden", "x" * 200])
async def test_any_name_is_a_name(box: SandboxHandle, name: str) -> None:
    await box.write(f"d/{name}", b"content")
    assert await box.read(f"d/{name}") == b"content"
    await box.upload(pack(**{name: b"uploaded"}), "d")
    assert await box.read(f"d/{name}") == b"uploaded"
    assert (await box.exec(["ls", "-A", "--zero", "d"])).stdout.decode() == f"{name}\0"


async def test_a_name_that_is_no_unicode(box: SandboxHandle) -> None:
    name = os.fsdecode(b"caf\xe9")
    await box.write(name, b"latin")
    assert await box.read(name) == b"latin"
    assert (await sh(box, "printf 'caf\\351' | xargs cat")).stdout == b"latin"
    with tarfile.open(fileobj=io.BytesIO(await box.download(box.workdir))) as archive:
        assert archive.getnames() == [name]


async def test_read_errors(box: SandboxHandle) -> None:
    with pytest.raises(FileNotFoundError):
        await box.read("missing")
    with pytest.raises(FileNotFoundError):
        await box.read("missing/below")
    with pytest.raises(FileNotFoundError):
        await box.download("missing")
    await box.write("ten", b"0123456789")
    assert await box.read("ten", max_bytes=10) == b"0123456789"
    with pytest.raises(SandboxError, match="more than 9 bytes"):
        await box.read("ten", max_bytes=9)
    with pytest.raises(SandboxError):
        await box.read(box.workdir)
    await box.write("secret", b"x", mode=0o000)
    with pytest.raises(SandboxError):
        await box.read("secret")


async def test_read_of_a_fifo_or_device_does_not_hang(box: SandboxHandle) -> None:
    await box.exec(["mkfifo", "pipe"])
    for path in ("pipe", "/dev/zero"):
        with pytest.raises(SandboxError, match="not a regular file"):
            await asyncio.wait_for(box.read(path), 20)


async def test_write_errors(box: SandboxHandle) -> None:
    await box.write("plain", b"")
    for path in ("/usr/new", "/proc/new", box.workdir, "plain/below"):
        with pytest.raises(SandboxError):
            await box.write(path, b"x")


async def test_a_file_is_replaced_whole_or_not_at_all(box: SandboxHandle) -> None:
    """Whoever reads while a file is replaced sees the old or the new content."""
    old, new = b"a" * 500_000, b"b" * 500_000
    await box.write("f", old)
    watch = "for i in $(seq 60); do wc -c < f; done; sort -u < f | fold -w1 | sort -u | tr -d '\\n'"
    watching = asyncio.create_task(box.exec(["sh", "-c", watch], timeout_s=30))
    for _ in range(5):
        await box.write("f", new)
        await box.write("f", old)
    done = await watching
    assert set(done.stdout.split()) <= {b"500000", b"a", b"b"}, done.stdout[-200:]


async def test_a_hundred_megabytes_both_ways(box: SandboxHandle) -> None:
    """And memory of the owner stays within a few copies of it."""
    data = os.urandom(1 << 20) * 100
    tracemalloc.start()
    try:
        await box.write("big", data)
        seen = (await box.exec(["sha256sum", "big"])).stdout.split()[0].decode()
        assert seen == hashlib.sha256(data).hexdigest()
        back = await box.read("big", max_bytes=len(data))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert back == data
    assert peak < 4.5 * len(data)
    await box.exec(["rm", "big"])


async def test_a_hundred_megabytes_as_archives(box: SandboxHandle) -> None:
    files = {f"d{i % 7}/f{i}": os.urandom(1 << 16) * 16 for i in range(100)}
    await box.upload(pack(**files), "tree")
    with tarfile.open(fileobj=io.BytesIO(await box.download("tree"))) as archive:
        members = {member.name: member for member in archive if member.isfile()}
        assert set(members) == set(files)
        for name, data in files.items():
            content = archive.extractfile(members[name])
            assert content is not None
            assert content.read() == data
    await box.exec(["rm", "-r", "tree"])


async def test_many_small_files(box: SandboxHandle) -> None:
    files = {f"dir{i % 20}/file-{i}": b"%d" % i for i in range(800)}
    await box.upload(pack(**files), "many")
    assert (await sh(box, "find many -type f | wc -l")).stdout == b"800\n"
    with tarfile.open(fileobj=io.BytesIO(await box.download("many"))) as archive:
        assert sum(member.isfile() for member in archive) == 800


async def test_symlinks_lead_only_to_what_the_inside_sees(box: SandboxHandle, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host only")
    script = 'ln -s "$1" file; ln -s "$2" folder; ln -s /etc/passwd pw; ln -s loop loop'
    await box.exec(["sh", "-c", script, "sh", str(secret), str(tmp_path)])
    for path in ("file", "folder/secret", f"../../../../../../{secret}"):
        with pytest.raises(FileNotFoundError):
            await box.read(path)
    with pytest.raises(SandboxError):
        await box.read("loop")
    assert await box.read("pw") == (await box.exec(["cat", "/etc/passwd"])).stdout  # the sandbox's own
    assert await box.read("pw") != Path("/etc/passwd").read_bytes()
    with pytest.raises(SandboxError):
        await box.write("folder/new", b"x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["secret"]
    await box.write("file", b"replaced")
    assert secret.read_text() == "host only"
    assert (await box.exec(["stat", "-c", "%F", "file"])).stdout == b"regular file\n"


async def test_upload_and_download_keep_content_modes_and_links(box: SandboxHandle) -> None:
    script = tarfile.TarInfo("d/run.sh")
    script.mode = 0o755
    folder = tarfile.TarInfo("empty")
    folder.type, folder.mode = tarfile.DIRTYPE, 0o750
    await box.upload(
        pack_members(
            (script, b"#!/bin/sh\necho ran\n"),
            link("d/ln", "run.sh"),
            link("d/hard", "d/run.sh", tarfile.LNKTYPE),
            link("d/dangling", "nowhere"),
            (folder, b""),
        ),
        "in/side",
    )
    for name in ("run.sh", "ln", "hard"):
        assert (await box.exec([f"./in/side/d/{name}"])).stdout == b"ran\n"
    with tarfile.open(fileobj=io.BytesIO(await box.download("in/side"))) as archive:
        assert sorted(archive.getnames()) == ["d", "d/dangling", "d/hard", "d/ln", "d/run.sh", "empty"]
        assert archive.getmember("d/ln").linkname == "run.sh"
        assert archive.getmember("d/dangling").linkname == "nowhere"
        assert archive.getmember("empty").isdir()
        modes = {archive.getmember(name).mode & 0o777 for name in ("d/run.sh", "d/hard")}
        assert modes == {0o755}
        assert archive.getmember("empty").mode & 0o777 == 0o750


async def test_an_archive_says_nothing_of_users(box: SandboxHandle) -> None:
    """A download is the same whoever made the files; an upload belongs to the sandbox's user."""
    member = tarfile.TarInfo("f")
    member.uid, member.gid, member.uname = 4242, 4242, "stranger"
    await box.upload(pack_members((member, b"x")), "own")
    assert (await sh(box, "[ $(stat -c %u own/f) = $(id -u) ] && echo mine")).stdout == b"mine\n"
    with tarfile.open(fileobj=io.BytesIO(await box.download("own"))) as archive:
        found = archive.getmember("f")
        assert (found.uid, found.gid) == (0, 0)


async def test_an_empty_archive_makes_the_folder(box: SandboxHandle) -> None:
    await box.upload(pack(), "empty/folder")
    with tarfile.open(fileobj=io.BytesIO(await box.download("empty/folder"))) as archive:
        assert archive.getnames() == []


async def test_upload_replaces_files_and_links(box: SandboxHandle) -> None:
    await sh(box, "mkdir t; echo keep > other; ln -s ../other t/a; echo old > t/b; echo stays > t/c")
    await box.upload(pack(a=b"new a", b=b"new b"), "t")
    contents = [await box.read(path) for path in ("t/a", "t/b", "t/c", "other")]
    assert contents == [b"new a", b"new b", b"stays\n", b"keep\n"]


async def test_long_names_and_deep_folders_in_archives(box: SandboxHandle) -> None:
    name = "/".join(["folder-with-a-long-name"] * 12) + "/" + "f" * 150
    await box.upload(pack(**{name: b"deep"}), "long")
    assert await box.read(f"long/{name}") == b"deep"
    with tarfile.open(fileobj=io.BytesIO(await box.download("long"))) as archive:
        assert name in archive.getnames()


@pytest.mark.parametrize(
    "archive",
    [
        pack(**{"../out": b"x"}),
        pack(**{"/tmp/out": b"x"}),
        pack(**{"a/../../out": b"x"}),
        pack_members(link("ln", ".."), (tarfile.TarInfo("ln/out"), b"x")),
        pack_members(link("ln", "/tmp"), (tarfile.TarInfo("ln/out"), b"x")),
        pack_members(link("hard", "../victim", tarfile.LNKTYPE)),
        pack_members(link("dev", "", tarfile.CHRTYPE)),
        pack_members(link("pipe", "", tarfile.FIFOTYPE)),
        b"this is no archive" * 100,
        pack(a=b"x" * 5000)[:2000],
    ],
    ids=["parent", "absolute", "dotdot", "link", "absolute-link", "hardlink", "device", "fifo", "garbage", "cut-off"],
)
async def test_upload_refuses_what_leaves_the_target(box: SandboxHandle, archive: bytes) -> None:
    await box.write("victim", b"mine")
    with pytest.raises(SandboxError):
        await box.upload(archive, "target")
    assert (await box.exec(["ls", "-I", "target"])).stdout == b"victim\n"
    assert (await box.exec(["ls", "-A", "/tmp"])).stdout == b""
    assert await box.read("victim") == b"mine"


async def test_download_is_bounded_and_skips_what_is_no_file(box: SandboxHandle) -> None:
    await sh(box, "mkdir d; head -c 3000000 /dev/zero > d/zeros; mkfifo d/fifo")
    with tarfile.open(fileobj=io.BytesIO(await box.download("d"))) as archive:
        assert archive.getnames() == ["zeros"]
    with pytest.raises(SandboxError, match="more than 1000000 bytes"):
        await box.download("d", max_bytes=1_000_000)
    with pytest.raises(SandboxError):
        await box.download("d/zeros")


async def test_files_move_in_parallel(box: SandboxHandle) -> None:
    await asyncio.gather(*(box.write(f"p/{i}", b"%d" % i * 50_000) for i in range(12)))
    contents = await asyncio.gather(*(box.read(f"p/{i}") for i in range(12)))
    assert contents == [b"%d" % i * 50_000 for i in range(12)]


async def test_files_do_not_use_programs_of_the_inside(box: SandboxHandle) -> None:
    """An agent that puts its own tar, cat or python first on the PATH does not get to forge what graders read."""
    for name in ("tar", "cat", "python3", "base64", "sh", "dd", "mv", "mkdir"):
        await box.write(f"{box.home}/bin/{name}", b"#!/bin/sh\necho forged\n", mode=0o755)
    await box.write(f"{box.home}/.profile", b"PATH=$HOME/bin:$PATH; echo forged\n")
    await box.write("real", b"content")
    assert await box.read("real") == b"content"
    with tarfile.open(fileobj=io.BytesIO(await box.download(box.workdir))) as archive:
        assert archive.getnames() == ["real"]
