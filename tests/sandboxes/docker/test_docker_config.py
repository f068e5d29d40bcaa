"""What a container is asked to be and gets to start with; no engine needed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from drivetrain.sandboxes import Limits, Mount, SandboxSpec, SandboxStartError
from drivetrain.sandboxes.docker.config import User, check, container_config, inside_path, parse_user
from drivetrain.sandboxes.docker.labels import (
    SANDBOX,
    SNAPSHOT,
    as_changes,
    kept_overlays,
    make_labels,
    read_labels,
)
from drivetrain.sandboxes.docker.reaper import _dead_folders, is_over
from drivetrain.sandboxes.docker.runtime import build_inside
from drivetrain.sandboxes.docker.seed import Accounts, accounts, build_seed
from drivetrain.sandboxes.docker.usage import Usage
from drivetrain.sandboxes.label import new_id, new_label

USER = User(1000, 1000)
NAMES = Accounts("agent", b"passwd", b"group")


def config(spec: SandboxSpec) -> dict[str, object]:
    made: dict[str, object] = container_config(
        spec, image="sha256:1", user=USER, inside=Path("/inside"), control=Path("/control"), labels={"a": "b"}
    )
    return made


def members(tar: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return {member.name: member for member in archive}


def test_no_environment_value_is_in_the_container() -> None:
    made = config(SandboxSpec(env={"KEY": "hush"}, labels={"rollout": "r"}))
    assert "Env" not in made
    assert "hush" not in json.dumps(made)


@pytest.mark.parametrize(("network", "mode"), [("none", "none"), ("gateway", "none"), ("open", "bridge")])
def test_only_an_open_network_is_one(network: str, mode: str) -> None:
    spec = SandboxSpec(network=network, gateway_socket=Path("/x/socket"))  # type: ignore[arg-type]
    assert config(spec)["HostConfig"]["NetworkMode"] == mode  # type: ignore[index]


def test_the_engine_sets_up_no_interface_for_a_closed_network() -> None:
    assert (config(SandboxSpec())["NetworkDisabled"], config(SandboxSpec(network="open"))["NetworkDisabled"]) == (
        *(True, False),
    )
    assert b"localhost" in build_seed(SandboxSpec(), USER, NAMES)
    assert "etc/hosts" not in members(build_seed(SandboxSpec(network="open"), USER, NAMES))


def test_limits_become_the_containers() -> None:
    host = config(SandboxSpec(limits=Limits(memory_bytes=1 << 30, pids=50, cpus=1.5, file_bytes=7, open_files=9)))[
        "HostConfig"
    ]
    assert isinstance(host, dict)
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"]) == (
        *(1 << 30, 1 << 30, 1_500_000_000, 66),
    )
    assert {each["Name"]: each["Hard"] for each in host["Ulimits"]} == {"core": 0, "nofile": 9, "fsize": 7}
    assert f"size={1 << 29}" in host["Tmpfs"]["/tmp"]
    assert "NanoCpus" not in config(SandboxSpec())["HostConfig"]  # type: ignore[operator]


def test_mounts_are_read_only_unless_asked_and_parents_come_first(tmp_path: Path) -> None:
    mounts = (
        Mount(tmp_path, "/opt/a/b", writable=True),
        Mount(tmp_path, "/opt/a"),
        Mount(tmp_path, "/opt/c", overlay=True),  # copied, not mounted
    )
    made = config(SandboxSpec(mounts=mounts))["HostConfig"]["Mounts"]  # type: ignore[index]
    assert [(m["Target"], m["ReadOnly"]) for m in made] == [
        *(("/.drivetrain", True), ("/.drivetrain-control", True), ("/opt/a", True), ("/opt/a/b", False)),
    ]


@pytest.mark.parametrize(
    "target", ["relative", "/a/../b", "/", "/proc", "/etc", "/.drivetrain/init.py", "/.drivetrain-control"]
)
def test_places_the_sandbox_needs_are_refused(target: str) -> None:
    with pytest.raises(SandboxStartError):
        inside_path(target)


def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for spec, words in (
        (SandboxSpec(limits=Limits(ttl_s=0)), "time to live"),
        (SandboxSpec(network="gateway"), "gateway_socket"),
        (SandboxSpec(network="gateway", gateway_socket=tmp_path / "no/socket"), "Start the gateway"),
        (SandboxSpec(mounts=(Mount(tmp_path / "none", "/x"),)), "none"),
        (SandboxSpec(mounts=(Mount(tmp_path / "file", "/x", overlay=True),)), "no folder"),
    ):
        with pytest.raises(SandboxStartError, match=words):
            check(spec)


def test_a_user_is_numbers() -> None:
    assert (parse_user("7"), parse_user("7:8")) == (User(7, 7), User(7, 8))
    for text in ("root", "1000:", "-1", ""):
        with pytest.raises(SandboxStartError):
            parse_user(text)


def test_the_user_gets_a_name_only_where_the_image_has_none() -> None:
    node = b"root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n"
    assert accounts(node, b"node:x:1000:\n", USER) == Accounts("node", node, b"node:x:1000:\n")
    fresh = accounts(b"root:x:0:0::/root:/bin/sh", b"", USER)  # without a line end
    assert fresh.name == "agent"
    assert fresh.passwd.splitlines()[1] == b"agent:x:1000:1000:agent:/home/agent:/bin/sh"
    assert fresh.group == b"agent:x:1000:\n"
    taken = accounts(b"agent:x:5:5::/:/bin/sh\n", b"agent:x:5:\n", USER)
    assert (taken.name, taken.group.splitlines()[1]) == ("agent1000", b"agent1000:x:1000:")


def test_home_workdir_and_the_way_to_mounts_in_them_are_the_users(tmp_path: Path) -> None:
    mounts = (Mount(tmp_path, "/home/agent/.cache/x/m"), Mount(tmp_path, "/opt/m"), Mount(tmp_path, "/w/d/sub"))
    made = members(build_seed(SandboxSpec(workdir="/w/d", mounts=mounts), USER, NAMES))
    assert [name for name, member in made.items() if member.uid == 1000] == [
        *("home/agent", "home/agent/.cache", "home/agent/.cache/x", "w/d"),
    ]
    assert [name for name, member in made.items() if member.uid == 0] == ["etc/passwd", "etc/group", "etc/hosts"]


def test_a_mounted_workdir_is_not_touched(tmp_path: Path) -> None:
    made = members(build_seed(SandboxSpec(mounts=(Mount(tmp_path, "/work"),)), USER, NAMES))
    assert "work" not in made


def test_an_overlay_is_a_copy_of_the_users_own_and_kept_ones_are_not_copied_again(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    (tmp_path / "run").chmod(0o750)
    (tmp_path / "link").symlink_to("run")
    os.mkfifo(tmp_path / "fifo")
    spec = SandboxSpec(mounts=(Mount(tmp_path, "/opt/m", overlay=True),))
    made = members(build_seed(spec, USER, NAMES))
    assert {"opt/m", "opt/m/run", "opt/m/link"} <= made.keys()
    assert "opt/m/fifo" not in made
    assert (made["opt/m/run"].mode, made["opt/m/run"].uid, made["opt/m/link"].linkname) == (0o750, 1000, "run")
    assert "opt/m/run" not in members(build_seed(spec, USER, NAMES, {"/opt/m"}))


def test_labels_say_whose_it_is_and_only_ours_are_read(tmp_path: Path) -> None:
    label = new_label(new_id(), 12.5, {"task": 'quote " and \\ and $HOME'})
    made = make_labels(SANDBOX, label, tmp_path)
    assert read_labels(SANDBOX, made, tmp_path) == label
    assert read_labels(SNAPSHOT, made, tmp_path) is None
    assert read_labels(SANDBOX, made, tmp_path / "other") is None
    assert read_labels(SANDBOX, {**made, "dev.drivetrain.user": "4711"}, tmp_path) is None
    assert read_labels(SANDBOX, {}, tmp_path) is None
    label.host = "elsewhere"
    assert read_labels(SANDBOX, make_labels(SANDBOX, label, tmp_path), tmp_path) is None


def test_an_images_labels_do_not_make_its_container_a_snapshot(tmp_path: Path) -> None:
    kept = make_labels(SNAPSHOT, new_label(new_id(), 0.0, {}), tmp_path, ["/opt/m"])
    made = {**kept, **make_labels(SANDBOX, new_label(new_id(), 1.0, {}), tmp_path)}
    assert read_labels(SNAPSHOT, made, tmp_path) is None
    assert (kept_overlays(kept), kept_overlays(made), kept_overlays({})) == ({"/opt/m"}, frozenset(), frozenset())


def test_labels_of_a_commit_are_quoted() -> None:
    assert as_changes({"a": 'x"y\\z$w'}) == ['LABEL a="x\\"y\\\\z\\$w"']


def test_what_is_over() -> None:
    assert not is_over(new_label(new_id(), 1e12, {}))
    assert is_over(new_label(new_id(), 1.0, {}))
    dead = new_label(new_id(), 1e12, {})
    dead.owner_started -= 1  # the pid is another process now
    assert is_over(dead)
    dead.boot = "another boot"  # its pids say nothing here
    assert not is_over(dead)


def test_a_folder_without_a_label_is_ours_only_when_it_is_old_and_empty(tmp_path: Path) -> None:
    for name, entries, age in (
        ("dt-old", [], 700),
        ("dt-half", ["label.json.new"], 700),
        ("dt-new", [], 0),
        ("dt-full", ["precious"], 700),
        ("other", [], 700),
    ):
        (tmp_path / name).mkdir()
        for entry in entries:
            (tmp_path / name / entry).touch()
        os.utime(tmp_path / name, (0, time.time() - age))
    (tmp_path / "dt-link").symlink_to(tmp_path)
    assert {folder.name for folder in _dead_folders(tmp_path)} == {"dt-old", "dt-half"}


def test_the_python_that_is_mounted_needs_nothing_of_the_image() -> None:
    """Run in an empty environment; all it maps is its own."""
    inside = build_inside()
    probe = "import select, resource, tarfile, zlib, socket; print(open('/proc/self/maps').read())"
    command = [inside / "loader", "--library-path", inside / "libs", inside / "python/bin/python3", "-I", "-S", "-B"]
    done = subprocess.run([*command, "-c", probe], capture_output=True, text=True, check=True, env={})
    mapped = {line.split()[-1] for line in done.stdout.splitlines() if ".so" in line or "/bin/" in line}
    assert mapped
    assert all(Path(path).is_relative_to(inside) for path in mapped), mapped
    assert not any(path.name == "site-packages" for path in (inside / "python").rglob("*"))
    assert build_inside() == inside


def test_use_is_read_from_either_version_of_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = tmp_path / "cgroup"
    real = Path.read_text

    def read_text(self: Path, *args: str) -> str:
        return proc.read_text() if str(self) == "/proc/4711/cgroup" else real(self, *args)

    proc.write_text("0::/docker/x\n")
    v2 = tmp_path / "v2" / "docker" / "x"
    v2.mkdir(parents=True)
    for name, text in {
        "cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
        "memory.current": "5000\n",
        "memory.stat": "anon 1\ninactive_file 1000\n",
        "memory.peak": "9000\n",
        "memory.events": "low 0\noom_kill 2\n",
        "pids.current": "3\n",
    }.items():
        (v2 / name).write_text(text)
    monkeypatch.setattr(Path, "read_text", read_text)
    stats = Usage(4711, tmp_path / "v2").read()
    assert (stats.cpu_s, stats.memory_bytes, stats.memory_peak_bytes, stats.pids, stats.oom_kills) == (
        *(1.5, 4000, 9000, 3, 2),
    )
    none = Usage(4711, tmp_path / "nothing").read()
    assert (none.cpu_s, none.memory_bytes, none.pids) == (None, None, None)
