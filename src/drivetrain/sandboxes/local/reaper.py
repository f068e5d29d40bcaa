"""Removes what dead owners left behind: processes, cgroups and folders, and only those with our label."""

# Every close of a sandbox waits for this, and pathlib costs as much as the system calls.
# ruff: noqa: PTH106, PTH108
from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drivetrain.sandboxes.label import LABEL_FILE, PREFIX, Label, read_label, same_world, started
from drivetrain.sandboxes.local.cgroups import remove_cgroups

# A sandbox ends itself at its deadline; the owner gets this long to close it before the reaper does.
DEADLINE_GRACE_S = 30.0
# A folder whose owner was killed before its label was there, or after it went.
UNLABELLED_AGE_S = 600.0
_UNFINISHED = {LABEL_FILE + ".new"}
_EXEC_TRIES = 20


def remove_tree(folder: Path) -> None:
    """Remove a folder tree, also where its owner made directories unreadable; missing is fine.

    Its label goes last, so that what a kill in the middle leaves can still be attributed.
    Safe against symlinks planted by the sandbox: the standard library walks by file descriptor on Linux.
    """

    def unlock(_function: Callable[..., Any], path: str, error: tuple[Any, ...]) -> None:
        if isinstance(error[1], FileNotFoundError):
            return
        for each in (Path(path).parent, Path(path)):
            if each.is_relative_to(folder) and not each.is_symlink() and stat.S_ISDIR(each.lstat().st_mode):
                each.chmod(0o700)

    try:
        with os.scandir(folder) as entries:
            inside = [
                (entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries if entry.name != LABEL_FILE
            ]
    except FileNotFoundError:
        return
    for path, is_folder in [*inside, (str(folder / LABEL_FILE), False)]:
        if is_folder:
            _remove_folder(Path(path), unlock)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    _remove_folder(folder, unlock)


def _remove_folder(folder: Path, unlock: Callable[[Callable[..., Any], str, tuple[Any, ...]], None]) -> None:
    try:
        os.rmdir(folder)  # an empty one, as most are, in a tenth of the time
        return
    except FileNotFoundError:
        return
    except OSError:
        pass
    for _ in range(64):  # one pass per level of locked directories
        shutil.rmtree(folder, onerror=unlock)
        if not folder.exists():
            return
    shutil.rmtree(folder)


def owner_is_gone(label: Label) -> bool:
    """Whether the process that made the sandbox has ended. False when that cannot be told from here."""
    if not same_world(label):
        return False
    return started(label.owner_pid) != label.owner_started


def _kill_starting(folder: Path) -> None:
    """Kill bubblewrap processes of this sandbox: a child whose parent died while both started would wait for ever."""
    needle = os.fsencode(f"/{folder.name}/work") + b"\0"
    for _ in range(_EXEC_TRIES):
        if not _kill_with(needle):
            return
        time.sleep(0.01)


def _kill_with(argument: bytes) -> bool:
    """Kill every process with this argument; returns whether one was met whose arguments are not there yet."""
    starting = False
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                arguments = (entry / "cmdline").read_bytes()
                if argument in arguments:
                    os.kill(int(entry.name), signal.SIGKILL)
                elif not arguments and (entry / "exe").readlink():  # neither a kernel thread nor a zombie: in execve
                    starting = True
    return starting


def _kill(label: Label) -> None:
    """Kill PID 1 of the sandbox, and with it everything inside; wait until it is gone (10 s at most)."""
    pid, born = label.init_pid, label.init_started
    if pid is None or born is None or not same_world(label):
        return
    until = time.monotonic() + 10
    while started(pid) == born and time.monotonic() < until:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.01)


def reap(root: Path) -> list[str]:
    """Remove every sandbox below ``root`` whose owner is dead or whose deadline has passed; return their ids.

    Blocks; call it from a thread in async code. Folders without our name and label are never touched.
    """
    reaped: list[str] = []
    try:
        folders = [entry for entry in root.iterdir() if entry.name.startswith(PREFIX) and not entry.is_symlink()]
    except OSError:
        return reaped
    for folder in folders:
        label = read_label(folder)
        if label is None:
            if _older_than(folder, UNLABELLED_AGE_S) and {entry.name for entry in folder.iterdir()} <= _UNFINISHED:
                remove_tree(folder)
            continue
        if label.id != folder.name:
            continue
        if owner_is_gone(label) or time.time() > label.deadline + DEADLINE_GRACE_S:
            _kill(label)
            _kill_starting(folder)
            remove_cgroups([Path(path) for path in label.cgroups])
            remove_tree(folder)
            reaped.append(label.id)
    return reaped


def _older_than(folder: Path, age_s: float) -> bool:
    try:
        return time.time() - folder.stat().st_mtime > age_s
    except OSError:
        return False
