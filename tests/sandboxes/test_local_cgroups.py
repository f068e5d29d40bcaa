"""Control groups, also of a version this machine does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.sandboxes import Limits, SandboxStats
from drivetrain.sandboxes.local import cgroups
from drivetrain.sandboxes.local.cgroups import make_groups, possible_folders, remove_cgroups

LIMITS = Limits(memory_bytes=1 << 30, pids=100, cpus=1.5)


@pytest.fixture
def hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A version 2 group of ours in which children may be limited."""
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    monkeypatch.setattr(cgroups, "_own_folder", lambda controller: tmp_path if controller == "" else None)
    cgroups._v2_parent.cache_clear()
    yield tmp_path
    cgroups._v2_parent.cache_clear()


def test_version_2_has_one_group_with_every_limit(hierarchy: Path) -> None:
    assert possible_folders("dt-1") == [hierarchy / "drivetrain-dt-1"]
    groups = make_groups("dt-1", LIMITS)
    folder = hierarchy / "drivetrain-dt-1"
    assert groups.folders == [folder]
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        "memory.max": str(1 << 30),
        "memory.swap.max": "0",
        "pids.max": str(100 + cgroups.PIDS_OVERHEAD),
        "cpu.max": "150000 100000",
    }
    assert groups.missing(LIMITS) == []
    (folder / "cgroup.procs").touch()
    groups.add(77)
    assert (folder / "cgroup.procs").read_text() == "77"


def test_version_2_statistics(hierarchy: Path) -> None:
    groups = make_groups("dt-1", LIMITS)
    folder = hierarchy / "drivetrain-dt-1"
    for name, text in {
        "cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
        "memory.current": "4096\n",
        "memory.peak": "8192\n",
        "pids.current": "3\n",
        "memory.events": "low 0\noom 2\noom_kill 1\noom_group_kill 0\n",
    }.items():
        (folder / name).write_text(text)
    assert groups.stats() == SandboxStats(cpu_s=1.5, memory_bytes=4096, memory_peak_bytes=8192, pids=3, oom_kills=1)


def test_version_2_without_the_processor_controller(
    hierarchy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text = Path.write_text

    def refuse(self: Path, text: str) -> int:
        if self.name == "cpu.max":
            raise PermissionError(13, "denied")
        return write_text(self, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    groups = make_groups("dt-1", LIMITS)
    assert groups.missing(LIMITS) == ["processor"]
    assert groups.missing(Limits()) == []


def test_nothing_where_nothing_may_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_own_folder", lambda _controller: None)
    cgroups._v2_parent.cache_clear()
    groups = make_groups("dt-1", LIMITS)
    cgroups._v2_parent.cache_clear()
    assert groups.folders == []
    assert groups.missing(LIMITS) == ["memory", "process", "processor"]
    assert groups.stats() == SandboxStats()


def test_version_1_shared_hierarchies_are_one_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several controllers may be mounted together."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "memory").mkdir()
    places = {"cpu": tmp_path / "shared", "pids": tmp_path / "shared", "memory": tmp_path / "memory"}
    monkeypatch.setattr(cgroups, "_own_folder", places.get)
    monkeypatch.setattr(cgroups, "_v2_parent", lambda: None)
    expected = possible_folders("dt-1")
    groups = make_groups("dt-1", LIMITS)
    assert expected == groups.folders
    assert sorted(folder.parent.name for folder in groups.folders) == ["memory", "shared"]
    assert (tmp_path / "shared" / "drivetrain-dt-1" / "cpu.cfs_quota_us").read_text() == "150000"
    assert (tmp_path / "shared" / "drivetrain-dt-1" / "pids.max").exists()
    assert groups.missing(LIMITS) == []


def test_groups_of_this_machine_come_and_go() -> None:
    groups = make_groups("dt-test-come-and-go", LIMITS)
    assert set(groups.folders) <= set(possible_folders("dt-test-come-and-go"))
    assert all(folder.is_dir() for folder in groups.folders)
    remove_cgroups(groups.folders)
    assert not any(folder.exists() for folder in groups.folders)
    remove_cgroups(groups.folders)
