"""The system call filter: what it answers, in an interpreter of its instructions and in the kernel."""

from __future__ import annotations

import errno
import json
import platform
import struct
import sys
from pathlib import Path

import pytest

from drivetrain.sandboxes import Mount, SandboxSpec, SandboxStartError
from drivetrain.sandboxes.local import LocalBackend, seccomp
from drivetrain.sandboxes.local import sandbox as local_sandbox

ALLOW, KILL = "allow", "kill"
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PYTHON_MOUNT = Mount(source=Path(sys.base_prefix), target=sys.base_prefix)
PYTHON = str(Path(sys.executable).resolve())


def answer(machine: str, number: int, *arguments: int, arch: int | None = None) -> str | int:
    """What the filter says to a call: ``allow``, ``kill`` or an errno."""
    words = [number & 0xFFFFFFFF, ARCH[machine] if arch is None else arch, 0, 0]
    for argument in (*arguments, *[0] * (6 - len(arguments))):
        words += [argument & 0xFFFFFFFF, argument >> 32 & 0xFFFFFFFF]
    program, at, value = seccomp.assemble(machine), 0, 0
    while True:
        code, if_true, if_false, constant = program[at]
        at += 1
        if code == 0x20:
            value = words[constant // 4]
        elif code == 0x06:
            kinds = {0x7FFF0000: ALLOW, 0x80000000: KILL}
            return kinds[constant] if constant in kinds else constant & 0xFFFF
        else:
            holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_refused_call_is_refused_and_the_others_are_not(machine: str) -> None:
    column = list(ARCH).index(machine)
    refused = {numbers[column] for numbers in seccomp._REFUSED.values()} - {None}
    special = {435: errno.ENOSYS}
    for number in range(600):
        expected = errno.EPERM if number in refused else special.get(number, ALLOW)
        if number not in (*([41, 53] if machine == "x86_64" else [198, 199]),):
            assert answer(machine, number) == expected, number


@pytest.mark.parametrize(("machine", "clone", "unshare"), [("x86_64", 56, 272), ("aarch64", 220, 97)])
def test_processes_and_threads_yes_namespaces_no(machine: str, clone: int, unshare: int) -> None:
    fork, thread = 17, 0x3D0F00
    assert answer(machine, clone, fork) == ALLOW
    assert answer(machine, clone, thread) == ALLOW
    assert answer(machine, unshare, 0x400) == ALLOW  # CLONE_FILES
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(machine, clone, fork | flag) == errno.EPERM
        assert answer(machine, unshare, flag) == errno.EPERM
    assert answer(machine, unshare, 0x80) == errno.EPERM  # time


@pytest.mark.parametrize(("machine", "socket", "pair"), [("x86_64", 41, 53), ("aarch64", 198, 199)])
def test_the_socket_families_programs_use(machine: str, socket: int, pair: int) -> None:
    for family in (1, 2, 10):
        for kind in (1, 2, 0x80801):
            assert answer(machine, socket, family, kind, 0) == ALLOW
    assert answer(machine, socket, 16, 3, 0) == ALLOW  # the list of interfaces
    assert answer(machine, socket, 16, 3, 9) == errno.EPROTONOSUPPORT
    assert answer(machine, socket, 2, 1, 132) == errno.EPROTONOSUPPORT
    for family in (17, 29, 30, 38, 40):  # packet, can, tipc, alg, vsock
        assert answer(machine, socket, family, 3, 0) == errno.EAFNOSUPPORT
        assert answer(machine, pair, family, 3, 0) == errno.EAFNOSUPPORT
    assert answer(machine, pair, 1, 1, 0) == ALLOW


@pytest.mark.parametrize(
    ("machine", "number", "position"),
    [("x86_64", 90, 1), ("x86_64", 91, 1), ("x86_64", 268, 2), ("x86_64", 452, 2), ("aarch64", 53, 2)],
)
def test_set_id_bits(machine: str, number: int, position: int) -> None:
    def change(mode: int) -> str | int:
        return answer(machine, number, *[0] * position, mode)

    assert [change(mode) for mode in (0o755, 0o1777, 0o4755, 0o2755)] == [ALLOW, ALLOW, errno.EPERM, errno.EPERM]


@pytest.mark.parametrize(("machine", "ioctl"), [("x86_64", 16), ("aarch64", 29)])
def test_terminal_input_cannot_be_forged(machine: str, ioctl: int) -> None:
    assert answer(machine, ioctl, 0, 0x5401) == ALLOW  # TCGETS
    assert answer(machine, ioctl, 0, 0x5412) == errno.EPERM
    assert answer(machine, ioctl, 0, 0x5412 | 7 << 32) == errno.EPERM  # the kernel ignores the upper half
    assert answer(machine, ioctl, 0, 0x541C) == errno.EPERM


def test_other_instruction_sets() -> None:
    assert answer("x86_64", 20, arch=0x40000003) == KILL  # i386
    assert answer("aarch64", 20, arch=0x40000028) == KILL  # 32-bit arm
    assert answer("x86_64", 0x40000000 | 39) == errno.ENOSYS  # x32
    with pytest.raises(SandboxStartError, match="riscv64"):
        seccomp.assemble("riscv64")


# Group -> (call, numbers on x86_64 and aarch64, arguments, errno with the filter). Without it each answers otherwise.
PROBES: dict[str, tuple[tuple[int, int], list[int], int]] = {
    "mount": ((165, 40), [1, 1, 1, 0, 0], errno.EPERM),
    "open_tree": ((428, 428), [-100, 1, 0], errno.EPERM),
    "setns": ((308, 268), [-1, 0], errno.EPERM),
    "unshare user": ((272, 97), [0x10000000], errno.EPERM),
    "clone user": ((56, 220), [0x10000011, 0, 0, 0, 0], errno.EPERM),
    "clone3": ((435, 435), [0, 0], errno.ENOSYS),
    "keyctl": ((250, 219), [0, -3, 0], errno.EPERM),
    "perf_event_open": ((298, 241), [1, 0, -1, -1, 0], errno.EPERM),
    "userfaultfd": ((323, 282), [1], errno.EPERM),
    "io_uring_setup": ((425, 425), [1, 1], errno.EPERM),
    "clock_settime": ((227, 112), [0, 1], errno.EPERM),
    "name_to_handle_at": ((303, 264), [-100, 1, 1, 1, 0], errno.EPERM),
    "process_vm_readv": ((310, 270), [0, 1, 0, 1, 0, 0], errno.EPERM),
    "TIOCSTI": ((16, 29), [0, 0x5412, 1], errno.EPERM),
    "packet socket": ((41, 198), [17, 3, 0], errno.EAFNOSUPPORT),
    "netlink audit": ((41, 198), [16, 3, 9], errno.EPROTONOSUPPORT),
    "set-uid": ((91, 52), [3, 0o4755], errno.EPERM),
}
SCRIPT = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert os.open("file", os.O_CREAT | os.O_RDWR) == 3
said = {}
for name, (number, arguments) in json.loads(sys.argv[1]).items():
    result = libc.syscall(number, *[ctypes.c_long(each) for each in arguments])
    if name.startswith("clone") and result == 0:
        os._exit(0)
    said[name] = ctypes.get_errno() if result < 0 else 0
print(json.dumps(said))
"""


async def ask(root: Path) -> dict[str, int]:
    column = list(ARCH).index(platform.machine())
    calls = {name: (numbers[column], arguments) for name, (numbers, arguments, _) in PROBES.items()}
    backend = LocalBackend(root)
    try:
        box = await backend.create(SandboxSpec(mounts=(PYTHON_MOUNT,)))
        done = await box.exec([PYTHON, "-I", "-c", SCRIPT, json.dumps(calls)])
        assert done.exit_code == 0, done.stderr.decode()
        said: dict[str, int] = json.loads(done.stdout)
        return said
    finally:
        await backend.aclose()


async def test_the_kernel_refuses_each_group(tmp_path: Path) -> None:
    assert await ask(tmp_path) == {name: expected for name, (_, _, expected) in PROBES.items()}


async def test_it_is_the_filter_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_sandbox, "program", lambda: struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000))
    said = await ask(tmp_path)
    assert [name for name, (_, _, expected) in PROBES.items() if said[name] == expected] == []


async def test_what_programs_need_still_works(tmp_path: Path) -> None:
    script = """
import multiprocessing, os, socket, sqlite3, ssl, subprocess, tempfile, threading
assert multiprocessing.get_context("spawn").Queue()
threading.Thread(target=lambda: None).start()
assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
socket.socketpair(); socket.socket(); socket.socket(socket.AF_INET6); socket.if_nameindex()
with tempfile.TemporaryDirectory() as folder:
    sqlite3.connect(folder + "/db").execute("create table t (x)")
    os.chmod(folder, 0o1777); os.mkfifo(folder + "/fifo"); os.memfd_create("m"); os.eventfd(0)
    os.setxattr("file", "user.x", b"1") if hasattr(os, "setxattr") else None
print(os.pidfd_open(os.getpid()) > 0)
"""
    backend = LocalBackend(tmp_path)
    box = await backend.create(SandboxSpec(mounts=(PYTHON_MOUNT,)))
    await box.write("file", b"")
    done = await box.exec([PYTHON, "-I", "-c", script])
    assert done.stdout == b"True\n", done.stderr.decode()
    await backend.aclose()
