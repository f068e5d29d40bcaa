"""What is particular to the local backend: its start checks, its fall-backs, its clean-up of old crashes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.sandboxes import Limits, SandboxSpec, SandboxStartError
from drivetrain.sandboxes.label import new_id, new_label, read_label, write_label
from drivetrain.sandboxes.local import LocalBackend, launcher
from drivetrain.sandboxes.local import backend as local
from drivetrain.sandboxes.local import sandbox as local_sandbox
from drivetrain.sandboxes.local.cgroups import Groups
from drivetrain.sandboxes.local.interpreter import Interpreter, find_interpreter
from drivetrain.sandboxes.local.reaper import reap
from drivetrain.sandboxes.local.sandbox import LocalSandbox


def fake_bwrap(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


async def test_missing_bubblewrap_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="apt-get install bubblewrap"):
        await LocalBackend(tmp_path / "root").create(SandboxSpec())
    assert not (tmp_path / "root").exists()


async def test_forbidden_namespaces_are_named_with_bubblewraps_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "bwrap: setting up uid map: Permission denied"
    fake_bwrap(
        tmp_path / "bin",
        f'[ "$1" = --version ] && echo bubblewrap 0.8.0 && exit; echo "{words}" >&2; exit 1',
        monkeypatch,
    )
    with pytest.raises(SandboxStartError, match=words) as caught:
        await LocalBackend(tmp_path / "root").create(SandboxSpec())
    assert "user namespaces" in caught.value.fix
    assert list((tmp_path / "root").iterdir()) == []


async def test_a_start_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bwrap(tmp_path / "bin", '[ "$1" = --version ] && echo bubblewrap 0.8.0 && exit; exec sleep 4719', monkeypatch)
    monkeypatch.setattr(local_sandbox, "START_TIMEOUT_S", 0.3)
    with pytest.raises(SandboxStartError):
        await LocalBackend(tmp_path / "root").create(SandboxSpec())
    assert list((tmp_path / "root").iterdir()) == []


async def test_a_root_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="somebody else"):
        await LocalBackend(tmp_path / "link").create(SandboxSpec())


async def test_the_root_is_private(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path / "a" / "root")
    await backend.create(SandboxSpec())
    assert (tmp_path / "a" / "root").stat().st_mode & 0o777 == 0o700
    await backend.aclose()


async def test_the_first_create_removes_what_a_dead_owner_left(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])  # noqa: ASYNC220 (over at once)
    process.wait()
    label = new_label(new_id(), 1e12, {})
    label.owner_pid = process.pid
    (tmp_path / label.id).mkdir()
    write_label(tmp_path / label.id, label)
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec())
    assert [entry.name for entry in tmp_path.iterdir()] == [box.id]
    await backend.aclose()


async def test_the_label_names_the_groups_before_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the two would leave groups that nobody finds."""
    made: list[tuple[set[str], set[str]]] = []
    make = local_sandbox.make_groups

    def watched(sandbox_id: str, limits: Limits) -> Groups:
        label = read_label(tmp_path / sandbox_id)
        groups = make(sandbox_id, limits)
        made.append(({str(folder) for folder in groups.folders}, set(label.cgroups if label is not None else [])))
        return groups

    monkeypatch.setattr(local_sandbox, "make_groups", watched)
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec(limits=Limits(cpus=1)))
    label = read_label(tmp_path / box.id)
    await backend.aclose()
    [(groups, told)] = made
    assert groups <= told
    assert label is not None
    assert label.init_pid is not None


async def test_a_start_cut_off_while_pid_1_is_limited_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, go_on = asyncio.Event(), threading.Event()
    end_early = LocalSandbox._end_early

    async def waiting(box: LocalSandbox) -> int | None:
        waits.set()
        return await end_early(box)

    monkeypatch.setattr(LocalSandbox, "_end_early", waiting)
    monkeypatch.setattr(Groups, "add", lambda _self, _pid: go_on.wait(60))
    backend = LocalBackend(tmp_path)
    creating = asyncio.create_task(backend.create(SandboxSpec()))
    await waits.wait()
    creating.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await backend.aclose()
    assert list(tmp_path.iterdir()) == []


async def test_without_control_groups_it_says_so_once_and_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local_sandbox, "make_groups", lambda *_: Groups())
    backend = LocalBackend(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            box = await backend.create(SandboxSpec(limits=Limits(pids=77)))
    assert [record.message.count("memory and process limit") for record in caplog.records] == [1]
    limits = (await box.exec(["cat", "/proc/self/limits"])).stdout.decode()
    assert "77" in next(line for line in limits.splitlines() if line.startswith("Max processes"))
    assert "unlimited" in next(line for line in limits.splitlines() if line.startswith("Max address space"))
    await backend.aclose()


async def test_without_control_groups_statistics_come_from_the_process_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_sandbox, "make_groups", lambda *_: Groups())
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec())
    before = await box.stats()
    await box.exec(["sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"])
    job = await box.start(["sleep", "4723"])
    after = await box.stats()
    assert before.cpu_s is not None
    assert after.cpu_s is not None
    assert after.cpu_s >= before.cpu_s + 0.03
    assert (before.pids, after.pids) == (1, 3)  # PID 1; a keeper and its command
    assert after.memory_bytes is not None
    assert 1 << 20 < after.memory_bytes < 1 << 30
    await job.kill(0)
    await backend.aclose()


async def test_without_a_system_python_ours_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = str(Path(sys.executable).resolve())
    monkeypatch.setattr(local_sandbox, "find_interpreter", lambda: Interpreter(executable, Path(sys.base_prefix)))
    (tmp_path / "gw").mkdir()
    backend = LocalBackend(tmp_path / "root", relay_port=8123)
    spec = SandboxSpec(network="gateway", gateway_socket=tmp_path / "gw" / "s.sock")
    box = await backend.create(spec)
    assert box.gateway_url() == "http://127.0.0.1:8123"
    await box.write("x", b"1")
    assert await box.read("x") == b"1"
    assert (await box.exec(["readlink", "-f", "/proc/self/exe"])).exit_code == 0
    await backend.aclose()


def test_an_incomplete_system_python_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_args: object, **_options: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess([], 1)

    monkeypatch.setattr(subprocess, "run", run)
    found = find_interpreter.__wrapped__()
    assert Path(found.executable) == Path(sys.executable).resolve()
    assert found.mount in (None, Path(sys.base_prefix))


async def test_a_fork_of_the_owner_does_not_keep_sandboxes_alive(tmp_path: Path) -> None:
    """A forked worker inherits the control socket; the sandbox must end with the owner, not with the last fork."""
    script = """
import asyncio, os, sys, time
from pathlib import Path
from drivetrain.sandboxes import SandboxSpec
from drivetrain.sandboxes.local import LocalBackend
async def main():
    box = await LocalBackend(Path(sys.argv[1])).create(SandboxSpec())
    job = await box.start(["sleep", "4718"])
    pid = os.fork()
    if pid == 0:
        os.close(1)
        time.sleep(5)
        os._exit(0)
    print(job.pid, pid, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    job, fork = map(int, output.split())
    try:
        for _ in range(200):
            if not Path(f"/proc/{job}").exists():
                break
            await asyncio.sleep(0.01)
        assert not Path(f"/proc/{job}").exists()
        assert Path(f"/proc/{fork}").exists()  # or the test shows nothing
    finally:
        os.kill(fork, 9)
    assert len(reap(tmp_path)) == 1


async def test_a_start_cut_off_at_any_moment_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bubblewrap's child waits for its parent before it is tied to it; killing only the parent would orphan it."""
    backend = LocalBackend(tmp_path)
    await (await backend.create(SandboxSpec())).close()
    launch = launcher.launch
    delay = 0.0

    def launch_and_cancel(order: launcher.Order) -> Future[subprocess.Popen[bytes]]:
        future = launch(order)
        time.sleep(delay)
        task.cancel()
        return future

    names = [new_id() for _ in range(30)]
    unused = iter(names)
    monkeypatch.setattr(local, "new_id", lambda: next(unused))
    monkeypatch.setattr(local_sandbox, "launch", launch_and_cancel)
    for step in range(30):
        delay = step * 0.0005
        task = asyncio.create_task(backend.create(SandboxSpec()))
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.sleep(0.2)
    assert list(tmp_path.iterdir()) == []
    lines = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            lines.append((entry / "cmdline").read_bytes())
    assert not [line for line in lines if any(name.encode() in line for name in names)]
    groups = {folder.name for folder in Path("/sys/fs/cgroup").glob("**/drivetrain-*")}
    assert groups.isdisjoint(f"drivetrain-{name}" for name in names)
