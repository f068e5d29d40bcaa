"""Read an archive's files by the rules the tasks were derived with."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath

from swe_rl_env.errors import BuildError
from swe_rl_env.tasks.model import Registry

_MOST_MEMBERS = 100_000


def read_archive(path: Path, registry: Registry, *, max_bytes: int = 512 << 20) -> dict[str, tuple[bool, bytes]]:
    """Regular files of a source archive as relative path -> (owner-execute bit, content).

    The single top-level folder is stripped. Of a PyPI archive the root ``PKG-INFO`` and everything below an
    ``*.egg-info`` folder is dropped: the release process generated them.

    Raises:
        BuildError: not one top-level folder, a path that leaves it, or more than ``max_bytes`` or 100,000 members.
    """
    files: dict[str, tuple[bool, bytes]] = {}
    tops: set[str] = set()
    held = 0
    with tarfile.open(path) as tar:
        for count, member in enumerate(tar):
            held += member.size
            if held > max_bytes or count >= _MOST_MEMBERS:  # before a byte of it is unpacked
                raise BuildError(f"{path.name}: more than {max_bytes} bytes or {_MOST_MEMBERS} members unpacked.")
            parts = PurePosixPath(member.name).parts
            if not parts or parts[0] == "/" or ".." in parts:
                raise BuildError(f"{path.name}: suspicious member {member.name!r}.")
            tops.add(parts[0])
            if not member.isreg() or len(parts) < 2:
                continue
            if registry == "pypi" and (parts[1:] == ("PKG-INFO",) or any(p.endswith(".egg-info") for p in parts[1:-1])):
                continue
            stream = tar.extractfile(member)
            if stream is not None:
                files["/".join(parts[1:])] = (bool(member.mode & 0o100), stream.read())
    if len(tops) != 1 or not files:
        raise BuildError(f"{path.name}: expected one top-level folder with files, found {sorted(tops)[:3]}.")
    return files
