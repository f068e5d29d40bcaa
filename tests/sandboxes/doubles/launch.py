"""Starts one box: ``python launch.py ROOT BASE NETWORK``; prints the host pid of its first process.

The box has user ids of its own (0-65535 from BASE), so that root inside is nobody outside, and its own processes,
mounts, IPC, and unless NETWORK is ``open`` its own network with loopback only. It ends with this process.
"""

# ruff: noqa: PTH101, PTH102, PTH123, PTH211
from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
BIND, REC, PRIVATE, RDONLY, REMOUNT, NOSUID, NODEV, NOEXEC = 4096, 16384, 1 << 18, 1, 32, 2, 4, 8
libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}{arguments}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    call("mount", *words, ctypes.c_ulong(flags), None if data is None else data.encode())


def furnish(root: str) -> None:
    mount("none", "/", None, REC | PRIVATE)
    mount(root, root, None, BIND | REC)
    mount("/usr", f"{root}/usr", None, BIND | REC)
    flags = os.statvfs(f"{root}/usr").f_flag & (NOSUID | NODEV | NOEXEC)
    mount("none", f"{root}/usr", None, BIND | REMOUNT | RDONLY | flags)
    mount("proc", f"{root}/proc", "proc", NOSUID | NODEV | NOEXEC)
    mount("dev", f"{root}/dev", "tmpfs", NOSUID, "mode=755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        open(f"{root}/dev/{name}", "w").close()
        mount(f"/dev/{name}", f"{root}/dev/{name}", None, BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1")):
        os.symlink(target, f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/shm")
    os.chmod(f"{root}/dev/shm", 0o1777)
    os.chdir(root)
    call("pivot_root", b".", b".")
    call("umount2", b".", 2)
    os.chdir("/")


def loopback() -> None:
    with socket.socket() as link:
        fcntl.ioctl(link, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def first(root: str, network: str) -> None:
    """PID 1: reaps."""
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)
    furnish(root)
    if network != "open":
        loopback()
    os.setsid()
    os.write(1, b"up\n")
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwaitinfo({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def main() -> None:
    root, base, network = sys.argv[1:4]
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)
    mine, theirs = socket.socketpair()
    middle = os.fork()
    if middle == 0:
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)
        call("unshare", NEWUSER)
        theirs.send(b"x")
        theirs.recv(1)
        os.setgid(0)
        os.setgroups([])
        os.setuid(0)
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # cleared by the change of ids
        call("unshare", NEWNS | NEWUTS | NEWIPC | NEWPID | (0 if network == "open" else NEWNET))
        pid = os.fork()
        if pid == 0:
            first(root, network)
        os.write(1, b"%d\n" % pid)
        os.waitpid(pid, 0)
        os._exit(1)
    mine.recv(1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{middle}/{name}", "w") as file:
            file.write(f"0 {base} 65536")
    mine.send(b"x")
    os.waitpid(middle, 0)


if __name__ == "__main__":
    main()
