"""Bundles of Claude Code and Codex: locked by hash, only what runs, the program once."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from drivetrain.errors import InfrastructureError, MissingDependency
from swe_rl_agent import bundle_native
from swe_rl_agent.bundle import LOCKS, build_bundle


@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_a_lock_names_hashes_and_no_registry(name: str) -> None:
    packages = json.loads((LOCKS / f"{name}.package-lock.json").read_text())["packages"]
    assert len(packages) == 3  # the root and one program per processor: no launcher, nothing that needs a script
    assert all("integrity" in entry and "resolved" not in entry for path, entry in packages.items() if path)
    assert not any("hasInstallScript" in entry for entry in packages.values())


def test_a_missing_npm_and_another_layout_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="holds no claude"):
        bundle_native._take(tmp_path, {"claude": "bin/claude"}, tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    for name in ("claude-code", "codex"):
        with pytest.raises(MissingDependency, match=rf"npm was not found.*{name}"):
            build_bundle(name, tmp_path)


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "files"),
    [("claude-code", {"bin/claude"}), ("codex", {"bin/codex", "codex-path/rg", "codex-package.json"})],
)
def test_a_bundle_holds_only_what_runs(name: str, files: set[str]) -> None:
    try:
        made = build_bundle(name)
    except (InfrastructureError, MissingDependency) as error:
        pytest.skip(f"the bundle of {name} cannot be built here: {error}")
    assert {path.relative_to(made.path).as_posix() for path in made.path.rglob("*") if path.is_file()} == files


@pytest.mark.real
@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.environ.get("DRIVETRAIN_TEST_REBUILD"), reason="minutes; DRIVETRAIN_TEST_REBUILD=1 runs it")
@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_a_real_rebuild_has_the_same_hash(name: str, tmp_path: Path) -> None:
    assert build_bundle(name, tmp_path).sha256 == build_bundle(name).sha256
