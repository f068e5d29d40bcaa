"""The Linux calls that Python 3.11 does not have: mounts by descriptor, namespaces and credentials of one thread."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import struct

CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REC, MS_SLAVE = 1, 2, 4, 0x4000, 0x80000

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_IDMAP = 0x00100000
_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 1 << 2

# The first three have the same numbers everywhere (asm-generic and x86 were joined before they came).
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_SETGROUPS, _SETRESUID, _SETRESGID = range(3)
_OWN_NUMBERS = {"x86_64": (116, 117, 119), "aarch64": (159, 147, 149)}


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return int(_libc().syscall(ctypes.c_long(number), *wide))


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own."""
    _check(_libc().unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Move the calling thread into a namespace."""
    _check(_libc().setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    encoded = [os.fsencode(text) if text is not None else None for text in (source, target, kind)]
    _check(_libc().mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options)), f"mount {kind or ''} at {target}")


def clone_tree(path: str) -> int:
    """A detached copy of the mount tree at ``path``, as a descriptor (Linux 5.2)."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    return _check(_syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags), f"open_tree {path}")


def map_owner(tree: int, user_namespace: int) -> None:
    """Show the files of a detached tree with the owners that the namespace's id maps give (Linux 5.12)."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, user_namespace)
    flags = _AT_EMPTY_PATH | _AT_RECURSIVE
    _check(_syscall(_MOUNT_SETATTR, tree, b"", flags, attributes, len(attributes)), "mount_setattr")


def attach_tree(tree: int, target: str) -> None:
    """Mount a detached tree."""
    result = _syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    _check(result, f"move_mount {target}")


def become(uid: int) -> None:
    """Change user and group of the calling thread only, keeping its capabilities until it executes a program.

    Raises:
        OSError: not permitted, or a processor whose numbers we do not know.
    """
    numbers = _OWN_NUMBERS.get(platform.machine())
    if numbers is None:
        raise OSError(f"no system call numbers for {platform.machine()}")
    _check(_libc().prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0), "prctl")
    # Not through libc: it would change every thread.
    _check(_syscall(numbers[_SETGROUPS], 0, None), "setgroups")
    _check(_syscall(numbers[_SETRESGID], uid, uid, uid), "setresgid")
    _check(_syscall(numbers[_SETRESUID], uid, uid, uid), "setresuid")
