"""The reaper takes what is ours and orphaned, and nothing else."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from drivetrain.sandboxes.label import Label, new_id, new_label, read_label, started, write_label
from drivetrain.sandboxes.local.reaper import DEADLINE_GRACE_S, owner_is_gone, reap, remove_tree


def make(root: Path, *, deadline: float | None = None, **changes: object) -> Path:
    label = new_label(new_id(), time.time() + 3600 if deadline is None else deadline, {"run": "r"})
    for name, value in changes.items():
        setattr(label, name, value)
    folder = root / label.id
    (folder / "work" / "deep").mkdir(parents=True)
    (folder / "work" / "deep" / "file").touch()
    write_label(folder, label)
    return folder


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_labels_survive_the_disk(tmp_path: Path) -> None:
    label = read_label(make(tmp_path))
    assert isinstance(label, Label)
    assert label.owner_pid == os.getpid()
    assert label.owner_started == started(os.getpid())
    assert label.labels == {"run": "r"}
    assert not owner_is_gone(label)


def test_a_living_owner_keeps_its_sandbox(tmp_path: Path) -> None:
    folder = make(tmp_path)
    assert reap(tmp_path) == []
    assert folder.exists()


def test_a_dead_owner_does_not(tmp_path: Path, dead_pid: int) -> None:
    folder = make(tmp_path, owner_pid=dead_pid)
    assert reap(tmp_path) == [folder.name]
    assert not folder.exists()
    assert reap(tmp_path) == []


def test_a_recycled_pid_is_a_dead_owner(tmp_path: Path) -> None:
    folder = make(tmp_path, owner_started=1)
    assert reap(tmp_path) == [folder.name]


def test_the_deadline_counts_after_a_grace(tmp_path: Path) -> None:
    fresh = make(tmp_path, deadline=time.time() - 1)
    old = make(tmp_path, deadline=time.time() - DEADLINE_GRACE_S - 1)
    assert reap(tmp_path) == [old.name]
    assert fresh.exists()


def test_pids_of_another_boot_or_namespace_say_nothing(tmp_path: Path, dead_pid: int) -> None:
    other_boot = make(tmp_path, owner_pid=dead_pid, boot="another")
    other_namespace = make(tmp_path, owner_pid=dead_pid, pid_namespace="pid:[1]")
    assert reap(tmp_path) == []
    assert other_boot.exists()
    assert other_namespace.exists()


def test_the_first_process_is_killed_if_it_is_still_the_same(tmp_path: Path, dead_pid: int) -> None:
    ours, recycled = subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sleep", "600"])
    try:
        make(tmp_path, owner_pid=dead_pid, init_pid=ours.pid, init_started=started(ours.pid))
        make(tmp_path, owner_pid=dead_pid, init_pid=recycled.pid, init_started=1)
        assert len(reap(tmp_path)) == 2
        assert ours.wait(5) == -9
        assert recycled.poll() is None
    finally:
        for process in (ours, recycled):
            process.kill()
            process.wait()


def test_a_start_that_was_cut_off_is_killed(tmp_path: Path, dead_pid: int) -> None:
    folder = make(tmp_path, owner_pid=dead_pid)
    half_started = subprocess.Popen(
        ["tail", "-f", "/dev/null", str(folder / "work" / "deep" / "file"), str(folder / "work")]
    )
    try:
        assert reap(tmp_path) == [folder.name]
        assert half_started.wait(5) == -9
    finally:
        half_started.kill()
        half_started.wait()


def test_what_is_not_ours_stays(tmp_path: Path, dead_pid: int) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "dt-unlabelled").mkdir()
    (tmp_path / "dt-garbage").mkdir()
    (tmp_path / "dt-garbage" / "label.json").write_text("{")
    moved = make(tmp_path, owner_pid=dead_pid)
    moved.rename(tmp_path / "dt-renamed")
    (tmp_path / "dt-link").symlink_to(make(tmp_path / "elsewhere", owner_pid=dead_pid))
    before = sorted(tmp_path.iterdir())
    assert reap(tmp_path) == []
    assert sorted(tmp_path.iterdir()) == before


def test_an_empty_folder_from_a_crash_goes_when_old(tmp_path: Path) -> None:
    folder = tmp_path / "dt-000000000000"
    folder.mkdir()
    assert reap(tmp_path) == []
    assert folder.exists()
    os.utime(folder, (1, 1))
    reap(tmp_path)
    assert not folder.exists()


def test_a_missing_root_is_fine(tmp_path: Path) -> None:
    assert reap(tmp_path / "none") == []


def test_removal_does_not_follow_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "keep").exists()
    remove_tree(tree)
