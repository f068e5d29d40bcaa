"""Archives that unpack to more than they are, or to somewhere else.

What every sandbox backend does with an upload that leaves its target is in ``tests/conformance/sandbox``, what a
collected checkout may hold in ``tests/swe_rl_env/test_patch.py``.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swe_rl_agent import bundle_fetch
from swe_rl_env.building.image import _files
from swe_rl_env.errors import BuildError, PatchRejected
from swe_rl_env.sources.unpack import read_archive
from swe_rl_env.work.patch import PatchLimits, _git_folder, _read_tree

MB = 1 << 20


def sparse(name: str, size: int) -> bytes:
    """A member of a kilobyte that says it is ``size`` zero bytes (the sparse form of GNU tar)."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def archive(*members: Any) -> bytes:
    """An uncompressed tar; raw members first."""
    buffer = io.BytesIO()
    buffer.write(b"".join(one for one in members if isinstance(one, bytes)))
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (one for one in members if not isinstance(one, bytes)):
            info = tarfile.TarInfo(name)
            if isinstance(data, bytes):
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            else:
                info.type, info.linkname = data
                tar.addfile(info)
    return buffer.getvalue()


def test_a_sparse_file_of_a_checkout() -> None:
    """Also in the place of a file of the base commit, which may be of any size."""
    limits = PatchLimits(tree_bytes=MB)
    entries: Any = {b"big": SimpleNamespace()}
    with pytest.raises(PatchRejected) as error:
        _read_tree(archive(sparse("big", 1 << 32)), entries, limits)
    assert error.value.reason == "workspace_too_large"
    files, left_out = _read_tree(archive(sparse("new", 1 << 32), ("small", b"x")), {}, limits)
    assert list(files) == [b"small"] and [name for name, _ in left_out] == ["new"]


def test_hard_links_repeat_a_file_of_a_checkout() -> None:
    links = [(f"copy{number}", (tarfile.LNKTYPE, "one")) for number in range(50)]
    with pytest.raises(PatchRejected) as error:
        _read_tree(archive(("one", b"x" * 100_000), *links), {}, PatchLimits(tree_bytes=MB))
    assert error.value.reason == "workspace_too_large"
    files, _ = _read_tree(archive(("one", b"x" * 100_000), *links[:5]), {}, PatchLimits(tree_bytes=MB))
    assert len(files) == 6


def test_hard_links_and_sparse_files_of_an_images_checkout() -> None:
    links = [(f"copy{number}", (tarfile.LNKTYPE, "one")) for number in range(50)]
    assert len(_files(archive(("one", b"x" * 100_000), *links[:9]), MB)) == 10
    for bomb in (archive(("one", b"x" * 100_000), *links), archive(sparse("big", 1 << 32))):
        with pytest.raises(BuildError, match=f"unpacks to more than {MB} bytes"):
            _files(bomb, MB)
    with pytest.raises(BuildError, match="cannot be read"):
        _files(archive(("copy", (tarfile.LNKTYPE, "nowhere"))), MB)


def test_a_sparse_file_of_a_git_folder_is_not_looked_at() -> None:
    assert _git_folder(archive(sparse(".git/config", 8 * MB - 1), (".git/HEAD", b"ref"))) == {"HEAD": b"ref"}


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_source_archive_that_is_a_bomb(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "bomb.tar"
    with tarfile.open(path, mode) as tar:
        for name in ("top/a", "top/b", "top/c"):
            info = tarfile.TarInfo(name)
            info.size = MB
            tar.addfile(info, io.BytesIO(bytes(MB)))
    assert path.stat().st_size < 20_000
    with pytest.raises(BuildError, match="more than"):
        read_archive(path, "npm", max_bytes=2 * MB)
    assert len(read_archive(path, "npm", max_bytes=3 * MB)) == 3


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "top/../../evil", "top/a/../../../evil"])
def test_a_source_archive_that_leaves_its_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / "evil.tar"
    path.write_bytes(archive(("top/a", b"x"), (name, b"x")))
    with pytest.raises(BuildError, match="suspicious"):
        read_archive(path, "pypi")


def test_links_of_a_source_archive_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "links.tar"
    links = [("top/b", (tarfile.SYMTYPE, "/etc/passwd")), ("top/c", (tarfile.LNKTYPE, "top/a"))]
    path.write_bytes(archive(("top/a", b"x"), *links))
    assert list(read_archive(path, "pypi")) == ["a"]


@pytest.mark.parametrize("member", [("../evil", b"x"), ("package/ln", (tarfile.SYMTYPE, "/etc")), ("/tmp/evil", b"x")])
def test_a_package_of_a_bundle_whose_archive_leaves_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: Any
) -> None:
    """It has the locked hash and still unpacks below its folder or not at all (tarfile's ``data`` filter)."""
    evil = archive(("package/a", b"x"), member)
    monkeypatch.setattr(bundle_fetch, "find_npm", lambda _: "npm")
    monkeypatch.setattr(bundle_fetch, "run_tool", lambda *_, cwd, what: (cwd / "p.tgz").write_bytes(evil))
    digest = bundle_fetch.base64.b64encode(bundle_fetch.hashlib.sha512(evil).digest()).decode()
    locked = bundle_fetch.Locked(version="1", integrity=f"sha512-{digest}")
    with contextlib.suppress(tarfile.FilterError, ValueError):
        bundle_fetch.fetch("p", locked, tmp_path / "into")
    assert not (tmp_path / "evil").exists() and not Path("/tmp/evil").exists()
    assert not list((tmp_path / "into").rglob("ln"))
