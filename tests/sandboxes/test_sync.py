"""The blocking facade: threads, interrupts, forks, the end of the program."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from drivetrain.errors import ConfigError
from drivetrain.sandboxes import (
    BgJob,
    SandboxBackend,
    SandboxError,
    SandboxGone,
    SandboxHandle,
    SandboxSpec,
    SandboxStartError,
)
from drivetrain.sandboxes.local import LocalBackend
from drivetrain.sandboxes.pool import SandboxPool
from drivetrain.sandboxes.sync import SyncBackend, SyncJob, SyncSandbox
from tests.sandboxes.pool_kit import FakeBackend, FakeSandbox

SPEC = SandboxSpec()
needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture
def fake() -> FakeBackend:
    backend = FakeBackend()
    backend.create_s = backend.close_s = 0.01
    return backend


@pytest.fixture
def backend(fake: FakeBackend) -> Iterator[SyncBackend]:
    with SyncBackend(fake) as made:
        yield made
    assert fake.closings == 1


@pytest.mark.parametrize(
    ("contract", "facade", "name"),
    [
        (contract, facade, name)
        for contract, facade in ((BgJob, SyncJob), (SandboxHandle, SyncSandbox), (SandboxBackend, SyncBackend))
        for name in vars(contract)
        if not name.startswith("_")
    ],
)
def test_every_method_of_the_contract_is_there(contract: type, facade: type, name: str) -> None:
    wanted = getattr(contract, name)
    found = getattr(facade, {"aclose": "close"}.get(name, name))
    if isinstance(wanted, property):
        assert isinstance(found, property)
        return
    assert not inspect.iscoroutinefunction(found)
    assert list(inspect.signature(found).parameters.values()) == list(inspect.signature(wanted).parameters.values())


@needs_bwrap
def test_a_local_sandbox_without_a_loop(tmp_path: Path) -> None:
    root = tmp_path / "sandboxes"
    with SyncBackend(LocalBackend(root)) as backend:
        with backend.create(SPEC) as box:
            assert backend.name == "local" and "mount" in backend.features
            assert (box.workdir, box.home.startswith("/")) == ("/work", True)
            box.write("a/b", b"\x00\xff")
            assert box.read("a/b") == b"\x00\xff"
            box.upload(box.download("/work"), "/work/copy")
            done = box.exec(["sh", "-c", "cat; echo $X; ls copy; pwd"], env={"X": "x"}, stdin=b"in\n", cwd="/work")
            assert (done.exit_code, done.stdout) == (0, b"in\nx\na\n/work\n")
            box.stats()
            job = box.start(["sh", "-c", "echo begun; sleep 60"])
            assert job.pid > 0
            with pytest.raises(TimeoutError):
                job.wait(0.05)
            assert job.poll() is None
            deadline = time.monotonic() + 20
            while job.tail() != b"begun\n" and time.monotonic() < deadline:
                time.sleep(0.01)
            assert job.tail() == b"begun\n"
            job.kill(0.0)
            assert job.wait().exit_code == 137
            with pytest.raises(FileNotFoundError):
                box.read("missing")
            with pytest.raises(SandboxError):
                box.gateway_url()
            assert len(list(root.iterdir())) == 1
        assert list(root.iterdir()) == []
        with pytest.raises(SandboxGone):
            box.exec(["true"])
        backend.create(SPEC)  # nobody closes it
    assert list(root.iterdir()) == []


def test_many_threads_at_once(backend: SyncBackend, fake: FakeBackend) -> None:
    fake.create_s = 0.2

    def use(number: int) -> str:
        with backend.create(SPEC) as box:
            for _ in range(10):
                assert box.exec([str(number)]).exit_code == 0
            return box.id

    begun = time.monotonic()
    with ThreadPoolExecutor(20) as threads:
        ids = list(threads.map(use, range(20)))
    assert len(set(ids)) == 20
    assert fake.peak > 1  # they ran side by side
    assert fake.present == set()
    assert time.monotonic() - begun < 60


async def test_from_inside_a_running_loop(backend: SyncBackend) -> None:
    with backend.create(SPEC) as box:
        assert box.read("x") == b"x"
    assert await asyncio.to_thread(lambda: backend.create(SPEC).id)


def test_a_pool_behind_it(fake: FakeBackend) -> None:
    pool = SandboxPool(fake, max_total=2, max_warm=0)
    with SyncBackend(pool) as backend, ThreadPoolExecutor(8) as threads:

        def use(_: int) -> None:
            with backend.create(SPEC) as box:
                box.exec(["true"])

        list(threads.map(use, range(8)))
        assert pool.statistics().misses == 8
    assert fake.peak == 2
    assert fake.present == set()


def test_errors_pass_through_with_their_type(backend: SyncBackend, fake: FakeBackend) -> None:
    fake.errors = [SandboxStartError("It did not come up.", fix="Look.")]
    with pytest.raises(SandboxStartError, match=r"It did not come up\. Look\."):
        backend.create(SPEC)
    box = backend.create(SPEC)
    fake.made[-1].die()
    with pytest.raises(SandboxGone):
        box.exec(["true"])


def test_after_close_every_call_says_so(fake: FakeBackend) -> None:
    backend = SyncBackend(fake)
    box = backend.create(SPEC)
    backend.close()
    backend.close()
    for call in (lambda: backend.create(SPEC), backend.reap, lambda: box.exec(["true"]), lambda: box.read("x")):
        with pytest.raises(SandboxGone, match="SyncBackend was closed"):
            call()
    box.close()  # it is
    assert "drivetrain-sandboxes" not in [thread.name for thread in threading.enumerate()]


def test_close_ends_what_other_threads_wait_for(fake: FakeBackend) -> None:
    fake.create_s = 1000
    backend = SyncBackend(fake)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(backend.create, SPEC) for _ in range(4)]
        while len(fake.starts) < 4:
            time.sleep(0.005)
        closers = [threading.Thread(target=backend.close) for _ in range(3)]
        for closer in closers:
            closer.start()
        for future in waiting:
            with pytest.raises(SandboxGone):
                future.result(30)
        for closer in closers:
            closer.join(30)
    assert fake.present == set()
    assert fake.closings == 1


def test_calls_and_close_race(fake: FakeBackend) -> None:
    """No call that comes while it closes hangs or leaves a sandbox."""
    for _ in range(30):
        fake.closings = 0
        fake.create_s = fake.close_s = 0.0
        backend = SyncBackend(fake)
        stop = threading.Event()

        def hammer(backend: SyncBackend = backend, stop: threading.Event = stop) -> None:
            with pytest.raises(SandboxGone):
                while not stop.wait(0):
                    backend.create(SPEC).close()

        threads = [threading.Thread(target=hammer, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.002)
        backend.close()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


def interrupt_when(condition: Any) -> threading.Thread:
    """Ctrl-C for the main thread once ``condition()`` holds."""

    def wait() -> None:
        while not condition():
            time.sleep(0.005)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_an_interrupted_start_leaves_nothing(backend: SyncBackend, fake: FakeBackend) -> None:
    fake.create_s = 1000
    thread = interrupt_when(lambda: fake.starts)
    with pytest.raises(KeyboardInterrupt):
        backend.create(SPEC)
    thread.join()
    assert fake.present == set()  # already here: the clean-up was waited for
    fake.create_s = 0.0
    with backend.create(SPEC) as box:
        box.exec(["true"])


def test_a_start_that_finished_in_spite_of_the_interrupt_is_closed(fake: FakeBackend) -> None:
    class Stubborn(FakeBackend):
        async def create(self, spec: SandboxSpec) -> FakeSandbox:
            inner = asyncio.create_task(super().create(spec))
            while not inner.done():
                try:
                    await asyncio.shield(inner)
                except asyncio.CancelledError:
                    self.create_s = 0.0
            return inner.result()

    stubborn = Stubborn()
    stubborn.create_s, stubborn.close_s = 0.5, 0.0
    with SyncBackend(stubborn) as backend:
        thread = interrupt_when(lambda: stubborn.starts)
        with pytest.raises(KeyboardInterrupt):
            backend.create(SPEC)
        thread.join()
        assert [sandbox.closed for sandbox in stubborn.made] == [True]


@needs_bwrap
def test_an_interrupt_kills_the_command(tmp_path: Path) -> None:
    with SyncBackend(LocalBackend(tmp_path / "s")) as backend, backend.create(SPEC) as box:
        mark = tmp_path.name

        def runs() -> bool:
            return any(mark.encode() in line for line in command_lines())

        thread = interrupt_when(runs)
        with pytest.raises(KeyboardInterrupt):
            box.exec(["sh", "-c", "sleep 600; true", mark])
        thread.join()
        deadline = time.monotonic() + 20
        while (still := f"sh\0-c\0sleep 600; true\0{mark}".encode()) and any(still in line for line in command_lines()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert box.exec(["echo", "still here"]).stdout == b"still here\n"


def command_lines() -> list[bytes]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes())
            except OSError:
                continue
    return found


def test_a_call_from_its_own_loop_is_refused(fake: FakeBackend) -> None:
    class Nested(FakeBackend):
        async def reap(self) -> list[str]:
            return backend.reap()

    backend = SyncBackend(Nested())
    with pytest.raises(ConfigError, match="wait for ever"):
        backend.reap()
    backend.close()


def test_a_forked_child_is_told(backend: SyncBackend) -> None:
    box = backend.create(SPEC)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in (lambda: backend.create(SPEC), lambda: box.exec(["true"]), box.close, backend.close):
            try:
                call()
                said.append("nothing")
            except ConfigError as error:
                said.append(str(error))
        backend._loop._close_at_exit()  # what the interpreter would run: leaves the parent's alone
        os.write(writer, "\n".join(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        lines = pipe.read().decode().splitlines()
    os.waitpid(child, 0)
    assert len(lines) == 4
    assert all(f"belongs to process {os.getpid()}" in line and "after the fork" in line for line in lines)
    assert box.exec(["true"]).exit_code == 0  # ours still works


PROGRAM = """
import sys, pathlib
from drivetrain.sandboxes import SandboxSpec
from drivetrain.sandboxes.local import LocalBackend
from drivetrain.sandboxes.sync import SyncBackend

def main():
    backend = SyncBackend(LocalBackend(pathlib.Path(sys.argv[1])))
    box = backend.create(SandboxSpec())
    box.start(["sleep", "600"])
    print(box.id)
    {end}

main()
"""


@needs_bwrap
@pytest.mark.parametrize("end", ["pass", "raise KeyboardInterrupt", "raise SystemExit(3)"])
def test_the_end_of_the_program_closes_it(tmp_path: Path, end: str) -> None:
    root = tmp_path / "sandboxes"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{end}", end), str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith("dt-")
    assert "Exception ignored" not in done.stderr and "RuntimeError" not in done.stderr
    assert list(root.iterdir()) == []
