"""File operations, run as a job inside the sandbox: a symlink made there can only lead to what is visible there.

Each function reads stdin or writes stdout and returns an exit code; a message goes to stderr.
"""

# Pathlib costs more to import than most of these operations take.
# ruff: noqa: PTH100, PTH101, PTH103, PTH104, PTH108, PTH112, PTH113, PTH114, PTH116, PTH118, PTH120, PTH208, PTH211
from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable
    from typing import Any

OK, FAILED, NOT_FOUND, TOO_LARGE = 0, 1, 44, 45
CHUNK = 1 << 20


def run(operation: str, *arguments: Any) -> int:
    """Dispatch; an operating system error becomes a message and an exit code."""
    try:
        return OPERATIONS[operation](*arguments)
    except FileNotFoundError as error:
        os.write(2, str(error).encode(errors="replace"))
        return NOT_FOUND
    except Exception as error:
        os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
        return FAILED


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read(path: bytes, max_bytes: int) -> int:
    """File to stdout. Not a FIFO or device: opening those can block or never end."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.write(2, b"not a regular file")
        return FAILED
    left = max_bytes
    while True:
        chunk = os.read(fd, min(CHUNK, left + 1))
        if not chunk:
            return OK
        if len(chunk) > left:
            return TOO_LARGE
        _write_all(1, chunk)
        left -= len(chunk)


def write(path: bytes, mode: int) -> int:
    """Stdin to a new file that replaces ``path``: never through a symlink at the last step, never half written."""
    path = os.path.abspath(path)
    parent, name = os.path.split(path)
    os.makedirs(parent, exist_ok=True)
    if os.path.isdir(path) and not os.path.islink(path):
        raise IsADirectoryError(errno.EISDIR, "is a directory", path)
    temporary = os.path.join(parent, b".drivetrain-%d-%s" % (os.getpid(), name[:100]))
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while True:
            chunk = os.read(0, CHUNK)
            if not chunk:
                break
            _write_all(fd, chunk)
        os.fchmod(fd, mode)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return OK


def upload(target: bytes) -> int:
    """Unpack a tar from stdin below ``target``; a member that would land elsewhere is refused."""
    import tarfile

    os.makedirs(target, exist_ok=True)
    root = os.path.realpath(os.fsdecode(target))
    directories: list[tuple[str, int]] = []
    safe_parents: set[str] = set()
    with os.fdopen(0, "rb", closefd=False) as source, tarfile.open(fileobj=source, mode="r|") as archive:
        for member in archive:
            path = os.path.normpath(os.path.join(root, member.name))
            if path == root:
                continue
            if not path.startswith(root.rstrip("/") + "/"):
                raise ValueError(f"archive member {member.name!r} leaves the target directory")
            parent = os.path.dirname(path)
            if parent not in safe_parents:
                resolved = os.path.realpath(parent)
                if resolved != root and not resolved.startswith(root.rstrip("/") + "/"):
                    raise ValueError(f"archive member {member.name!r} leads out through a symlink")
                os.makedirs(parent, exist_ok=True)
                safe_parents.add(parent)
            mode = member.mode & 0o777
            if member.isdir():
                if os.path.islink(path):
                    os.unlink(path)
                os.makedirs(path, exist_ok=True)
                directories.append((path, mode | 0o700))
                continue
            if os.path.islink(path) or os.path.isfile(path):
                os.unlink(path)
            if member.issym():
                os.symlink(member.linkname, path)
                safe_parents.clear()
            elif member.islnk():
                linked = os.path.realpath(os.path.join(root, member.linkname))
                if not linked.startswith(root.rstrip("/") + "/"):
                    raise ValueError(f"archive member {member.name!r} links out of the target directory")
                os.link(linked, path)
            elif member.isfile():
                data = archive.extractfile(member)
                assert data is not None
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                with os.fdopen(fd, "wb") as file:
                    while True:
                        chunk = data.read(CHUNK)
                        if not chunk:
                            break
                        file.write(chunk)
                    os.fchmod(fd, mode)
                os.utime(path, (member.mtime, member.mtime))
            else:
                raise ValueError(f"archive member {member.name!r} is not a file, directory or link")
    for path, mode in reversed(directories):
        os.chmod(path, mode)
    return OK


def download(path: bytes) -> int:
    """Directory to stdout as a tar; sockets, FIFOs and devices are left out."""
    import tarfile

    root = os.fsdecode(path)
    if not stat.S_ISDIR(os.stat(root).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", root)

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member if member.isfile() or member.isdir() or member.issym() or member.islnk() else None

    with os.fdopen(1, "wb", closefd=False) as sink, tarfile.open(fileobj=sink, mode="w|") as archive:
        for name in sorted(os.listdir(root)):
            archive.add(os.path.join(root, name), arcname=name, filter=plain)
    return OK


OPERATIONS: dict[str, Callable[..., int]] = {"read": read, "write": write, "upload": upload, "download": download}
