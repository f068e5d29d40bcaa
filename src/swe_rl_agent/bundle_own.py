"""Bundles of custom agents: a host folder as it is, or a program that the sandbox's image already has."""

from __future__ import annotations

from pathlib import Path

from drivetrain.cache import Progress
from drivetrain.errors import ConfigError
from swe_rl_agent import bundle_files
from swe_rl_agent.bundle import Bundle, build_bundle
from swe_rl_agent.preset import Preset


def bundle_of(preset: Preset, cache: Path | None = None, progress: Progress | None = None) -> Bundle:
    """What a preset's ``bundle`` names: a folder (a path), a program of the image (empty), or a recipe of ours.

    Raises:
        ConfigError: no such folder or recipe.
        MissingDependency, InfrastructureError: see :func:`swe_rl_agent.bundle.build_bundle`.
    """
    if not preset.bundle:
        return _in_image(preset.name)
    if "/" in preset.bundle:
        return _folder(preset.name, Path(preset.bundle))
    return build_bundle(preset.bundle, cache, progress)


def _folder(name: str, folder: Path) -> Bundle:
    """The folder is hashed anew each time (about a second for a gigabyte): nobody vouches that it stayed the same."""
    if not folder.is_dir():
        raise ConfigError(f"The bundle of {name}, {folder}, is no folder.", fix="Correct `bundle` in the preset.")
    text, size = bundle_files.listing(folder)
    digest = bundle_files.listing_hash(text)
    return Bundle(
        name=name, version=digest[:12], path=folder, sha256=digest, runtime="own", bytes=size, files=text.count("\n")
    )


def _in_image(name: str) -> Bundle:
    return Bundle(
        name=name, version="of the image", path=Path(), sha256="", runtime="image", bytes=0, files=0, mounted=False
    )
