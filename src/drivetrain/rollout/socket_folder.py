"""Private folders of a process: named after their owner, so that a killed owner's folder is found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from drivetrain.sandboxes.label import started
from drivetrain.sandboxes.local import default_root

Kind = Literal["gateway", "node"]
"""What is in a folder: a run's gateway socket; what a node of a cluster keeps until it has sent it."""


def remove_stale_folders() -> list[str]:
    """Remove the folders of this user's dead owners; their names."""
    removed = []
    for kind in get_args(Kind):
        for stale in default_root().parent.glob(f"{kind}-*"):
            if not _alive(stale.name):
                shutil.rmtree(stale, ignore_errors=True)
                removed.append(stale.name)
    return removed


@contextmanager
def socket_folder(kind: Kind = "gateway") -> Iterator[Path]:
    """A fresh folder of mode 0700 that holds nothing; gone afterwards. Folders of dead owners are removed first."""
    remove_stale_folders()
    parent = default_root().parent
    number = 0
    while True:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = parent / f"{kind}-{os.getpid()}-{started(os.getpid())}-{number}"
        try:
            folder.mkdir(mode=0o700)
            break
        except FileExistsError:
            number += 1
        except FileNotFoundError:  # the last user of the parent has just removed it
            continue
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # somebody else still uses it
            parent.rmdir()


def _alive(name: str) -> bool:
    pid, _, start = name.partition("-")[2].rpartition("-")[0].partition("-")
    return pid.isdigit() and str(started(int(pid))) == start
