"""Tarballs from the registry that npm is configured for."""

from __future__ import annotations

import shutil
from pathlib import Path

from drivetrain.errors import MissingDependency
from swe_rl_env.errors import BuildError
from swe_rl_env.sources.process import run_client
from swe_rl_env.tasks.model import Archive


def npm_program() -> str:
    """Path of npm.

    Raises:
        MissingDependency: npm is not installed.
    """
    found = shutil.which("npm")
    if found is None:
        raise MissingDependency("npm is not on PATH; JavaScript tasks need it.", fix="Install Node.js 20 with npm.")
    return found


def download(archive: Archive, folder: Path) -> Path:
    """Put the tarball into ``folder``; no script of the package runs. Return its path.

    Raises:
        BuildError: npm failed.
    """
    spec = f"{archive.name}@{archive.version}"
    argv = [npm_program(), "pack", "--ignore-scripts", "--silent", "--pack-destination", str(folder), spec]
    run_client(argv, cwd=folder)
    found = sorted(folder.glob("*.tgz"))
    if len(found) != 1:
        raise BuildError(f"npm pack {spec} produced {len(found)} archives, expected one.")
    return found[0]
