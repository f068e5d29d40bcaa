"""The owner's end of the sockets that a container is given: one connection from PID 1, and a broker for the gateway.

They live in a host folder that only the owner can enter and that is mounted into one container; inside, whoever runs
there may connect, so the control socket takes one peer, checks that it is that container's PID 1, and is gone.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from drivetrain.sandboxes.end import end
from drivetrain.sandboxes.protocol import SandboxStartError

CONTROL_SOCKET = "init"
BROKER_SOCKET = "gateway"
_BACKLOG_PATIENCE_S = 10.0
_RETRY_S = 0.01
_AT_ONCE = 64


def make_folder(folder: Path) -> None:
    """A folder for the sockets: its parent keeps other host users out, so another uid inside may enter it."""
    folder.mkdir(mode=0o711)
    folder.chmod(0o711)


def _listen(folder: Path, name: str) -> socket.socket:
    """Listen at a path of any length."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    listener.setblocking(False)
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{name}")
        (folder / name).chmod(0o666)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener


class ControlDoor:
    """Waits for PID 1 of one container."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CONTROL_SOCKET
        self._listener = _listen(folder, CONTROL_SOCKET)
        # Accepted sockets inherit it: no message of PID 1 comes without its sender's pid.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._listener.listen(4)

    async def accept(self, container: str, pid: Callable[[], Awaitable[int]], timeout_s: float) -> socket.socket:
        """The connection of PID 1 of ``container`` (its full id); any other peer is turned away.

        Args:
            pid: asks the engine for the pid of PID 1 on the host; 0 when it has ended.

        Raises:
            SandboxStartError: the container ended first, or nobody came in time.
        """
        loop = asyncio.get_running_loop()
        until = time.monotonic() + timeout_s
        while (left := until - time.monotonic()) > 0:
            try:
                peer, _ = await asyncio.wait_for(loop.sock_accept(self._listener), min(left, 0.5))
            except TimeoutError:
                if not await pid():
                    raise SandboxStartError(
                        "The container ended before its first process had connected.",
                        fix="Check that the image is for this machine's processor architecture.",
                    ) from None
                continue
            # The engine's numbers are ours unless it runs in a container itself; without control groups they are all
            # there is to go by.
            calling = peer_pid(peer)
            try:
                if is_pid_1_of(calling, container) or (calling and calling == await pid()):
                    return peer
            except BaseException:
                peer.close()
                raise
            peer.close()
        raise SandboxStartError(
            f"The container's first process did not connect within {timeout_s:g} s.",
            fix="The engine must run on this machine and see this user's files: Unix sockets are shared with it.",
        )

    def close(self) -> None:
        """Take the name away and stop listening; idempotent."""
        self._path.unlink(missing_ok=True)
        self._listener.close()


def peer_pid(peer: socket.socket) -> int:
    """Pid of the connected process in our numbering; 0 when it has none here."""
    pid: int = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def is_pid_1_of(pid: int, container: str) -> bool:
    """Whether a host process is the first one of a container: by its control group, and its pid in its namespace."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return container in groups and len(numbers) > 1 and numbers[-1] == "1"


class GatewayBroker:
    """Connects to the gateway for the relay inside and hands the connected descriptor over.

    The box's user need not be able to enter the gateway's folder, and a restarted gateway is found again by its path.
    """

    def __init__(self, folder: Path, target: Path) -> None:
        self._target = target
        self._listener = _listen(folder, BROKER_SOCKET)
        self._listener.listen(512)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._handing: set[asyncio.Task[None]] = set()
        self._serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._slots.acquire()
            try:
                peer, _ = await loop.sock_accept(self._listener)
            except OSError:  # out of descriptors: the backlog holds the client
                self._slots.release()
                await asyncio.sleep(_RETRY_S)
                continue
            task = asyncio.create_task(self._hand_over(peer))
            self._handing.add(task)
            task.add_done_callback(self._handing.discard)

    async def _hand_over(self, peer: socket.socket) -> None:
        try:
            gateway = await connect(self._target)
            with contextlib.closing(gateway):
                peer.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [gateway.fileno()]))])
        except OSError:
            pass  # the gateway is down (the relay sees an end of file), or the relay has gone
        finally:
            peer.close()
            self._slots.release()

    async def close(self) -> None:
        """Stop; idempotent. Connections handed over live on."""
        await end(self._serving, *self._handing)
        self._listener.close()


async def connect(target: Path) -> socket.socket:
    """Connect to a Unix socket at a path of any length; waits while its backlog is full.

    Raises:
        OSError: nobody listens there.
    """
    gateway = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    gateway.setblocking(False)
    until = time.monotonic() + _BACKLOG_PATIENCE_S
    try:
        directory = os.open(target.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            while True:
                try:
                    gateway.connect(f"/proc/self/fd/{directory}/{target.name}")
                    return gateway
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise
                    await asyncio.sleep(_RETRY_S)
        finally:
            os.close(directory)
    except BaseException:
        gateway.close()
        raise
