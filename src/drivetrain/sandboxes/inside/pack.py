"""Snapshots, run as a job inside the sandbox: some folders to a tar on stdout, and back from stdin.

A folder with a ``lower`` one (the host's, read-only, below an overlay) is packed as what differs from it: members for
what was added or changed, and a list of what was removed. Sockets, FIFOs and devices are left out.
"""

# Pathlib costs more to import than most of these operations take.
# ruff: noqa: PTH101, PTH102, PTH106, PTH108, PTH118, PTH208, PTH211
from __future__ import annotations

import io
import os
import stat
import tarfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Folder = tuple[str, bytes, "bytes | None"]  # name in the archive, path, lower

OK, FAILED = 0, 1
CHUNK = 1 << 20
REMOVED = "removed"


def run(operation: str, folders: tuple[Folder, ...], skip: tuple[bytes, ...] = ()) -> int:
    """Dispatch; an error becomes a message and an exit code."""
    try:
        if operation == "pack":
            pack(folders, {os.fsdecode(path) for path in skip})
        else:
            unpack(folders)
    except Exception as error:
        os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
        return FAILED
    return OK


def pack(folders: tuple[Folder, ...], skip: set[str]) -> None:
    """``skip``: paths (mount points) that are not part of any folder."""
    locked: list[tuple[str, int]] = []
    try:
        with os.fdopen(1, "wb", closefd=False) as sink, tarfile.open(fileobj=sink, mode="w|") as archive:
            for name, path, lower in folders:
                root, below = os.fsdecode(path), None if lower is None else os.fsdecode(lower)
                if below is not None:
                    _add_removed(archive, name, root, below, skip)
                for relative in _walk(root, below, skip, locked):
                    _add(archive, os.path.join(root, relative), f"{name}/{relative}")
    finally:
        for folder, mode in reversed(locked):
            os.chmod(folder, mode)


def _entries(folder: str, locked: list[tuple[str, int]]) -> list[str]:
    """Names in a folder; one its user may not enter is opened, and ``locked`` says what to undo."""
    mode = stat.S_IMODE(os.lstat(folder).st_mode)
    if mode & 0o500 != 0o500 and not os.access(folder, os.R_OK | os.X_OK):
        os.chmod(folder, mode | 0o700)
        locked.append((folder, mode))
    return sorted(os.listdir(folder))


def _kind(path: str) -> int | None:
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return None


def _walk(root: str, below: str | None, skip: set[str], locked: list[tuple[str, int]]) -> Iterator[str]:
    """Relative paths, folders before what is in them; only what differs from ``below`` where there is one."""
    pending = [""]
    while pending:
        folder = pending.pop()
        for entry in _entries(os.path.join(root, folder), locked):
            relative = os.path.join(folder, entry)
            path = os.path.join(root, relative)
            if path in skip:
                continue
            try:
                info = os.lstat(path)
            except FileNotFoundError:
                continue  # it went meanwhile
            if below is None or _differs(info, os.path.join(below, relative)):
                yield relative
            if stat.S_ISDIR(info.st_mode):
                pending.append(relative)


def _differs(info: os.stat_result, original: str) -> bool:
    try:
        before = os.lstat(original)
    except OSError:
        return True
    if stat.S_ISDIR(info.st_mode):
        return (info.st_mode, info.st_mtime_ns) != (before.st_mode, before.st_mtime_ns)
    # An overlay gives what it did not copy the inode's own times, and no program can set a ctime.
    return (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns) != (
        before.st_mode,
        before.st_size,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def _add(archive: tarfile.TarFile, path: str, name: str) -> None:
    try:
        member = archive.gettarinfo(path, name)
    except FileNotFoundError:
        return  # it went meanwhile
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        return
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if not member.isreg():
        archive.addfile(member)
        return
    with _open(path) as file:
        # A file that grows or shrinks meanwhile is what it was when it was looked at.
        member.size = os.fstat(file.fileno()).st_size
        archive.addfile(member, _Exactly(file))  # type: ignore[arg-type]


def _open(path: str) -> io.FileIO:
    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    try:
        return io.FileIO(path, opener=opener)
    except PermissionError:
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        os.chmod(path, mode | 0o400)
        try:
            return io.FileIO(path, opener=opener)
        finally:
            os.chmod(path, mode)


class _Exactly:
    """Reads what is there, and zeros where the file has become shorter."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        parts, left = [], size
        while left > 0:
            part = self._file.read(left)
            if not part:
                parts.append(b"\0" * left)
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def _add_removed(archive: tarfile.TarFile, name: str, root: str, below: str, skip: set[str]) -> None:
    removed = []
    for folder, folders, files in os.walk(below):
        inside = os.path.relpath(folder, below)
        for entry in [*folders, *files]:
            relative = os.path.normpath(os.path.join(inside, entry))
            path = os.path.join(root, relative)
            if path not in skip and _kind(path) != _kind(os.path.join(folder, entry)):
                removed.append(os.fsencode(relative))
                if entry in folders:
                    folders.remove(entry)
    data = b"\0".join(removed)
    member = tarfile.TarInfo(f"{REMOVED}/{name}")
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def unpack(folders: tuple[Folder, ...]) -> None:
    """The other direction, over what is there."""
    places = {name: os.fsdecode(path) for name, path, _ in folders}
    modes: list[tuple[str, int, float]] = []
    with os.fdopen(0, "rb", closefd=False) as source, tarfile.open(fileobj=source, mode="r|") as archive:
        for member in archive:
            name, _, relative = member.name.partition("/")
            if name == REMOVED:
                data = archive.extractfile(member)
                assert data is not None
                for each in data.read().split(b"\0"):
                    _remove(os.path.join(places[relative], os.fsdecode(each))) if each else None
                continue
            path = _inside(places[name], relative)
            if member.isdir():
                if _kind(path) != stat.S_IFDIR:
                    _remove(path)
                    os.mkdir(path, 0o700)
                modes.append((path, member.mode & 0o777, member.mtime))
                os.chmod(path, member.mode & 0o777 | 0o700)
                continue
            _remove(path)
            if member.issym():
                os.symlink(member.linkname, path)
            elif member.islnk():
                origin, _, linked = member.linkname.partition("/")
                os.link(_inside(places[origin], linked), path, follow_symlinks=False)
            else:
                _write(archive, member, path)
    for path, mode, mtime in reversed(modes):
        os.utime(path, (mtime, mtime))
        os.chmod(path, mode)


def _inside(root: str, relative: str) -> str:
    path = os.path.normpath(os.path.join(root, relative))
    if not path.startswith(root.rstrip("/") + "/"):
        raise ValueError(f"member {relative!r} leaves its folder")
    return path


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    data = archive.extractfile(member)
    assert data is not None
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        while True:
            chunk = data.read(CHUNK)
            if not chunk:
                break
            file.write(chunk)
        os.fchmod(fd, member.mode & 0o777)
    os.utime(path, (member.mtime, member.mtime))


def _remove(path: str) -> None:
    kind = _kind(path)
    if kind == stat.S_IFDIR:
        for entry in _entries(path, []):
            _remove(os.path.join(path, entry))
        os.rmdir(path)
    elif kind is not None:
        os.unlink(path)
