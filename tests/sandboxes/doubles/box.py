"""A box of a cloud double: a real root, real users, real processes, in namespaces of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

BASE = 3_000_000
USERS = {"root": 0, "user": 1000}
_PASSWD = """root:x:0:0:root:/root:/bin/bash
user:x:1000:1000::/home/user:/bin/bash
nobody:x:65534:65534::/nonexistent:/bin/sh
"""
_GROUP = "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"
_NEWNET = 0x40000000


def missing() -> str | None:
    """Why boxes cannot be made here."""
    if os.geteuid() != 0:
        return "the cloud doubles make namespaces with many user ids, which takes root"
    if shutil.which("nsenter") is None:
        return "nsenter (util-linux) is not installed"
    if not Path("/usr/bin/python3").exists():
        return "there is no /usr/bin/python3 for the boxes of the cloud doubles"
    return None


def _leave_keyring() -> None:
    """A box of a cloud has no session with this host; namespaces do not part keyrings."""
    number = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, None)  # KEYCTL_JOIN_SESSION_KEYRING, an anonymous one


def own(path: Path, uid: int) -> None:
    os.chown(path, BASE + uid, BASE + uid, follow_symlinks=False)


def furnish(root: Path) -> None:
    """The disk of a fresh box: what copies are made of."""
    for name in ("dev", "etc", "home/user", "opt", "proc", "root", "run", "srv", "tmp", "usr", "var/lib", "var/tmp"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path("/usr", name).exists():
            (root / name).symlink_to(f"usr/{name}")
    (root / "etc" / "passwd").write_text(_PASSWD)
    (root / "etc" / "group").write_text(_GROUP)
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc" / "profile").write_text("export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n")
    for name in ("ld.so.cache", "alternatives", "localtime"):
        source = Path("/etc", name)
        if source.is_dir():
            shutil.copytree(source, root / "etc" / name, symlinks=True)
        elif source.exists():
            shutil.copy(source, root / "etc" / name)
    for folder, names, files in os.walk(root):
        for name in ("", *names, *files):
            own(Path(folder, name), 0)
    own(root / "home" / "user", 1000)
    (root / "root").chmod(0o700)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)


class Box:
    """Made by :meth:`start`."""

    def __init__(self, box_id: str, root: Path, *, network: str) -> None:
        self.id = box_id
        self.root = root
        self.network = network
        self.pid = 0
        self.alive = False
        self._launcher: asyncio.subprocess.Process | None = None

    async def start(self, disk: Path) -> None:
        """From a copy of ``disk``."""
        await self._copy(disk, self.root)
        words = [sys.executable, "-I", "-S", str(Path(__file__).with_name("launch.py"))]
        self._launcher = await asyncio.create_subprocess_exec(
            *words, str(self.root), str(BASE), self.network, stdout=asyncio.subprocess.PIPE, env={}
        )
        assert self._launcher.stdout is not None
        said = {await self._launcher.stdout.readline(), await self._launcher.stdout.readline()}
        assert b"up\n" in said, f"the box did not start: {said}"
        self.pid = int(next(line for line in said if line != b"up\n"))
        self.alive = True

    @staticmethod
    async def _copy(source: Path, target: Path) -> None:
        process = await asyncio.create_subprocess_exec("cp", "-a", "--reflink=auto", str(source), str(target))
        assert await process.wait() == 0

    async def save(self, target: Path) -> None:
        """A copy of the disk."""
        await self._copy(self.root, target)

    async def run(
        self, argv: Sequence[str], *, user: str, cwd: str, env: Mapping[str, str]
    ) -> asyncio.subprocess.Process:
        """A process inside; it goes on when nobody reads it any more."""
        uid = USERS[user]
        spaces = ["-t", str(self.pid), "-U", "-m", "-p", "-i", "-u", *([] if self.network == "open" else ["-n"])]
        shell = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', cwd, *argv]
        whole = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root" if uid == 0 else "/home/user", **env}
        return await asyncio.create_subprocess_exec(
            *("nsenter", *spaces, "-S", str(uid), "-G", str(uid), "--", *shell),
            env=whole,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=_leave_keyring,
        )

    def path(self, inside: str) -> Path:
        """Where a path of the box is on the host; for the plain files that SDKs send."""
        return self.root / inside.lstrip("/")

    def write(self, inside: str, data: bytes, user: str) -> None:
        path = self.path(inside)
        missing = [parent for parent in path.parents if not parent.exists()]
        for parent in reversed(missing):
            parent.mkdir()
            own(parent, USERS[user])
        path.write_bytes(data)
        own(path, USERS[user])

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a port inside."""
        made = await asyncio.to_thread(self._socket) if self.network != "open" else socket.socket()
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
        except OSError:
            made.close()
            raise
        return await asyncio.open_connection(sock=made)

    def _socket(self) -> socket.socket:
        """A socket of the box's network. A thread of its own, because it does not come back from there."""
        made: list[socket.socket] = []

        def enter() -> None:
            with Path(f"/proc/{self.pid}/ns/net").open() as space:
                if ctypes.CDLL(None).setns(space.fileno(), _NEWNET) == 0:
                    made.append(socket.socket())

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if not made:
            raise OSError("the box is gone")
        return made[0]

    async def kill(self) -> None:
        """End it and remove its disk."""
        self.alive = False
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        if self._launcher is not None:
            with contextlib.suppress(ProcessLookupError):
                if not self.pid:
                    self._launcher.kill()
            await self._launcher.wait()
        await asyncio.to_thread(shutil.rmtree, self.root, ignore_errors=True)
