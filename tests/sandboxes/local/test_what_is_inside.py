"""The exact view from inside a local sandbox; what every backend promises is in tests/conformance/sandbox."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from drivetrain.sandboxes import Limits, Mount, SandboxBackend, SandboxHandle, SandboxSpec, SandboxStartError

PYTHON_MOUNT = Mount(source=Path(sys.base_prefix), target=sys.base_prefix)
PYTHON = str(Path(sys.executable).resolve())


async def test_nothing_of_the_host_but_its_programs(box: SandboxHandle, tmp_path: Path) -> None:
    (tmp_path / "host-only").touch()
    hidden = ["/root", "/mnt", "/srv", "/boot", "/sys", "/etc/shadow", "/etc/ssl/private", "/etc/ssh", str(tmp_path)]
    script = 'for p; do if [ -e "$p" ]; then echo "$p"; fi; done'
    assert (await box.exec(["sh", "-c", script, "sh", *hidden])).stdout == b""
    assert (await box.exec(["ls", "-A", "/tmp", "/run", "/home", box.home, box.workdir])).stdout.split() == [
        *b"/home: agent /home/agent: /run: /tmp: /work:".split()
    ]
    assert b"agent:x:1000" in await box.read("/etc/passwd")


async def test_the_writable_places_are_these(box: SandboxHandle) -> None:
    private = {box.home, box.workdir, "/tmp", "/run", "/dev/shm", "/dev/pts"}
    found = await box.exec(["sh", "-c", "find / -maxdepth 3 -path /proc -prune -o -type d -writable -print"])
    assert set(found.stdout.decode().split()) == private
    script = "for d in / /usr /etc /dev /proc/sys /proc/irq /.drivetrain; do touch $d/x && echo $d; done"
    done = await box.exec(["sh", "-c", script])
    assert (done.stdout, done.stderr.count(b"cannot touch")) == (b"", 7)


async def test_an_open_network_is_the_hosts(backend: SandboxBackend) -> None:
    host = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = host.sockets[0].getsockname()[1]
    script = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)"
    async with host:
        shut = await backend.create(SandboxSpec(mounts=(PYTHON_MOUNT,)))
        assert b"ConnectionRefusedError" in (await shut.exec([PYTHON, "-I", "-c", script])).stderr
        wide = await backend.create(SandboxSpec(mounts=(PYTHON_MOUNT,), network="open"))
        assert (await wide.exec([PYTHON, "-I", "-c", script])).exit_code == 0


async def test_the_gateways_folder_holds_the_socket_only(backend: SandboxBackend, tmp_path: Path) -> None:
    """It is mounted as a whole, so that a restarted gateway (a new socket at the same path) is reached."""
    with pytest.raises(SandboxStartError, match="gateway"):
        await backend.create(SandboxSpec(network="gateway", gateway_socket=tmp_path / "none" / "g.sock"))
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "journal.db").touch()
    with pytest.raises(SandboxStartError, match="journal"):
        await backend.create(SandboxSpec(network="gateway", gateway_socket=tmp_path / "shared" / "g.sock"))


async def test_file_systems_in_memory_are_full_before_the_memory_is(backend: SandboxBackend) -> None:
    box = await backend.create(SandboxSpec(limits=Limits(memory_bytes=64 << 20)))
    for path in ("/dev/shm/f", "/tmp/f", "/run/f"):
        done = await box.exec(["sh", "-c", f"head -c 200000000 /dev/zero > {path}"], timeout_s=30)
        assert b"No space left" in done.stderr
        assert (await box.exec(["rm", path])).exit_code == 0


@pytest.mark.parametrize("target", ["/usr", "/etc", "/.drivetrain/init.py", "/usr/no/such/folder"])
async def test_places_that_a_sandbox_needs_for_itself(backend: SandboxBackend, tmp_path: Path, target: str) -> None:
    with pytest.raises(SandboxStartError):
        await backend.create(SandboxSpec(mounts=(Mount(source=tmp_path, target=target),)))


async def test_a_start_that_fails_says_what_bubblewrap_said(backend: SandboxBackend, sandbox_root: Path) -> None:
    with pytest.raises(SandboxStartError, match="bwrap"):
        await backend.create(SandboxSpec(workdir="/usr/bin/sh/below-a-file"))
    assert list(sandbox_root.iterdir()) == []
