"""The bubblewrap command line: what a local sandbox sees, and that is all it sees."""

# Pathlib takes milliseconds for the many small looks at the host that each sandbox needs.
# ruff: noqa: PTH110, PTH112, PTH114, PTH115, PTH116
from __future__ import annotations

import functools
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Protocol

from drivetrain.errors import MissingDependency
from drivetrain.sandboxes.local.interpreter import Interpreter, boot_argv
from drivetrain.sandboxes.protocol import SandboxSpec, SandboxStartError

HOME = "/home/agent"
USER = "agent"
UID = 1000
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# On the read-only root: nothing inside can rename or cover it.
INSIDE = "/.drivetrain"
GATEWAY_FOLDER = f"{INSIDE}/gateway"
LOWER_FOLDER = f"{INSIDE}/lower"  # what the overlays lie over, for snapshots to compare with
RUN_BYTES = 64 << 20  # at most

# Read-only host files that programs need and that hold no secret (not /etc/ssl itself: it has private keys).
_ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ssl/certs",
    "ssl/openssl.cnf",
    "ca-certificates.conf",
    "pki/tls/certs",
    "pki/tls/cert.pem",
    "pki/tls/openssl.cnf",
    "pki/ca-trust/extracted",
    "crypto-policies",
    "mime.types",
    "services",
    "protocols",
)
# Where the uid inside is root's as far as file modes go (see owner.py), these are writable; and these tell too much.
# (the list is Docker's, https://github.com/moby/moby/blob/master/oci/defaults.go). bwrap itself covers a part of it.
_PROC_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger", "mtrr", "dynamic_debug")
_PROC_MASKED = ("acpi", "asound", "kcore", "kmsg", "keys", "latency_stats", "timer_list", "sched_debug", "scsi")
_OWN_ETC: Mapping[str, str] = {
    "passwd": f"root:x:0:0:root:/:/usr/sbin/nologin\n{USER}:x:{UID}:{UID}:{USER}:{HOME}:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\n{USER}:x:{UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@functools.cache
def _version(executable: str) -> tuple[int, ...]:
    done = subprocess.run([executable, "--version"], capture_output=True, text=True, check=False, timeout=30)
    return tuple(int(part) for part in re.findall(r"\d+", done.stdout)[:3])


def find_bwrap() -> str:
    """Path of the bubblewrap executable.

    Raises:
        MissingDependency: it is not installed.
    """
    executable = shutil.which("bwrap")
    if executable is None:
        raise MissingDependency(
            "The local sandbox backend needs bubblewrap, and there is no `bwrap` on PATH.",
            fix="Install it: `apt-get install bubblewrap` (Debian, Ubuntu) or `dnf install bubblewrap` (Fedora).",
        )
    return executable


def inside_path(target: str) -> str:
    """Check and normalise a path at which the caller wants something mounted.

    Raises:
        SandboxStartError: not absolute, with ``..``, or a place the sandbox needs for itself.
    """
    path = PurePosixPath(target)
    if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
        raise SandboxStartError(f"Cannot mount at {target!r} in a sandbox.", fix="Use an absolute path without `..`.")
    if path.is_relative_to(INSIDE) or str(path) in ("/proc", "/dev", "/usr", "/etc"):
        raise SandboxStartError(f"Cannot mount at {target!r}: the sandbox needs it.", fix="Choose another target.")
    return str(path)


def _root() -> list[str]:
    argv = ["--ro-bind", "/usr", "/usr"]
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            argv += ["--ro-bind", path, path]
    return argv


def _etc(layout: Layout, network: str) -> list[str]:
    names = [*_ETC, "resolv.conf"] if network == "open" else list(_ETC)
    found = {name: path for name in names if os.path.exists(path := f"/etc/{name}")}
    return [word for place, target in layout.etc(found, _OWN_ETC) for word in ("--ro-bind", place, target)]


def _proc(*, root_outside: bool) -> list[str]:
    argv = ["--proc", "/proc"]
    # Whoever made the IPC and network namespaces may set their limits.
    for name in _PROC_READ_ONLY if root_outside else ("sys",):
        if os.path.exists(f"/proc/{name}"):
            argv += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    for name in _PROC_MASKED:
        path = f"/proc/{name}"
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(mode):
            argv += ["--tmpfs", path, "--remount-ro", path]
        elif root_outside or mode & 0o004:
            argv += ["--ro-bind", "/dev/null", path]
    return argv


def _volumes(spec: SandboxSpec, layout: Layout) -> list[str]:
    """HOME, workdir and the caller's mounts, parents before children."""
    volumes: list[tuple[str, str, bool]] = [
        (f"{layout.volume}/home", HOME, True),
        (f"{layout.volume}/work", inside_path(spec.workdir), True),
    ]
    for mount in spec.mounts:
        if not mount.source.exists():
            raise SandboxStartError(
                f"Cannot mount {mount.source}: there is no such file or folder.", fix="Check the path."
            )
        source, target = mount.source.resolve(), inside_path(mount.target)
        if mount.overlay:
            if not source.is_dir():
                raise SandboxStartError(
                    f"Cannot mount {source} as an overlay: it is no folder.", fix="Mount its folder."
                )
            volumes.append((layout.overlay(source), target, True))
        else:
            volumes.append((layout.path(source), target, mount.writable))
    volumes.sort(key=lambda volume: len(PurePosixPath(volume[1]).parts))
    argv: list[str] = []
    for place, target, writable in volumes:
        argv += ["--bind" if writable else "--ro-bind", place, target]
    overlays = [mount for mount in spec.mounts if mount.overlay]
    for number, mount in enumerate(overlays):
        argv += ["--ro-bind", layout.path(mount.source.resolve()), f"{LOWER_FOLDER}/{number}"]
    return argv


def _gateway(spec: SandboxSpec, layout: Layout) -> list[str]:
    """The folder of the gateway's socket, so that a restarted gateway (a new socket, the same path) is reached."""
    if spec.network != "gateway":
        return []
    if spec.gateway_socket is None:
        raise SandboxStartError('network="gateway" needs the path of the gateway socket.', fix="Set gateway_socket.")
    folder = spec.gateway_socket.parent
    try:
        others = sorted(entry.name for entry in folder.iterdir() if entry.name != spec.gateway_socket.name)
    except OSError as error:
        raise SandboxStartError(
            f"Cannot mount the folder of the gateway socket: {error}.", fix="Start the gateway first."
        ) from error
    if others:
        raise SandboxStartError(
            f"The folder of the gateway socket, {folder}, also holds {others[0]!r}, which the sandbox would see.",
            fix="Give the socket a folder of its own.",
        )
    return ["--ro-bind", layout.path(folder.resolve()), GATEWAY_FOLDER]


class Layout(Protocol):
    """Where bubblewrap finds what the host has."""

    @property
    def volume(self) -> str:
        """The sandbox's own folder, holding ``home`` and ``work``."""

    @property
    def root_outside(self) -> bool:
        """Whether a process inside is root to the files of the host."""

    def path(self, source: Path) -> str:
        """Where a host file or folder is."""

    def etc(self, parts: Mapping[str, str], own: Mapping[str, str]) -> Iterable[tuple[str, str]]:
        """Mounts (from, to) that make /etc of host files and folders and of texts, by their names below it."""

    def overlay(self, source: Path) -> str:
        """Where a private, writable version of a host folder is."""


def build_argv(
    spec: SandboxSpec,
    *,
    bwrap: str,
    layout: Layout,
    python: Interpreter,
    control_fd: int,
    code_fd: int,
    filter_fd: int,
    info_fd: int,
) -> list[str]:
    """The whole command line. It carries no secret: environment values travel over the control socket.

    Args:
        control_fd: the inherited end of the control socket pair.
        code_fd: inherited, with what :func:`.interpreter.inside_code` gives.
        filter_fd: inherited, with what :func:`.seccomp.program` gives.
        info_fd: inherited, writable: bubblewrap says PID 1's pid there as soon as it has one.

    Raises:
        SandboxStartError: the spec asks for a mount that cannot be.
    """
    executable = bwrap if bwrap.startswith("/usr/") else layout.path(Path(bwrap).resolve())
    argv = [executable, "--unshare-user", "--uid", str(UID), "--gid", str(UID), "--unshare-pid", "--as-pid-1"]
    argv += ["--unshare-ipc", "--unshare-uts", "--hostname", "sandbox", "--unshare-cgroup-try"]
    argv += ["--die-with-parent", "--cap-drop", "ALL", "--seccomp", str(filter_fd)]  # no --new-session: see launcher.py
    argv += ["--info-fd", str(info_fd)]
    version = _version(bwrap)
    if version >= (0, 8, 0):
        argv += ["--disable-userns"]  # with fresh user namespaces come fresh capabilities
    if spec.network != "open":
        argv += ["--unshare-net"]

    def tmpfs(target: str, size: int) -> list[str]:
        limit = ["--size", str(size)] if version >= (0, 7, 0) else []
        return ["--perms", "1777", *limit, "--tmpfs", target]

    argv += [*_root(), *_etc(layout, spec.network), *_proc(root_outside=layout.root_outside), "--dev", "/dev"]
    # Together less than the memory limit: a full /tmp is an error message, memory that no kill frees is the end.
    memory = spec.limits.memory_bytes
    argv += [*tmpfs("/dev/shm", memory // 4), "--remount-ro", "/dev"]
    argv += [*tmpfs("/tmp", memory // 2), *tmpfs("/run", min(RUN_BYTES, memory // 16))]
    argv += ["--symlink", "/run", "/var/run", "--symlink", "/tmp", "/var/tmp"]
    if python.mount is not None:
        argv += ["--ro-bind", layout.path(python.mount), str(python.mount)]
    argv += _volumes(spec, layout)
    argv += _gateway(spec, layout)
    argv += ["--chdir", "/", "--remount-ro", "/"]
    return [*argv, "--", *boot_argv(python.executable, code_fd=code_fd, control_fd=control_fd)]
