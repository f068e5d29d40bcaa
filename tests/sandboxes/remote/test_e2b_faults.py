"""What goes wrong between here and E2B: nothing is lost, nothing is done twice, nothing leaks."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from drivetrain.errors import ConfigError
from drivetrain.sandboxes import SandboxGone, SandboxHandle, SandboxSpec, SandboxStartError
from drivetrain.sandboxes.e2b import E2BBackend
from drivetrain.sandboxes.remote import patience
from tests.conformance.sandbox.kits.base import command_lines
from tests.sandboxes.doubles.e2b_server import E2BServer
from tests.sandboxes.remote.conftest import connection

FEW = "echo a line >> log; wc -l < log"


@pytest.mark.case("F7")
@pytest.mark.parametrize("fault", ["502 run", "sever run", "502 write", "lose write", "429 run"])
async def test_a_command_runs_once_whatever_happens_to_the_calls(
    box: SandboxHandle, server: E2BServer, fault: str
) -> None:
    server.faults.left[fault] = 2
    done = await box.exec(["sh", "-c", FEW])
    assert (done.exit_code, done.stdout) == (0, b"1\n")
    assert server.faults.left[fault] == 0, "the fault did not happen"
    assert (await box.exec(["sh", "-c", FEW])).stdout == b"2\n"


@pytest.mark.case("F7")
async def test_a_job_goes_on_while_the_link_is_down(box: SandboxHandle, server: E2BServer) -> None:
    job = await box.start(["sh", "-c", "for n in 1 2 3 4 5 6 7 8; do echo $n; sleep 0.2; done; exit 3"])
    for _ in range(4):
        await asyncio.sleep(0.25)
        assert server.cut() > 0
    done = await job.wait(30)
    assert (done.exit_code, done.stdout) == (3, b"1\n2\n3\n4\n5\n6\n7\n8\n")
    assert job.poll() == 3


async def test_large_files_survive_lost_parts(box: SandboxHandle, server: E2BServer) -> None:
    data = bytes(range(256)) * 80_000  # 20 MB: three parts
    server.faults.left["lose write"] = 1
    server.faults.left["502 write"] = 1
    await box.write("big", data)
    server.faults.left["502 read"] = 2
    assert await box.read("big") == data
    assert not server.faults.left["502 read"]


async def test_a_lost_reply_to_create_is_no_second_box(backend: E2BBackend, server: E2BServer) -> None:
    server.faults.left["lose create"] = 1
    box = await backend.create(SandboxSpec())
    assert len(server.made) == 1
    assert (await box.exec(["echo", "here"])).stdout == b"here\n"
    assert server.calls["list"] >= 1


async def test_a_create_that_never_gets_an_answer_leaves_no_box(
    backend: E2BBackend, server: E2BServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies to create and to the look-up are lost; the sweep at the end gets through."""
    monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    monkeypatch.setattr(patience.patiently, "__kwdefaults__", {"patience_s": 0.0})
    server.faults.left["lose create"] = 1
    with pytest.raises(SandboxStartError, match="did not start"):
        await backend.create(SandboxSpec())
    assert server.made == {}


async def test_too_many_requests_are_waited_out_as_asked(backend: E2BBackend, server: E2BServer) -> None:
    server.faults.left["429 create"] = 2
    server.faults.retry_after = "1"
    begun = time.monotonic()
    await backend.create(SandboxSpec())
    assert time.monotonic() - begun >= 2
    assert server.calls["create"] == 3


async def test_a_quota_that_stays_used_up_is_a_typed_error(
    backend: E2BBackend, server: E2BServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience.patiently, "__kwdefaults__", {"patience_s": 0.5})
    server.faults.left["429 create"] = 1000
    server.faults.retry_after = None
    with pytest.raises(SandboxStartError, match="busy or a quota") as caught:
        await backend.create(SandboxSpec())
    assert "Run fewer" in caught.value.fix
    assert server.made == {}


async def test_a_box_that_vanishes_is_gone_for_everybody(box: SandboxHandle, server: E2BServer) -> None:
    job = await box.start(["sleep", "100"])
    server.vanish(next(iter(server.made)))
    with pytest.raises(SandboxGone):
        await job.wait(30)
    with pytest.raises(SandboxGone):
        await box.exec(["true"])


async def test_a_supervisor_that_is_killed_is_a_box_that_is_gone(box: SandboxHandle) -> None:
    job = await box.start(["sleep", "100"])
    found = command_lines(f"setup-{box.id}".encode())
    assert found
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxGone, match="supervisor"):
        await job.wait(30)


async def test_a_wrong_key_says_what_to_do(server: E2BServer) -> None:
    backend = E2BBackend(**{**connection(server), "api_key": "e2b_wrong"})
    with pytest.raises(ConfigError, match="E2B_API_KEY"):
        await backend.create(SandboxSpec())


async def test_a_template_without_python_says_so_and_is_ended(backend: E2BBackend, server: E2BServer) -> None:
    with pytest.raises(SandboxStartError, match="python3"):
        await backend.create(SandboxSpec(image="no-python"))
    assert server.made == {}


async def test_an_unknown_template_is_named(backend: E2BBackend) -> None:
    with pytest.raises(SandboxStartError, match="no-such-template"):
        await backend.create(SandboxSpec(image="no-such-template"))


async def test_the_lease_is_short_and_extended_while_the_owner_lives(
    backend: E2BBackend, server: E2BServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivetrain.sandboxes.remote.sandbox.RENEW_S", 0.2)
    await backend.create(SandboxSpec())
    made = next(iter(server.made.values()))
    first = made.end
    assert made.end - made.started <= 300
    for _ in range(100):
        if server.calls["timeout"] >= 2:
            break
        await asyncio.sleep(0.05)
    assert made.end > first


async def test_one_bad_link_does_not_touch_other_sandboxes(backend: E2BBackend, server: E2BServer) -> None:
    one, two = await asyncio.gather(backend.create(SandboxSpec()), backend.create(SandboxSpec()))
    job = await one.start(["sh", "-c", "sleep 1; echo fine"])
    server.vanish(two.provider_id)  # type: ignore[attr-defined]
    with pytest.raises(SandboxGone):
        await two.exec(["true"])
    assert (await job.wait(30)).stdout == b"fine\n"


async def test_a_slow_provider_is_only_slow(box: SandboxHandle, server: E2BServer) -> None:
    server.faults.delay_s = 0.3
    assert (await box.exec(["echo", "late"], timeout_s=10)).stdout == b"late\n"


async def test_the_environment_is_in_no_file_and_no_argv_after_the_start(box: SandboxHandle, server: E2BServer) -> None:
    secret = "value-that-must-not-show-91b7"
    job = await box.start(["sleep", "100"], env={"SECRET": secret})
    made = next(iter(server.made.values()))
    for path in (made.box.root / "var" / "lib" / "drivetrain").rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                assert secret.encode() not in (entry / "cmdline").read_bytes()
            except OSError:
                continue
    await job.kill(0)


async def test_other_users_inside_cannot_read_what_jobs_leave(box: SandboxHandle) -> None:
    job = await box.start(["sh", "-c", "echo private; sleep 100"])
    done = await box.exec(
        ["sh", "-c", "ls /var/lib/drivetrain/*/jobs; cat /var/lib/drivetrain/*/jobs/*/stdout; echo x"]
    )
    assert done.stdout == b"x\n"
    await job.kill(0)
