"""What an untrusted inside learns of the host and of its neighbours: nothing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.sandboxes import SandboxBackend, SandboxError, SandboxHandle
from tests.conformance.sandbox.inside import python, sh, until_sleepers
from tests.conformance.sandbox.kits.base import Kit

pytestmark = pytest.mark.asyncio(loop_scope="module")

# add_key and keyctl; request_key lies between them.
_ADD_KEY, _KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(platform.machine(), (None, None))
_SESSION_KEYRING, _UNLINK = -3, 9


async def test_files_of_the_host_are_not_there(box: SandboxHandle, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host only")
    secret.chmod(0o644)
    places = [secret, tmp_path, Path(__file__), Path.home() / ".cache", Path("/proc/1/root") / str(secret)[1:]]
    places += [Path(f"/proc/{os.getpid()}/root") / str(secret)[1:], Path(f"/proc/{os.getppid()}/cwd/pyproject.toml")]
    done = await sh(box, 'for p; do [ -e "$p" ] && echo "$p"; done; true', *map(str, places))
    assert done.stdout == b""


async def test_what_only_root_may_read_stays_unread(box: SandboxHandle) -> None:
    places = "/etc/shadow /etc/gshadow /etc/sudoers /etc/ssh/ssh_host_*_key /root/.ssh/id_* /proc/kcore /dev/mem"
    done = await sh(box, f"for p in {places}; do cat $p 2>/dev/null | head -c 100; done; true")
    assert done.stdout == b""


async def test_only_private_places_are_writable(box: SandboxHandle) -> None:
    folders = "/ /usr /usr/bin /bin /lib /etc /dev /proc/sys /proc/irq /sys /sys/fs/cgroup"
    script = f"for d in {folders}; do touch $d/x 2>/dev/null && echo $d; done; true"
    assert (await sh(box, script)).stdout == b""
    files = "/proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches /etc/passwd /etc/hosts"
    script = f"for f in {files}; do (echo 1 >> $f) 2>/dev/null && echo $f; done; true"
    assert (await sh(box, script)).stdout == b""


@pytest.fixture
def neighbour(nap: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host."""
    process = subprocess.Popen(["sleep", nap])
    yield process
    process.kill()
    process.wait()


async def test_processes_of_the_host_are_out_of_sight_and_reach(
    box: SandboxHandle, nap: str, neighbour: subprocess.Popen[bytes]
) -> None:
    seen = await sh(box, f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep {nap[:-1]}[{nap[-1]}]'")
    assert seen.stdout == b"0\n"
    await sh(box, f"for s in TERM KILL; do kill -$s {neighbour.pid}; done; kill -9 -{os.getpgid(0)}; true")
    assert neighbour.poll() is None


async def test_the_environment_of_the_first_process_holds_no_secret(
    backend: SandboxBackend, kit: Kit, monkeypatch: pytest.MonkeyPatch, nap: str
) -> None:
    """Nor that of any other; the spec's values are for commands, and a neighbour's command may not read them late."""
    monkeypatch.setenv("HF_TOKEN", f"token-{nap}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"token-{nap}")
    box = await backend.create(kit.spec())
    await box.exec(["true"], env={"CALL": f"token-{nap}"})
    job = await box.start(["sleep", nap], env={"VISIBLE": f"shown-{nap}"})
    await until_sleepers(box, nap, 1)
    seen = (await sh(box, "cat /proc/[0-9]*/environ /proc/1/environ 2>/dev/null | tr '\\0' '\\n'")).stdout
    assert f"shown-{nap}".encode() in seen, "or the next line shows nothing"
    assert f"token-{nap}".encode() not in seen
    await job.kill(0)


async def test_no_environment_value_is_in_a_file_others_can_read(backend: SandboxBackend, kit: Kit, nap: str) -> None:
    """Neither inside, nor on the host for other users."""
    box = await backend.create(kit.spec(env={"SPEC": f"value-{nap}"}))
    job = await box.start(["sleep", nap], env={"CALL": f"value-{nap}"})
    await until_sleepers(box, nap, 1)
    places = "$HOME /tmp /run /var /etc /opt /srv /dev/shm ."
    found = await sh(box, f"grep -rlsa 'valu[e]-{nap}' {places} 2>/dev/null; true")
    readable = (
        []
        if not found.stdout
        else (
            await sh(box, 'for f; do stat -c "%a %n" "$f"; done', *found.stdout.decode().split("\n")[:-1])
        ).stdout.split(b"\n")
    )
    assert [line for line in readable if line and int(line.split()[0], 8) & 0o077] == []
    await job.kill(0)


async def test_control_sockets_of_the_host_are_not_there(box: SandboxHandle) -> None:
    names = "docker.sock podman/podman.sock containerd/containerd.sock crio/crio.sock dbus/system_bus_socket"
    script = f"for n in {names}; do for d in /run /var/run; do [ -e $d/$n ] && echo $d/$n; done; done; true"
    assert (await sh(box, script)).stdout == b""
    variables = await sh(
        box, "env | grep -E '^(DOCKER_HOST|DBUS|SSH_AUTH_SOCK|KUBERNETES|DISPLAY|XDG_RUNTIME_DIR)'; true"
    )
    assert variables.stdout == b""


READ_KEY = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
keyctl, name = int(sys.argv[1]), sys.argv[2].encode()
for ring in (-1, -2, -3, -4, -5):
    serial = libc.syscall(keyctl, 10, ring, b"user", name, 0)
    buffer = ctypes.create_string_buffer(100)
    if serial > 0 and libc.syscall(keyctl, 11, serial, buffer, 100) > 0:
        print(buffer.value.decode())
"""


@pytest.fixture
def host_key(nap: str) -> Iterator[str]:
    """A key in the session keyring of this process, which children inherit."""
    libc = ctypes.CDLL(None, use_errno=True)
    name, secret = f"drivetrain-{nap}", f"key-{nap}".encode()
    serial = -1
    if _ADD_KEY is not None:
        serial = libc.syscall(_ADD_KEY, b"user", name.encode(), secret, len(secret), _SESSION_KEYRING)
    if serial > 0:
        command = [sys.executable, "-I", "-c", READ_KEY, str(_KEYCTL), name]
        read = subprocess.run(command, capture_output=True, text=True, check=True)
        assert read.stdout == f"key-{nap}\n", "a child of this process reads it, or the test shows nothing"
    yield name
    if serial > 0:
        libc.syscall(_KEYCTL, _UNLINK, serial, _SESSION_KEYRING)


@pytest.mark.needs("mount")
async def test_keys_of_the_host_are_out_of_reach(backend: SandboxBackend, kit: Kit, host_key: str) -> None:
    """Kerberos tickets and disk keys lie in keyrings, and those are no namespace's."""
    client = kit.client()
    box = await backend.create(kit.spec(mounts=client.mounts))
    assert await python(box, client, READ_KEY, str(_KEYCTL or 0), host_key) == ""
    names = await sh(box, "cat /proc/keys /proc/key-users 2>/dev/null; true")
    assert b"drivetrain-" not in names.stdout


KERNEL = """
import ctypes, errno, json, os, platform
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": {"mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308,
    "reboot": 169, "init_module": 175, "kexec_load": 246, "bpf": 321, "perf_event_open": 298, "swapon": 167,
    "settimeofday": 164, "open_by_handle_at": 304, "iopl": 172, "quotactl": 179, "acct": 163, "syslog": 103},
    "aarch64": {"mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268, "reboot": 142,
    "init_module": 105, "kexec_load": 104, "bpf": 280, "perf_event_open": 241, "swapon": 224, "settimeofday": 170,
    "open_by_handle_at": 265, "quotactl": 60, "acct": 89, "syslog": 116}}.get(platform.machine(), {})
arguments = {"mount": (b"none", b"/tmp", b"tmpfs", 0, 0), "umount2": (b"/tmp", 2), "pivot_root": (b"/tmp", b"/tmp"),
    "chroot": (b"/tmp",), "unshare": (0x00020000 | 0x20000000,), "setns": (0, 0), "swapon": (b"/tmp", 0),
    "reboot": (0xfee1dead, 672274793, 0, 0), "acct": (b"/tmp/acct",), "iopl": (3,), "syslog": (5, 0, 0)}
for name, number in numbers.items():
    if os.fork() == 0:
        result = libc.syscall(number, *arguments.get(name, (0, 0, 0, 0, 0)))
        os._exit(1 if result >= 0 else 0)
    status = os.wait()[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1:
        print(name)
"""


@pytest.mark.needs("mount")
async def test_the_kernel_refuses_what_changes_the_host(backend: SandboxBackend, kit: Kit) -> None:
    """Whether a filter kills the caller or an error comes back: none of these calls succeeds."""
    client = kit.client()
    box = await backend.create(kit.spec(mounts=client.mounts))
    assert await python(box, client, KERNEL) == ""


async def test_device_nodes_are_harmless(box: SandboxHandle) -> None:
    """No disk, no kernel memory, no FUSE, no GPU, no input; and none can be made."""
    allowed = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx"}
    found = await sh(box, "find /dev \\( -type b -o -type c \\) -not -path '/dev/pts/*' -readable -writable")
    assert {Path(line).name for line in found.stdout.decode().split()} <= allowed
    assert (await sh(box, "mknod null c 1 3 2>/dev/null && cat null > /dev/null")).exit_code != 0
    assert (await sh(box, "mknod disk b 8 0 2>/dev/null && head -c1 disk")).exit_code != 0


async def test_two_sandboxes_do_not_see_each_other(backend: SandboxBackend, kit: Kit, nap: str) -> None:
    one = await backend.create(kit.spec(env={"WHO": f"marker-{nap}"}))
    two = await backend.create(kit.spec())
    assert one.id != two.id
    job = await one.start(["sleep", nap])
    await until_sleepers(one, nap, 1)
    for place in ("/tmp", one.home, one.workdir, "/dev/shm"):
        await one.write(f"{place}/file-of-one", b"x")
    seen = await sh(two, "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; ls -A /tmp /dev/shm $HOME .")
    assert f"marker-{nap}".encode() not in seen.stdout
    assert b"file-of-one" not in seen.stdout
    before = sorted(kit.processes(f"sleep {nap}"))
    assert before
    with contextlib.suppress(SandboxError):
        await sh(two, "kill -9 -1", timeout_s=5)
    assert sorted(kit.processes(f"sleep {nap}")) == before
    await job.kill(0)


IPC = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
key = int(sys.argv[2])
flags = 0o1600 | 0o600 if sys.argv[1] == "make" else 0
print(libc.shmget(key, 4096, flags) >= 0)
"""


@pytest.mark.needs("mount")
async def test_shared_memory_is_not_shared_between_sandboxes(backend: SandboxBackend, kit: Kit, nap: str) -> None:
    client = kit.client()
    one, two = [await backend.create(kit.spec(mounts=client.mounts)) for _ in range(2)]
    key = str(int(nap) % 2**31)
    assert await python(one, client, IPC, "make", key) == "True\n"
    assert await python(one, client, IPC, "find", key) == "True\n"
    assert await python(two, client, IPC, "find", key) == "False\n"
    here = ctypes.CDLL(None).shmget(int(key), 4096, 0)
    assert here == -1
