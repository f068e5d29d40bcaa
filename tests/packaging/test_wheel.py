"""The wheel: it builds, holds every file that the packages read, and works where the source tree is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("drivetrain", "swe_rl_agent", "swe_rl_env")
NOT_SHIPPED: frozenset[str] = frozenset()


def run(*command: str | Path, cwd: Path, **options: Any) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=200, check=False, **options
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the tree and nothing left in the tree gets in."""
    copy = tmp_path_factory.mktemp("source")
    tracked = run("git", "ls-files", "-z", "src", "pyproject.toml", "README.md", "LICENSE", cwd=ROOT).split("\0")
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
    run(*pip, "--no-build-isolation", "-w", copy / "dist", ".", cwd=copy)
    (built,) = (copy / "dist").glob("drivetrain-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of a new virtual environment with the wheel; what it depends on is lent by this one."""
    place = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "-q", "--no-deps", "--no-index", wheel, cwd=place)
    (site,) = (place / "lib").glob("python3*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # a path only: no editable install of ours
    return place / "bin"


def test_every_tracked_file_of_the_packages_is_in_it(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    tracked = {name.removeprefix("src/") for name in run("git", "ls-files", "-z", "src", cwd=ROOT).split("\0") if name}
    wanted = {name for name in tracked if (ROOT / "src" / name).is_file()} - NOT_SHIPPED
    assert wanted <= inside, sorted(wanted - inside)
    assert {f"{package}/py.typed" for package in PACKAGES} <= inside
    assert not [name for name in inside if "__pycache__" in name or name.startswith(("tests", "examples"))]


def test_it_works_away_from_the_source(installed: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def drivetrain(*arguments: str) -> str:
        return run(installed / "drivetrain", *arguments, cwd=tmp_path, env=environment)

    where = "import drivetrain, swe_rl_agent, swe_rl_env; print(drivetrain.__file__)"
    assert str(installed.parent) in run(installed / "python", "-c", where, cwd=tmp_path, env=environment)
    assert "rollout" in drivetrain("--help")
    assert len(json.loads(drivetrain("agents", "ls", "--json"))) == 7
    assert len(json.loads(drivetrain("tasks", "ls", "--json"))) == 31


@pytest.mark.real
def test_doctor_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    checks = json.loads(run(installed / "drivetrain", "doctor", "--json", cwd=tmp_path))
    assert {check["name"]: check["verdict"] for check in checks}["sandbox local"] == "ok"
