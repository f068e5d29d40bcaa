"""Snapshots of local sandboxes: a labelled folder beside the sandboxes with a tar in it, packed and unpacked inside.

What is in a sandbox is read and written by a process in that sandbox, so its links and names can do no harm outside.
The folder carries its owner's label like a sandbox's: the reaper removes it when the owner is gone.
"""

from __future__ import annotations

import os
import re
import resource
import secrets
from pathlib import Path, PurePosixPath

from drivetrain.sandboxes.label import PREFIX, new_label, write_label
from drivetrain.sandboxes.local.bwrap import HOME, LOWER_FOLDER
from drivetrain.sandboxes.local.reaper import remove_tree
from drivetrain.sandboxes.protocol import SandboxSpec, SandboxStartError, SandboxUnsupported, Snapshot

BACKEND = "local"
ARCHIVE = "files.tar"
MAX_BYTES = 64 << 30
_NAME = re.compile(re.escape(PREFIX) + r"snapshot-[0-9a-f]{12}")
_NEVER = 1e12  # seconds since the epoch

Folder = tuple[str, bytes, bytes | None]


def folders(spec: SandboxSpec) -> tuple[list[Folder], list[bytes]]:
    """What a snapshot holds, as (name, path inside, path inside of what it is compared to), and mount points to skip.

    HOME and the workdir, unless a mount covers them, and what was written over overlay mounts.
    """
    mounts = {str(PurePosixPath(mount.target)): mount for mount in spec.mounts}
    found: list[Folder] = []
    for name, path in (("home", HOME), ("work", str(PurePosixPath(spec.workdir)))):
        if path not in mounts:
            found.append((name, os.fsencode(path), None))
    overlays = [mount for mount in spec.mounts if mount.overlay]
    for number, mount in enumerate(overlays):
        if mounts[str(PurePosixPath(mount.target))] is mount:
            target = os.fsencode(str(PurePosixPath(mount.target)))
            found.append((f"overlay-{number}", target, os.fsencode(f"{LOWER_FOLDER}/{number}")))
    points = {HOME, str(PurePosixPath(spec.workdir)), *mounts}
    return found, [os.fsencode(point) for point in sorted(points)]


def pack_request(spec: SandboxSpec) -> dict[str, object]:
    """For PID 1: write the snapshot to stdout."""
    held, skip = folders(spec)
    return {
        "module": "pack",
        "file": ("pack", tuple(held), tuple(skip)),
        "cwd": b"/",
        "rlimits": [(resource.RLIMIT_FSIZE, MAX_BYTES), (resource.RLIMIT_CORE, 0)],
    }


def unpack_request(spec: SandboxSpec) -> dict[str, object]:
    """For PID 1: fill the folders from stdin."""
    return {"module": "pack", "file": ("unpack", tuple(folders(spec)[0])), "cwd": b"/"}


def new_snapshot(root: Path, labels: dict[str, str]) -> tuple[Snapshot, Path]:
    """An empty snapshot and its folder."""
    name = f"{PREFIX}snapshot-{secrets.token_hex(6)}"
    folder = root / name
    folder.mkdir(mode=0o700)
    write_label(folder, new_label(name, _NEVER, labels))
    return Snapshot(BACKEND, name), folder


def open_snapshot(root: Path, snapshot: Snapshot) -> int:
    """Descriptor of a snapshot's archive.

    Raises:
        SandboxUnsupported: it belongs to another backend.
        SandboxStartError: there is none.
    """
    _check(snapshot)
    try:
        if not _NAME.fullmatch(snapshot.ref):
            raise FileNotFoundError(snapshot.ref)
        return os.open(root / snapshot.ref / ARCHIVE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise SandboxStartError(
            f"There is no snapshot {snapshot.ref!r} below {root}.", fix="It was dropped, or its owner has ended."
        ) from error


def drop(root: Path, snapshot: Snapshot) -> None:
    """Remove a snapshot; gone already is fine.

    Raises:
        SandboxUnsupported: it belongs to another backend.
    """
    _check(snapshot)
    if _NAME.fullmatch(snapshot.ref):
        remove_tree(root / snapshot.ref)


def _check(snapshot: Snapshot) -> None:
    if snapshot.backend != BACKEND:
        raise SandboxUnsupported(f"The snapshot {snapshot.ref!r} belongs to the backend {snapshot.backend!r}.")
