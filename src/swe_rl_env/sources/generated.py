"""Archives of tasks that were generated here: they are in the cache, or nowhere."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from drivetrain.cache import build_once
from swe_rl_env.errors import BuildError
from swe_rl_env.tasks.model import Archive


def publish(name: str, version: str, files: Mapping[str, bytes], cache: Path) -> Archive:
    """Put ``files`` (relative path -> content) into the cache as an archive; equal files give equal bytes.

    Args:
        cache: the cache folder itself, see :func:`drivetrain.cache.cache_root`.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, data in sorted(files.items()):
            info = tarfile.TarInfo(f"{name}-{version}/{path}")
            info.mode, info.size = 0o644, len(data)
            tar.addfile(info, io.BytesIO(data))
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    filename = f"{name}-{version}.tar"

    def build(folder: Path) -> None:
        (folder / filename).write_bytes(content)

    build_once(cache / "archives" / digest, build)
    return Archive(registry="local", name=name, version=version, filename=filename, sha256=digest)


def download(archive: Archive, folder: Path) -> NoReturn:  # noqa: ARG001 (the other registries write there)
    """There is no place to get it from.

    Raises:
        BuildError: always.
    """
    raise BuildError(
        f"{archive.filename} was generated on this machine and is no longer in the cache.",
        fix="Generate the tasks again (`drivetrain tasks generate`).",
    )
