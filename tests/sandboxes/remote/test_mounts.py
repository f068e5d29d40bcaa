"""What is packed for a cloud sandbox."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from drivetrain.sandboxes import Mount, SandboxStartError, SandboxUnsupported
from drivetrain.sandboxes.remote.mounts import pack


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_text("one")
    os.utime(tmp_path / "a" / "f", (1, 1))
    first, again = (pack(Mount(source=tmp_path / "a", target="/opt/x")) for _ in range(2))
    assert first.digest == again.digest
    assert first.marker == again.marker != pack(Mount(source=tmp_path / "a", target="/opt/y")).marker
    (tmp_path / "a" / "f").write_text("two")
    assert pack(Mount(source=tmp_path / "a", target="/opt/x")).digest != first.digest


def test_what_only_its_owner_reads_is_readable_inside(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh")
    (tmp_path / "tool").chmod(0o700)
    packed = pack(Mount(source=tmp_path, target="/opt/x"))
    with packed.content() as content, tarfile.open(fileobj=io.BytesIO(bytes(content))) as archive:
        member = archive.getmember("tool")
    assert (member.mode & 0o777, member.uid, member.uname) == (0o755, 0, "")


@pytest.mark.parametrize(
    "target", ["relative", "/a/../b", "/", "/usr", "/usr/lib/x", "/proc/x", "/var/lib/drivetrain/x"]
)
def test_targets_that_cannot_be(tmp_path: Path, target: str) -> None:
    with pytest.raises(SandboxStartError, match="Nothing can be mounted"):
        pack(Mount(source=tmp_path, target=target))


def test_writable_is_unsupported_and_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnsupported, match="writable"):
        pack(Mount(source=tmp_path, target="/opt/x", writable=True))
    with pytest.raises(SandboxStartError, match="nowhere"):
        pack(Mount(source=tmp_path / "nowhere", target="/opt/x"))
