"""Bundles of one archive: only the locked bytes are unpacked, and nothing of them runs while they are fetched."""

from __future__ import annotations

import base64
import hashlib
import io
import platform
import tarfile
from pathlib import Path

import msgspec
import pytest

from drivetrain.errors import ConfigError, InfrastructureError
from swe_rl_agent import bundle_npm
from swe_rl_agent.bundle import LOCKS, RECIPES
from swe_rl_agent.bundle_fetch import Locked, fetch
from swe_rl_agent.bundle_npm import GEMINI, OPENCODE, QWEN


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locked:
    """An npm that delivers a package with one program; returns what a lock would say of it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        text = b"#!/bin/sh\necho toy 1.2.3\n"
        entry = tarfile.TarInfo("package/bin/toy")
        entry.size, entry.mode = len(text), 0o755
        tar.addfile(entry, io.BytesIO(text))
    stored = tmp_path / "toy.tgz"
    stored.write_bytes(data.getvalue())
    npm = tmp_path / "tools" / "npm"
    npm.parent.mkdir()
    npm.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncp {stored} toy-1.2.3.tgz\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:/usr/bin:/bin")
    digest = base64.b64encode(hashlib.sha512(data.getvalue()).digest()).decode()
    return Locked(version="1.2.3", integrity=f"sha512-{digest}")


def test_the_locked_archive_is_unpacked_without_scripts(archive: Locked, tmp_path: Path) -> None:
    folder = fetch("toy", archive, tmp_path / "into")
    assert (folder / "bin" / "toy").read_text().startswith("#!/bin/sh")
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["package"]
    assert (tmp_path / "asked").read_text().split() == ["pack", "--ignore-scripts", "--loglevel=error", "toy@1.2.3"]


def test_other_bytes_are_refused_before_they_are_unpacked(archive: Locked, tmp_path: Path) -> None:
    wrong = msgspec.structs.replace(archive, integrity="sha512-AAAA")
    with pytest.raises(InfrastructureError, match=r"toy@1\.2\.3 is not the locked archive"):
        fetch("toy", wrong, tmp_path / "into")
    assert [path.suffix for path in (tmp_path / "into").iterdir()] == [".tgz"]


@pytest.mark.parametrize(
    ("name", "machine", "missing", "there"),
    [
        ("opencode", "aarch64", "package", "x86_64"),
        ("claude-code", "riscv64", "package", "x86_64, aarch64"),
        ("codex", "riscv64", "package", "x86_64, aarch64"),
        ("gemini-cli", "riscv64", "Node", "x86_64, aarch64"),
        ("qwen-code", "riscv64", "Node", "x86_64, aarch64"),
        ("pi", "riscv64", "Node", "x86_64, aarch64"),
    ],
)
def test_a_processor_without_a_locked_package_is_named(
    name: str, machine: str, missing: str, there: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before anything is downloaded."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    said = f"{name} bundle does not run on {machine}: its lock names no {missing} for it.*{there}"
    with pytest.raises(ConfigError, match=said):
        RECIPES[name].build(tmp_path, tmp_path, "", lambda _line: pytest.fail("it went on"))


@pytest.mark.parametrize("agent", [GEMINI, QWEN, OPENCODE], ids=lambda agent: agent.name)
def test_every_package_is_locked_to_the_version_of_its_recipe(agent: bundle_npm.NpmAgent) -> None:
    lock = msgspec.json.decode((LOCKS / f"{agent.name}.json").read_bytes(), type=dict[str, Locked])
    wanted = set(agent.packages.values()) | (set() if agent.native else set(bundle_npm.NODE_PACKAGES.values()))
    assert set(lock) == wanted
    assert all(locked.integrity.startswith("sha512-") for locked in lock.values())
    assert {lock[package].version for package in agent.packages.values()} == {RECIPES[agent.name].version}
