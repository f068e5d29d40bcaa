"""Mounts of a cloud sandbox: packed on the host, unpacked inside at the start."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from drivetrain.sandboxes.protocol import Mount, SandboxStartError, SandboxUnsupported

UID = 1000
MARKERS = "/var/lib/drivetrain-mounts"
_TAKEN = {"/", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/sys", "/tmp", "/var", "/run"}
_NOT_BELOW = ("/proc/", "/sys/", "/dev/", "/var/lib/drivetrain/", "/.drivetrain/")


class Packed:
    """A mount as an archive.

    ``digest`` is the SHA-256 of the archive. A template that was built with the same content says so in the file
    ``marker`` (``/var/lib/drivetrain-mounts/`` and the SHA-256 of the target path), and nothing is sent.
    """

    def __init__(self, mount: Mount, folder: str, file: IO[bytes], digest: str) -> None:
        self.mount = mount
        self.folder = folder
        self.digest = digest
        self.marker = f"{MARKERS}/{hashlib.sha256(os.fsencode(mount.target)).hexdigest()}"
        self._file = file

    @contextlib.contextmanager
    def content(self) -> Iterator[memoryview]:
        """The archive, not read into memory."""
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            yield view

    def wanted(self) -> dict[str, object]:
        """For ``inside/boot.py``: what it looks for, and what it removes where another content is there."""
        return {
            "path": self.marker,
            "digest": self.digest,
            "target": self.mount.target,
            "overlay": self.mount.overlay,
        }

    def close(self) -> None:
        self._file.close()


def check(mount: Mount) -> None:
    """Refuse what cannot be.

    Raises:
        SandboxUnsupported: a writable mount: nothing comes back from a provider's machine.
        SandboxStartError: no such source, or a target that is no place for it.
    """
    target = mount.target
    if mount.writable:
        raise SandboxUnsupported(
            f"A cloud sandbox cannot write to the host: the mount at {target} is writable.",
            fix="Use overlay=True, and download what is to be kept.",
        )
    if not target.startswith("/") or os.path.normpath(target) != target or target in _TAKEN:
        raise SandboxStartError(f"Nothing can be mounted at {target!r}.", fix="Choose an absolute path of its own.")
    if any(target.startswith(place) for place in _NOT_BELOW) or target.startswith("/usr/"):
        raise SandboxStartError(f"Nothing can be mounted at {target!r}.", fix="Choose a path outside the system's.")
    if not mount.source.exists():
        raise SandboxStartError(f"There is nothing to mount at {mount.source}.", fix="Check the mount's source.")


def pack(mount: Mount) -> Packed:
    """The content of a mount as an archive in a temporary file; blocks."""
    check(mount)
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by the caller)
    source = mount.source.resolve()
    try:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            if source.is_dir():
                folder = mount.target
                for path in sorted(source.iterdir()):
                    archive.add(path, arcname=path.name, filter=_plain)
            else:
                parent = Path(mount.target)
                folder = str(parent.parent)
                archive.add(source, arcname=parent.name, filter=_plain)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except BaseException:
        file.close()
        raise
    return Packed(mount, folder, file, digest)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Root's, readable for everybody as it is for its owner here."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    owner = member.mode & (stat.S_IRUSR | stat.S_IXUSR)
    member.mode |= owner >> 3 | owner >> 6
    return member if member.isfile() or member.isdir() or member.issym() or member.islnk() else None
