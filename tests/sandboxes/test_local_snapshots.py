"""What a local snapshot holds, and that it goes with its owner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.sandboxes import Limits, Mount, SandboxError, SandboxSpec, SandboxStartError, Snapshot
from drivetrain.sandboxes.local import LocalBackend, snapshots
from drivetrain.sandboxes.local import sandbox as local_sandbox
from drivetrain.sandboxes.local.reaper import reap


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


async def test_what_its_user_cannot_read_and_odd_names_are_kept(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec())
    script = r"""
    mkdir -p d/e; echo secret > d/e/f; chmod 000 d/e/f d/e d; printf x > 'new
line'; printf y > "$(printf '\377bytes')"; mkfifo fifo; chmod 1750 .
    """
    assert (await box.exec(shell(script))).exit_code == 0
    kept = await box.snapshot()
    assert (await box.exec(shell("stat -c %a d; echo later > later"))).stdout == b"0\n"
    again = await backend.create(SandboxSpec(snapshot=kept))
    done = await again.exec(
        shell(r"ls -b; stat -c %a d; chmod 700 d d/e; stat -c %a d/e/f; chmod 600 d/e/f; cat d/e/f")
    )
    assert sorted(done.stdout.decode().split()) == ["0", "0", "\\377bytes", "d", "new\\nline", "secret"]
    await backend.drop(kept)
    await backend.aclose()


@pytest.mark.parametrize("staged", [True, False])
async def test_an_overlay_is_kept_as_what_differs(
    tmp_path: Path, staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not staged:
        monkeypatch.setattr(local_sandbox, "why_no_stage", lambda _python: "a test")
    source = tmp_path / "source"
    (source / "gone" / "deep").mkdir(parents=True)
    (source / "gone" / "deep" / "f").touch()
    (source / "same").write_bytes(b"s" * 3_000_000)
    (source / "other").write_text("folder soon")
    (source / "sub").mkdir()
    (source / "sub" / "kept").write_text("kept")
    (source / "touched").write_text("before")
    os.utime(source / "touched", (1, 1))
    spec = SandboxSpec(workdir="/opt/o", mounts=(Mount(source=source, target="/opt/o", overlay=True),))
    backend = LocalBackend(tmp_path / "root")
    box = await backend.create(spec)
    script = """
    rm -r gone; rm other; mkdir other; echo in > other/x; echo new > sub/new; echo home > $HOME/h
    echo 'behind' > touched; truncate -s 6 touched; touch -d @1 touched
    """
    assert (await box.exec(shell(script))).exit_code == 0
    kept = await box.snapshot()
    if staged:
        assert (tmp_path / "root" / kept.ref / "files.tar").stat().st_size < 100_000
    again = await backend.create(SandboxSpec(workdir="/opt/o", mounts=spec.mounts, snapshot=kept))
    done = await again.exec(shell("ls . sub other; cat touched sub/kept $HOME/h; stat -c %s same"))
    assert done.stdout.split() == b".: other same sub touched other: x sub: kept new behindkepthome 3000000".split()
    assert (source / "gone" / "deep" / "f").exists()
    await backend.drop(kept)
    await backend.aclose()


async def test_mounts_below_the_workdir_are_not_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "data").write_bytes(b"x" * 2_000_000)
    backend = LocalBackend(tmp_path / "root")
    box = await backend.create(SandboxSpec(mounts=(Mount(source=tmp_path / "big", target="/work/in/big"),)))
    assert (await box.exec(["cp", "in/big/data", "mine"])).exit_code == 0
    kept = await box.snapshot()
    assert 2_000_000 < (tmp_path / "root" / kept.ref / "files.tar").stat().st_size < 2_100_000
    again = await backend.create(SandboxSpec(snapshot=kept))
    assert sorted((await again.exec(["find", "."])).stdout.split()) == [b".", b"./in", b"./mine"]
    await backend.drop(kept)
    await backend.aclose()


async def test_a_snapshot_that_does_not_fit_starts_nothing(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec())
    await box.write("f", b"x" * 3_000_000)
    kept = await box.snapshot()
    await box.close()
    with pytest.raises(SandboxStartError, match="snapshot"):
        await backend.create(SandboxSpec(snapshot=kept, limits=Limits(file_bytes=1 << 20)))
    assert [entry.name for entry in tmp_path.iterdir()] == [kept.ref]
    await backend.drop(kept)


async def test_a_snapshot_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_BYTES", 1 << 20)
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec())
    await box.write("f", b"x" * 3_000_000)
    with pytest.raises(SandboxError, match="snapshot"):
        await box.snapshot()
    assert [entry.name for entry in tmp_path.iterdir()] == [box.id]
    await backend.aclose()


OWNER = """
import asyncio, sys
from pathlib import Path
from drivetrain.sandboxes import SandboxSpec
from drivetrain.sandboxes.local import LocalBackend
async def main():
    box = await LocalBackend(Path(sys.argv[1])).create(SandboxSpec())
    print((await box.snapshot()).ref)
    await box.close()
asyncio.run(main())
"""


async def test_it_goes_with_its_owner_and_not_before(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec())
    ours = await box.snapshot()
    await box.close()
    done = subprocess.run([sys.executable, "-c", OWNER, str(tmp_path)], capture_output=True, text=True, check=True)  # noqa: ASYNC221
    theirs = done.stdout.strip()
    assert {entry.name for entry in tmp_path.iterdir()} == {ours.ref, theirs}
    assert reap(tmp_path) == [theirs]
    with pytest.raises(SandboxStartError, match="no snapshot"):
        await backend.create(SandboxSpec(snapshot=Snapshot("local", theirs)))
    await backend.drop(Snapshot("local", box.id))  # not a snapshot's name: nothing happens
    await backend.drop(ours)
    assert list(tmp_path.iterdir()) == []
