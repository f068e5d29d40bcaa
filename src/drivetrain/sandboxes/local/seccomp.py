"""The system calls a sandbox does without: a filter program for the kernel, assembled here (x86_64 and aarch64).

A deny list: what is left out runs as usual, so compilers, debuggers, node and the JVM work. Refused is what an ordinary
user has no business with, or what has been the way out of namespaces before: mounts, namespaces (and the capabilities
that come with them), keys, BPF, io_uring, modules, other processes' memory, terminals' input, rare socket families, and
set-uid bits on files, which would mean something on the host where a mount is writable.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
from collections.abc import Sequence

from drivetrain.sandboxes.protocol import SandboxStartError

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant

_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _ARCH = 0, 4  # offsets in struct seccomp_data
_X32_BIT = 0x40000000

_ARCHES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# name -> numbers on (x86_64, aarch64); None where there is no such call. One number: the same on both.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # mounts
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    # namespaces (see also unshare, clone, clone3)
    "setns": (308, 268),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # keys
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # large surfaces of the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "modify_ldt": (154, None),
    "nfsservctl": (180, 42),
    # the kernel itself and the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "create_module": (174, None),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "iopl": (172, None),
    "ioperm": (173, None),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "_sysctl": (156, None),
    # files by handle, past every mount
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # other processes; ptrace stays for debuggers, it obeys the same rules and tracees are filtered again
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
}
_UNSHARE, _CLONE, _CLONE3 = (272, 97), (56, 220), (435, 435)
_IOCTL, _SOCKET, _SOCKETPAIR = (16, 29), (41, 198), (53, 199)
# name -> (numbers, which argument is the mode)
_CHMOD: dict[str, tuple[tuple[int | None, int | None], int]] = {
    "chmod": ((90, None), 1),
    "fchmod": ((91, 52), 1),
    "fchmodat": ((268, 53), 2),
    "fchmodat2": ((452, 452), 2),
}

# Time, mount, cgroup, UTS, IPC, user, pid, net.
_NAMESPACE_FLAGS = 0x00000080 | 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
# In clone, 0x80 belongs to the exit signal.
_CLONE_NAMESPACE_FLAGS = _NAMESPACE_FLAGS & ~0x80
_TERMINAL = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
_UNIX, _INET, _INET6, _NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
_DCCP, _SCTP = 33, 132
_SET_ID_BITS = 0o6000


def _argument(number: int) -> _Instruction:
    """Load the low half of an argument; the kernel itself looks at no more of those we test."""
    return (_LOAD, 0, 0, 16 + 8 * number)


def _answer(code: int) -> _Instruction:
    return (_RET, 0, 0, _ERRNO | code)


def _if_equal(value: int, then: Sequence[_Instruction]) -> list[_Instruction]:
    return [(_JEQ, 0, len(then), value), *then]


def _if_any_bit(bits: int, then: Sequence[_Instruction]) -> list[_Instruction]:
    return [(_JSET, 0, len(then), bits), *then]


_PASS: _Instruction = (_RET, 0, 0, _ALLOW)


def _socket_rules() -> list[_Instruction]:
    """Unix, IPv4, IPv6 without SCTP and DCCP, and netlink for the list of interfaces; nothing else."""
    odd_protocols = [
        *_if_equal(_SCTP, [_answer(errno.EPROTONOSUPPORT)]),
        *_if_equal(_DCCP, [_answer(errno.EPROTONOSUPPORT)]),
    ]
    internet = [_argument(2), *odd_protocols, _PASS]
    netlink = [_argument(2), *_if_equal(_NETLINK_ROUTE, [_PASS]), _answer(errno.EPROTONOSUPPORT)]
    rules = [_argument(0), *_if_equal(_UNIX, [_PASS])]
    for family in (_INET, _INET6):
        rules += _if_equal(family, internet)
    return [*rules, *_if_equal(_NETLINK, netlink), _answer(errno.EAFNOSUPPORT)]


def assemble(machine: str) -> list[_Instruction]:
    """The filter for a processor, as instructions.

    Raises:
        SandboxStartError: no numbers are known for it.
    """
    if machine not in _ARCHES:
        raise SandboxStartError(f"There is no system call filter for {machine}.", fix="Use x86_64 or aarch64.")
    column, arch = _ARCHES[machine]
    refuse = _answer(errno.EPERM)
    # Another instruction set has other numbers: a filter must not be talked past in 32 bits.
    program: list[_Instruction] = [(_LOAD, 0, 0, _ARCH), (_JEQ, 1, 0, arch), (_RET, 0, 0, _KILL_PROCESS)]
    program.append((_LOAD, 0, 0, _NUMBER))
    if machine == "x86_64":
        program += [(_JGE, 0, 1, _X32_BIT), _answer(errno.ENOSYS)]

    def rule(numbers: tuple[int | None, int | None], then: Sequence[_Instruction]) -> None:
        number = numbers[column]
        if number is not None:
            program.extend(_if_equal(number, then))

    for numbers in _REFUSED.values():
        rule(numbers, [refuse])
    rule(_CLONE3, [_answer(errno.ENOSYS)])  # its flags are out of a filter's sight; everybody falls back to clone
    rule(_UNSHARE, [_argument(0), *_if_any_bit(_NAMESPACE_FLAGS, [refuse]), _PASS])
    rule(_CLONE, [_argument(0), *_if_any_bit(_CLONE_NAMESPACE_FLAGS, [refuse]), _PASS])
    terminal = [instruction for command in _TERMINAL for instruction in _if_equal(command, [refuse])]
    rule(_IOCTL, [_argument(1), *terminal, _PASS])
    rule(_SOCKET, _socket_rules())
    rule(_SOCKETPAIR, [_argument(0), *_if_equal(_UNIX, [_PASS]), _answer(errno.EAFNOSUPPORT)])
    for numbers, mode in _CHMOD.values():
        rule(numbers, [_argument(mode), *_if_any_bit(_SET_ID_BITS, [refuse]), _PASS])
    return [*program, _PASS]


@functools.cache
def program() -> bytes:
    """The filter for this machine as an array of ``struct sock_filter``, what ``bwrap --seccomp`` reads.

    Raises:
        SandboxStartError: this processor is not known.
    """
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in assemble(platform.machine()))
