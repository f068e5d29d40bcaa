"""Files a container gets before it starts: HOME and workdir of its user, the user's name, copies of overlay mounts."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import time
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

import msgspec

from drivetrain.sandboxes.docker.config import HOME, User, bound, inside_path
from drivetrain.sandboxes.protocol import Mount, SandboxSpec

_NAME = "agent"
_HOSTS = b"127.0.0.1 localhost sandbox\n::1 localhost sandbox\n"


class Accounts(msgspec.Struct, frozen=True):
    """An image's /etc/passwd and /etc/group with the user in them, and the user's name."""

    name: str
    passwd: bytes
    group: bytes


def accounts(passwd: bytes, group: bytes, user: User) -> Accounts:
    """Add the user where the image does not know the number: Node and git ask for a name and fail without."""
    names = dict(_entries(passwd))
    name = next((name for name, uid in names.items() if uid == user.uid), "")
    if not name:
        name = _NAME if _NAME not in names else f"{_NAME}{user.uid}"
        passwd = _line(passwd, f"{name}:x:{user.uid}:{user.gid}:{name}:{HOME}:/bin/sh")
    groups = dict(_entries(group))
    if user.gid not in groups.values():
        group = _line(group, f"{name if name not in groups else f'{_NAME}{user.gid}'}:x:{user.gid}:")
    return Accounts(name, passwd, group)


def _entries(text: bytes) -> Iterator[tuple[str, int]]:
    for line in text.decode(errors="replace").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2].isdigit():
            yield fields[0], int(fields[2])


def _line(text: bytes, line: str) -> bytes:
    return text + (b"" if not text or text.endswith(b"\n") else b"\n") + line.encode() + b"\n"


def build_seed(spec: SandboxSpec, user: User, names: Accounts, kept: Collection[str] = ()) -> bytes:
    """The tar to unpack at the container's root. Blocks when there are overlay mounts to read.

    Args:
        kept: targets of overlay mounts that the image has already, changed as an earlier sandbox left them.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in _own_folders(spec):
            _add(tar, path, user, mode=0o755)
        for mount in spec.mounts:
            if mount.overlay and inside_path(mount.target) not in kept:
                _copy(tar, mount, user)
        _add(tar, "/etc/passwd", User(0, 0), mode=0o644, data=names.passwd)
        _add(tar, "/etc/group", User(0, 0), mode=0o644, data=names.group)
        if spec.network != "open":  # else the engine mounts its own
            _add(tar, "/etc/hosts", User(0, 0), mode=0o644, data=_HOSTS)
    return buffer.getvalue()


def _own_folders(spec: SandboxSpec) -> list[str]:
    """HOME, the workdir, and the folders in them that lead to a mount: the engine would make those as root."""
    own = [HOME, inside_path(spec.workdir)]
    covered = {inside_path(mount.target) for mount in bound(spec)}
    for mount in spec.mounts:
        target = PurePosixPath(inside_path(mount.target))
        own += [str(parent) for parent in target.parents if any(parent.is_relative_to(root) for root in own[:2])]
    return sorted({path for path in own if path not in covered})


def _add(tar: tarfile.TarFile, path: str, user: User, *, mode: int, data: bytes | None = None) -> None:
    member = tarfile.TarInfo(path.lstrip("/"))
    member.uid, member.gid, member.mode, member.mtime = user.uid, user.gid, mode, time.time()
    if data is None:
        member.type = tarfile.DIRTYPE
    else:
        member.size = len(data)
    tar.addfile(member, io.BytesIO(data) if data is not None else None)


def _copy(tar: tarfile.TarFile, mount: Mount, user: User) -> None:
    """A host folder as the user's own: same content, modes and links, so that the user may change it."""

    def own(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
            return None
        member.uid, member.gid, member.uname, member.gname = user.uid, user.gid, "", ""
        return member

    source = os.fspath(mount.source.resolve())
    target = inside_path(mount.target).lstrip("/")
    top = tar.gettarinfo(source, arcname=target)
    top.uid, top.gid, top.uname, top.gname = user.uid, user.gid, "", ""
    top.mode = stat.S_IMODE(top.mode) | stat.S_IRWXU
    tar.addfile(top)
    for name in sorted(os.listdir(source)):  # noqa: PTH208 (names, not paths)
        tar.add(f"{source}/{name}", arcname=f"{target}/{name}", filter=own)
