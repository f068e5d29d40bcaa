"""The label of a sandbox on the host: whose it is and until when.

A sandbox is a folder ``<root>/<id>`` with a ``label.json`` in it. The label is written before anything else exists, so
whatever a crash leaves behind can be attributed.
"""

# Pathlib costs as much as the rest of this, and every start of a sandbox waits for it.
# ruff: noqa: PTH104, PTH115, PTH123
from __future__ import annotations

import functools
import os
import secrets
import socket
from pathlib import Path

import msgspec

from drivetrain.sandboxes.control.files import write_all

PREFIX = "dt-"
LABEL_FILE = "label.json"


class Label(msgspec.Struct, kw_only=True):
    """``deadline`` is in seconds since the epoch; pids count only on the boot and in the pid namespace named here.

    ``owner_started`` and ``init_started`` are start times in clock ticks since boot: a recycled pid has another one.
    """

    id: str
    host: str
    boot: str
    pid_namespace: str
    owner_pid: int
    owner_started: int
    deadline: float
    init_pid: int | None = None
    init_started: int | None = None
    cgroups: list[str] = []
    labels: dict[str, str] = {}


def new_id() -> str:
    """A fresh sandbox name."""
    return PREFIX + secrets.token_hex(6)


def started(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None when there is no such process or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@functools.cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def new_label(sandbox_id: str, deadline: float, labels: dict[str, str]) -> Label:
    """A label that names this process as the owner."""
    pid = os.getpid()
    return Label(
        id=sandbox_id,
        host=socket.gethostname(),
        boot=_boot(),
        pid_namespace=os.readlink("/proc/self/ns/pid"),
        owner_pid=pid,
        owner_started=started(pid) or 0,
        deadline=deadline,
        labels=labels,
    )


def same_world(label: Label) -> bool:
    """Whether pids in ``label`` mean anything to this process."""
    return label.boot == _boot() and label.pid_namespace == os.readlink("/proc/self/ns/pid")


def write_label(folder: Path, label: Label) -> None:
    """Write or replace the label of a sandbox folder."""
    file = f"{folder}/{LABEL_FILE}"
    fd = os.open(f"{file}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, msgspec.json.encode(label))
    finally:
        os.close(fd)
    os.rename(f"{file}.new", file)


def read_label(folder: Path) -> Label | None:
    """The label of a folder; None when it has none (yet) or it is not ours."""
    try:
        return msgspec.json.decode((folder / LABEL_FILE).read_bytes(), type=Label)
    except (OSError, msgspec.MsgspecError):
        return None
