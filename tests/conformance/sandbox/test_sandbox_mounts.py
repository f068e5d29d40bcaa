"""Host folders inside: read-only, writable, copy-on-write."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.errors import ConfigError
from drivetrain.sandboxes import Mount, SandboxBackend, SandboxStartError, SandboxUnsupported
from tests.conformance.sandbox.inside import sh
from tests.conformance.sandbox.kits.base import Kit

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a program, a link, a folder and a file of a strange name."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "run").write_text("#!/bin/sh\necho ran\n")
    (folder / "run").chmod(0o755)
    (folder / "ln").symlink_to("run")
    (folder / "sub" / "naïve 🐍").write_bytes(bytes(range(256)))
    (folder / "data").write_text("host")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.needs("mount")
async def test_a_mounted_folder_is_there_as_it_is(backend: SandboxBackend, kit: Kit, source: Path) -> None:
    box = await backend.create(kit.spec(mounts=(Mount(source=source, target="/work/vendored"),)))
    assert (await box.exec(["vendored/run"])).stdout == b"ran\n"
    assert (await box.exec(["readlink", "vendored/ln"])).stdout == b"run\n"
    assert await box.read("vendored/sub/naïve 🐍") == bytes(range(256))
    assert (await sh(box, "[ -x vendored/data ] || echo plain")).stdout == b"plain\n"


@pytest.mark.needs("mount")
async def test_a_mounted_file_is_there(backend: SandboxBackend, kit: Kit, source: Path) -> None:
    mounts = (Mount(source=source / "data", target="/opt/single"), Mount(source=source / "run", target="/opt/run"))
    box = await backend.create(kit.spec(mounts=mounts))
    assert await box.read("/opt/single") == b"host"
    assert (await box.exec(["/opt/run"])).stdout == b"ran\n"


@pytest.mark.needs("mount")
async def test_a_mount_is_read_only(backend: SandboxBackend, kit: Kit, source: Path) -> None:
    before = contents(source)
    box = await backend.create(kit.spec(mounts=(Mount(source=source, target="/opt/m"),)))
    for script in ("echo x > /opt/m/data", "echo x > /opt/m/new", "rm /opt/m/data", "mv /opt/m/run /opt/m/walk"):
        assert (await sh(box, script)).exit_code != 0, script
    assert await box.read("/opt/m/data") == b"host"
    assert contents(source) == before


@pytest.mark.needs("mount")
async def test_mounts_may_lie_in_each_other(backend: SandboxBackend, kit: Kit, source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("inner")
    mounts = (Mount(source=other, target="/opt/m/sub"), Mount(source=source, target="/opt/m"))
    box = await backend.create(kit.spec(mounts=mounts))
    assert (await box.read("/opt/m/data"), await box.read("/opt/m/sub/file")) == (b"host", b"inner")


@pytest.mark.needs("writable_mount")
async def test_writes_to_a_writable_mount_reach_the_host(backend: SandboxBackend, kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "rw").mkdir(mode=0o777)
    (tmp_path / "rw").chmod(0o777)
    box = await backend.create(kit.spec(mounts=(Mount(source=tmp_path / "rw", target="/data", writable=True),)))
    assert (await sh(box, "echo out > /data/new")).exit_code == 0
    assert (tmp_path / "rw" / "new").read_text() == "out\n"
    (tmp_path / "rw" / "back").write_text("in")
    assert await box.read("/data/back") == b"in"


@pytest.mark.needs("overlay")
async def test_writes_to_an_overlay_stay_inside(backend: SandboxBackend, kit: Kit, source: Path) -> None:
    before = contents(source)
    box = await backend.create(kit.spec(mounts=(Mount(source=source, target="/opt/m", overlay=True),)))
    assert (await box.exec(["/opt/m/run"])).stdout == b"ran\n"
    script = (
        "cd /opt/m && echo changed > data && rm run && mkdir new && echo n > new/f && mv sub moved && chmod 700 ln; ls"
    )
    done = await sh(box, script)
    assert done.stdout.split() == [b"data", b"ln", b"moved", b"new"], done.stderr
    assert await box.read("/opt/m/data") == b"changed\n"
    assert await box.read("/opt/m/moved/naïve 🐍") == bytes(range(256))
    assert contents(source) == before
    await box.close()
    assert contents(source) == before


@pytest.mark.needs("overlay")
async def test_two_overlays_of_one_folder_do_not_meet(backend: SandboxBackend, kit: Kit, source: Path) -> None:
    spec = kit.spec(mounts=(Mount(source=source, target="/opt/m", overlay=True),))
    one, two = await backend.create(spec), await backend.create(spec)
    await one.write("/opt/m/data", b"one")
    await one.write("/opt/m/only-one", b"")
    assert await two.read("/opt/m/data") == b"host"
    assert (await sh(two, "ls /opt/m")).stdout.split() == [b"data", b"ln", b"run", b"sub"]
    await one.close()
    assert await two.read("/opt/m/data") == b"host"


@pytest.mark.needs("overlay")
async def test_an_overlay_may_be_the_workdir(backend: SandboxBackend, kit: Kit, source: Path) -> None:
    spec = kit.spec(workdir="/testbed", mounts=(Mount(source=source, target="/testbed", overlay=True),))
    box = await backend.create(spec)
    assert (await sh(box, "./run && echo x > made && ls")).stdout.split() == [
        b"ran",
        b"data",
        b"ln",
        b"made",
        b"run",
        b"sub",
    ]
    assert not (source / "made").exists()


@pytest.mark.needs("mount")
@pytest.mark.parametrize("target", ["relative", "/a/../usr", "/", "/proc"])
async def test_mounts_that_cannot_be(backend: SandboxBackend, kit: Kit, tmp_path: Path, target: str) -> None:
    with pytest.raises((SandboxStartError, ConfigError)):
        await backend.create(kit.spec(mounts=(Mount(source=tmp_path, target=target),)))


@pytest.mark.needs("mount")
async def test_a_missing_mount_source_is_named(backend: SandboxBackend, kit: Kit, tmp_path: Path) -> None:
    with pytest.raises(SandboxStartError, match="nowhere"):
        await backend.create(kit.spec(mounts=(Mount(source=tmp_path / "nowhere", target="/x"),)))


@pytest.mark.lacks("writable_mount")
async def test_a_writable_mount_is_refused(backend: SandboxBackend, kit: Kit, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnsupported):
        await backend.create(kit.spec(mounts=(Mount(source=tmp_path, target="/data", writable=True),)))


@pytest.mark.lacks("overlay")
async def test_an_overlay_is_refused(backend: SandboxBackend, kit: Kit, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnsupported):
        await backend.create(kit.spec(mounts=(Mount(source=tmp_path, target="/data", overlay=True),)))
