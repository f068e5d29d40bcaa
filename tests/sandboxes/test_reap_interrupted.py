"""Killed in the middle of making or removing a sandbox's folder: whatever is left is still the reaper's."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drivetrain.sandboxes.label import LABEL_FILE, new_id, new_label, read_label, write_label
from drivetrain.sandboxes.local.reaper import reap, remove_tree

_STEPS = ("unlink", "rmdir", "rename", "mkdir")


class Killed(BaseException):
    """Nothing handles this one, as nothing handles SIGKILL."""


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def make(root: Path, owner: int) -> Path:
    label = new_label(new_id(), time.time() + 3600, {})
    label.owner_pid = owner
    folder = root / label.id
    folder.mkdir(parents=True)
    write_label(folder, label)
    for name in ("home", "work/deep", "zz"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").touch()
    (folder / "work" / "deep").chmod(0)
    (folder / "socket").touch()
    (folder / "link").symlink_to(root)
    return folder


def killed_after(steps: int, work: Callable[[], Any]) -> bool:
    """Whether ``work`` was cut off before its step number ``steps`` + 1 that changes a folder."""
    done = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            if done == steps:
                raise Killed
            done += 1
            return change(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in _STEPS:
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.case("F1")
@pytest.mark.parametrize("who", ["owner", "reaper"])
def test_a_removal_that_was_cut_off_is_finished(tmp_path: Path, dead_pid: int, who: str) -> None:
    for steps in range(200):
        root = tmp_path / str(steps)
        folder = make(root, dead_pid)
        if not killed_after(
            steps, lambda folder=folder, root=root: remove_tree(folder) if who == "owner" else reap(root)
        ):
            break
        if folder.exists() and read_label(folder) is None:
            assert list(folder.iterdir()) == []  # its very last step
            os.utime(folder, (1, 1))
        reap(root)
        assert not folder.exists(), steps
    assert steps > 8


@pytest.mark.case("F1")
def test_a_label_that_was_not_finished_does_not_keep_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / new_id()
    folder.mkdir()
    assert killed_after(0, lambda: write_label(folder, new_label(folder.name, 0.0, {})))
    assert [entry.name for entry in folder.iterdir()] == [LABEL_FILE + ".new"]
    reap(tmp_path)
    assert folder.exists()  # its owner may be about to go on
    os.utime(folder, (1, 1))
    reap(tmp_path)
    assert not folder.exists()
