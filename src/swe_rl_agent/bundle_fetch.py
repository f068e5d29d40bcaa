"""Locked packages, fetched by name with npm or pip and checked by hash; nothing of them runs."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import sys
import tarfile
from pathlib import Path

import msgspec

from drivetrain.errors import InfrastructureError, MissingDependency
from swe_rl_agent.bundle_tools import LOCKS, find_npm, run_tool


class Locked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An npm package of a lock file: exact version and the registry's ``sha512-<base64>`` of its archive."""

    version: str
    integrity: str


def read_lock(name: str) -> dict[str, Locked]:
    """The npm packages of ``lock/NAME.json``, by name."""
    return msgspec.json.decode((LOCKS / f"{name}.json").read_bytes(), type=dict[str, Locked])


def fetch(name: str, locked: Locked, into: Path) -> Path:
    """Download one package with npm, check it against the lock and unpack it.

    Returns:
        The folder with the package's files.

    Raises:
        MissingDependency: npm is not installed.
        InfrastructureError: the download failed, or its hash is not the locked one.
    """
    npm = find_npm(f"to download {name}")
    into.mkdir()
    wanted = f"{name}@{locked.version}"
    run_tool([npm, "pack", "--ignore-scripts", "--loglevel=error", wanted], cwd=into, what=f"npm pack {wanted}")
    (archive,) = into.glob("*.tgz")
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha512").digest()
    if (found := f"sha512-{base64.b64encode(digest).decode()}") != locked.integrity:
        raise InfrastructureError(
            f"{wanted} is not the locked archive: its hash is {found}.", fix="Find out why before you use it."
        )
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    archive.unlink()
    (folder,) = into.iterdir()  # "package" by convention
    return folder


_PIP = ("--quiet", "--disable-pip-version-check", "--no-input", "--require-hashes", "--only-binary=:all:", "--no-deps")


def pip_install(lock: Path, into: Path, scratch: Path) -> None:
    """Install the wheels of a requirements file with hashes below ``into``, uncompiled.

    Raises:
        MissingDependency: this Python has no pip.
        InfrastructureError: the download failed, or a hash is not the locked one.
    """
    _pip(lock, scratch, "install", "--no-compile", "--ignore-installed", "--target", str(into))


def pip_download(lock: Path, into: Path, scratch: Path) -> Path:
    """Download the one wheel of a requirements file with hashes, and return its path; raises like pip_install."""
    _pip(lock, scratch, "download", "--dest", str(into))
    (wheel,) = into.glob("*.whl")
    return wheel


def _pip(lock: Path, scratch: Path, command: str, *options: str) -> None:
    if not has_pip():
        raise MissingDependency(
            f"{sys.executable} has no pip; it is needed once, to install {lock.stem} into an agent bundle.",
            fix="Install pip into this environment (python -m ensurepip), or copy a cached bundle from another host.",
        )
    argv = [sys.executable, "-m", "pip", command, *_PIP, *options, "-r", str(lock)]
    run_tool(argv, cwd=scratch, what=f"pip {command} of {lock.name}")


def has_pip() -> bool:
    """Whether this interpreter can run ``python -m pip``."""
    return importlib.util.find_spec("pip") is not None
