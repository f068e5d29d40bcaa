"""Snapshots (and the images they start from): the files of a sandbox, kept and started from again."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivetrain.sandboxes import (
    Mount,
    SandboxBackend,
    SandboxGone,
    SandboxHandle,
    SandboxStartError,
    SandboxUnsupported,
    Snapshot,
)
from tests.conformance.sandbox.inside import sh
from tests.conformance.sandbox.kits.base import Kit

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.needs("snapshot")
async def test_files_come_back_as_they_were(backend: SandboxBackend, kit: Kit, sandbox_root: Path) -> None:
    box = await backend.create(kit.spec(env={"FIRST": "1"}))
    await sh(
        box,
        "mkdir -p d/e; echo one > d/e/f; echo '#!/bin/sh\necho ran' > run; chmod 750 run; ln -s d/e/f ln; ln run hard",
    )
    await box.write(f"{box.home}/.config/naïve 🐍", bytes(range(256)))
    await box.write("/tmp/gone", b"x")
    kept = await box.snapshot()
    assert kept.backend == kit.name
    await sh(box, "echo later > d/e/f; rm run; echo new > new")
    await box.close()
    again = await backend.create(kit.spec(snapshot=kept))
    assert again.id != box.id
    assert await again.read("d/e/f") == b"one\n"
    assert (await again.exec(["./run"])).stdout == b"ran\n"
    assert (await sh(again, "readlink ln; stat -c '%a %h' run; ls; ls /tmp; echo ${FIRST-none}")).stdout.split() == (
        b"d/e/f 750 2 d hard ln run none".split()
    )
    assert await again.read(f"{again.home}/.config/naïve 🐍") == bytes(range(256))
    assert (await sh(again, "echo changed > d/e/f && touch $HOME/x")).exit_code == 0
    third = await backend.create(kit.spec(snapshot=kept))
    assert await third.read("d/e/f") == b"one\n"
    await again.close()
    await third.close()
    assert kit.left(sandbox_root), "it is kept until it is dropped"
    await backend.drop(kept)
    assert kit.left(sandbox_root) == []
    await backend.drop(kept)


@pytest.mark.needs("snapshot")
async def test_a_sandbox_goes_on_after_its_snapshot(backend: SandboxBackend, kit: Kit) -> None:
    """Commands that run are not stopped for good, and two snapshots are two."""
    box = await backend.create(kit.spec())
    job = await box.start(["sh", "-c", "echo up; sleep 2; echo done; exit 3"])
    await box.write("f", b"one")
    first = await box.snapshot()
    await box.write("f", b"two")
    second = await box.snapshot()
    done = await job.wait(30)
    assert (done.exit_code, done.stdout) == (3, b"up\ndone\n")
    for kept, content in ((second, b"two"), (first, b"one")):
        again = await backend.create(kit.spec(snapshot=kept))
        assert await again.read("f") == content
        await backend.drop(kept)
        assert await again.read("f") == content, "a sandbox does not need its snapshot any more"


@pytest.mark.needs("snapshot")
async def test_a_snapshot_of_nothing_is_refused(backend: SandboxBackend, kit: Kit) -> None:
    for ref in ("no-such-snapshot", "../../../etc", "/etc", ""):
        with pytest.raises(SandboxStartError):
            await backend.create(kit.spec(snapshot=Snapshot(kit.name, ref)))
        await backend.drop(Snapshot(kit.name, ref))
    assert Path("/etc/passwd").exists()
    box = await backend.create(kit.spec())
    await box.close()
    with pytest.raises(SandboxGone):
        await box.snapshot()


async def test_a_snapshot_of_another_backend_is_refused(backend: SandboxBackend, kit: Kit) -> None:
    with pytest.raises(SandboxUnsupported):
        await backend.create(kit.spec(snapshot=Snapshot("somebody-elses", "x")))
    with pytest.raises(SandboxUnsupported):
        await backend.drop(Snapshot("somebody-elses", "x"))


@pytest.mark.lacks("snapshot")
async def test_without_snapshots_it_says_so(box: SandboxHandle, kit: Kit) -> None:
    with pytest.raises(SandboxUnsupported):
        await box.snapshot()


@pytest.mark.needs("snapshot", "overlay")
async def test_what_was_written_over_a_mount_is_kept(backend: SandboxBackend, kit: Kit, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_text("host")
    (source / "g").write_text("host")
    mounts = (Mount(source=source, target="/opt/m", overlay=True),)
    box = await backend.create(kit.spec(mounts=mounts))
    await sh(box, "echo mine > /opt/m/f; rm /opt/m/g; echo new > /opt/m/h")
    kept = await box.snapshot()
    again = await backend.create(kit.spec(mounts=mounts, snapshot=kept))
    assert (await sh(again, "ls /opt/m; cat /opt/m/f")).stdout.split() == [b"f", b"h", b"mine"]
    await backend.drop(kept)


@pytest.mark.needs("image")
async def test_an_image_that_is_not_there_is_named(backend: SandboxBackend, kit: Kit) -> None:
    with pytest.raises(SandboxStartError, match="no-such-image"):
        await backend.create(kit.spec(image="drivetrain.invalid/no-such-image:latest"))


@pytest.mark.lacks("image")
async def test_an_image_is_refused(backend: SandboxBackend, kit: Kit) -> None:
    with pytest.raises(SandboxUnsupported):
        await backend.create(kit.spec(image="debian:bookworm"))
