"""The thread that starts bubblewrap. It lives as long as the process: sandboxes die with the thread they come from.

For a root caller the thread is not root: it takes the identity of :data:`.owner.HOST_UID` and keeps the capabilities,
which end when bubblewrap is executed. For each sandbox it enters a fresh copy of the host's mount namespace, sets the
stage there (:mod:`.stage`), starts bubblewrap in it, and goes back.
"""

from __future__ import annotations

import functools
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec

from drivetrain.sandboxes.local import kernel
from drivetrain.sandboxes.local.bwrap import PATH
from drivetrain.sandboxes.local.owner import HOST_UID, exchange
from drivetrain.sandboxes.local.stage import Stage


class Order(msgspec.Struct, frozen=True):
    """One start of bubblewrap with nothing inherited but ``fds``."""

    argv: list[str]
    fds: Sequence[int]
    stderr_fd: int
    stage: Stage | None = None
    exchange: int = -1
    furnish: Callable[[Path], None] = lambda _: None


class StageError(OSError):
    """This machine, or one of the file systems, cannot set the stage."""


class _Thread:
    """Works off orders one after the other."""

    def __init__(self, *, staged: bool) -> None:
        self._orders: queue.SimpleQueue[tuple[Order, Future[subprocess.Popen[bytes]]]] = queue.SimpleQueue()
        self._staged = staged
        threading.Thread(target=self._work, name="sandbox-launcher", daemon=True).start()

    def put(self, order: Order) -> Future[subprocess.Popen[bytes]]:
        future: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((order, future))
        return future

    def _work(self) -> None:
        host = root = -1
        while True:
            order, future = self._orders.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if not self._staged:
                    future.set_result(_popen(order))
                    continue
                if host < 0:
                    host = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
                    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
                    kernel.become(HOST_UID)
                future.set_result(_popen_on_stage(order, host, root))
            except BaseException as error:
                future.set_exception(error)


@functools.cache
def _thread(staged: bool, _pid: int) -> _Thread:
    return _Thread(staged=staged)  # a fork has no threads: it makes its own


def launch(order: Order) -> Future[subprocess.Popen[bytes]]:
    """Start bubblewrap; takes a few milliseconds.

    The future raises StageError when the stage cannot be set (the caller may start without), OSError otherwise.
    """
    return _thread(order.stage is not None, os.getpid()).put(order)


def _popen_on_stage(order: Order, host: int, root: int) -> subprocess.Popen[bytes]:
    assert order.stage is not None
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
    except OSError as error:
        raise StageError(*error.args) from error
    try:
        try:
            order.stage.set_up(order.exchange, order.furnish)
        except OSError as error:
            raise StageError(*error.args) from error
        return _popen(order)
    finally:
        kernel.setns(host, kernel.CLONE_NEWNS)
        # That went to the root of the namespace; the process may be in a chroot.
        os.fchdir(root)
        os.chroot(".")


def _popen(order: Order) -> subprocess.Popen[bytes]:
    """It leads a session of its own, so a Ctrl-C at the terminal is for the owner, which then closes its sandboxes. Its
    child stays in that session until ``init.py`` makes its own: before that, bubblewrap has not yet tied the child's
    life to its own, and :func:`kill` has to reach both.
    """
    return subprocess.Popen(
        order.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=order.stderr_fd,
        pass_fds=order.fds,
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        cwd=os.sep,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill bubblewrap and a child it has not yet tied to itself."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


@functools.cache
def why_no_stage(python: str) -> str | None:
    """Why no stage can be set on this machine; None when it can. Blocks for about 50 ms, once per process."""
    if os.geteuid() != 0:
        return "the caller is not root"
    with tempfile.TemporaryDirectory(prefix="drivetrain-probe-") as folder:
        try:
            order = Order(
                argv=["/bin/sh", "-c", ":"], fds=(), stderr_fd=2, stage=Stage(Path(folder)), exchange=exchange(python)
            )
            if launch(order).result().wait() != 0:
                return "an ordinary user cannot start programs here"
        except OSError as error:
            return str(error)
    return None
