"""Fetch published source archives and check them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from drivetrain.cache import build_once
from swe_rl_env.errors import BuildError, ChecksumMismatch
from swe_rl_env.sources import generated, npm, pypi
from swe_rl_env.tasks.model import Archive

__all__ = ["fetch"]


def fetch(archive: Archive, cache: Path) -> Path:
    """The verified archive file, downloaded once per cache.

    Raises:
        ChecksumMismatch: the registry served other bytes than the task was measured with.
        BuildError: the archive could not be downloaded.
    """
    download = {"pypi": pypi.download, "npm": npm.download, "local": generated.download}[archive.registry]

    def build(folder: Path) -> None:
        path = download(archive, folder)
        got = hashlib.sha256(path.read_bytes()).hexdigest()
        if got != archive.sha256:
            raise ChecksumMismatch(
                f"{archive.registry} {archive.name} {archive.version}: sha256 is {got}, expected {archive.sha256}.",
                fix="The registry or a mirror serves different bytes; nothing was built from them.",
            )
        if path.name != archive.filename:
            path.rename(folder / archive.filename)

    folder = build_once(cache / "archives" / archive.sha256, build)
    path = folder / archive.filename
    if not path.is_file():
        raise BuildError(f"{path} is missing from the cache.", fix=f"Remove {folder} and try again.")
    return path
