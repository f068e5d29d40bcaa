"""Sources, cache and derivation."""

from __future__ import annotations

import io
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import msgspec
import pytest

from drivetrain.cache import build_once
from swe_rl_env import BuiltTask, ChecksumMismatch, build_task
from swe_rl_env.errors import BuildError
from swe_rl_env.sources import fetch
from swe_rl_env.sources.unpack import read_archive
from swe_rl_env.tasks.model import Archive


def test_build_once_is_atomic_and_single(tmp_path: Path) -> None:
    calls: list[Path] = []

    def build(folder: Path) -> None:
        calls.append(folder)
        time.sleep(0.05)
        (folder / "file").write_text("x")

    target = tmp_path / "cache" / "entry"
    threads = [threading.Thread(target=build_once, args=(target, build)) for _ in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(calls) == 1
    assert (target / "file").read_text() == "x"
    assert not calls[0].exists()


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError):
        build_once(tmp_path / "entry", build)
    assert [p.name for p in tmp_path.iterdir()] == [".entry.lock"]


def test_other_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(archive: Archive, folder: Path) -> Path:
        path = folder / archive.filename
        path.write_bytes(b"not what was measured")
        return path

    monkeypatch.setattr("swe_rl_env.sources.pypi.download", download)
    archive = Archive(registry="pypi", name="x", version="1", filename="x-1.tar.gz", sha256="0" * 64)
    with pytest.raises(ChecksumMismatch, match="sha256"):
        fetch(archive, tmp_path)
    assert not (tmp_path / "archives" / archive.sha256).exists()


def test_archive_rules(tmp_path: Path) -> None:
    path = tmp_path / "x-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, mode in (
            ("x-1/PKG-INFO", 0o644),
            ("x-1/src/PKG-INFO", 0o644),
            ("x-1/x.egg-info/SOURCES.txt", 0o644),
            ("x-1/run.sh", 0o775),
            ("x-1/.gitignore", 0o600),
        ):
            info = tarfile.TarInfo(name)
            info.size, info.mode = 1, mode
            tar.addfile(info, io.BytesIO(b"x"))
    assert read_archive(path, "pypi") == {
        "src/PKG-INFO": (False, b"x"),
        "run.sh": (True, b"x"),
        ".gitignore": (False, b"x"),
    }
    assert "PKG-INFO" in read_archive(path, "npm")


def test_archive_that_climbs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("x-1/../../etc/passwd"))
    with pytest.raises(BuildError, match="suspicious"):
        read_archive(path, "pypi")


def test_second_build_is_a_cache_hit(xmltodict: BuiltTask) -> None:
    before = {path: path.stat().st_mtime_ns for path in xmltodict.root.rglob("*")}
    again = build_task(xmltodict.task, xmltodict.root.parent.parent)
    assert again.root == xmltodict.root
    assert {path: path.stat().st_mtime_ns for path in again.root.rglob("*")} == before


def test_wrong_commit_id_builds_nothing(xmltodict: BuiltTask) -> None:
    cache = xmltodict.root.parent.parent
    other = msgspec.structs.replace(xmltodict.task, base_commit="0" * 40)
    with pytest.raises(ChecksumMismatch, match="base commit"):
        build_task(other, cache)
    left = f".{xmltodict.task.instance_id}-"  # other tests build other tasks here at the same time
    assert not [p for p in (cache / "tasks").iterdir() if p.name.startswith(left) and ".tmp-" in p.name]


def test_equal_package_sets_share_an_environment(build, xmltodict: BuiltTask) -> None:  # type: ignore[no-untyped-def]
    assert build("pypi__parse-1.20.1").environment.folder == xmltodict.environment.folder


def test_agent_repository_has_one_commit_and_nothing_else(xmltodict: BuiltTask, tmp_path: Path) -> None:
    with tarfile.open(xmltodict.workspace_tar) as tar:
        tar.extractall(tmp_path, filter="data")

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert git("rev-list", "--all").split() == [xmltodict.task.base_commit]
    assert git("tag") == git("remote") == git("stash", "list") == git("reflog") == git("status", "--short") == ""
    assert git("fsck", "--unreachable", "--no-reflogs").strip() == ""
    blobs = git("ls-tree", "-r", "--format=%(objectname)", "HEAD").split()
    kinds = git("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)").splitlines()
    assert {k.split()[0] for k in kinds if k.endswith("blob")} == set(blobs)
