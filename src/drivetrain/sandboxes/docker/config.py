"""The container that a spec asks for: what it may see, use and do. Pure data, and no secret in it."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from drivetrain.sandboxes.docker.door import CONTROL_SOCKET
from drivetrain.sandboxes.docker.runtime import CONTROL, INSIDE, command
from drivetrain.sandboxes.protocol import Limits, Mount, SandboxSpec, SandboxStartError

HOME = "/home/agent"
# Room for PID 1, the relay and one keeper per command; not counted against the sandbox's own limit.
PIDS_OVERHEAD = 16
_MIB = 1 << 20
_LEAST_MEMORY = 16 * _MIB  # engines refuse less than 6 MiB, and PID 1 needs some
_RESERVED = ("/proc", "/dev", "/sys", "/etc", "/usr", "/bin", "/lib", "/lib64")


class User(NamedTuple):
    """Whom commands run as inside."""

    uid: int
    gid: int

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid}"


def parse_user(text: str) -> User:
    """``uid:gid`` or ``uid`` (the group is the same number then).

    Raises:
        SandboxStartError: something else.
    """
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if match is None:
        raise SandboxStartError(f"{text!r} is no user of a container here.", fix="Give numbers: uid:gid.")
    return User(int(match[1]), int(match[2] or match[1]))


def inside_path(target: str) -> str:
    """Check and normalise a path inside at which the caller wants something.

    Raises:
        SandboxStartError: not absolute, with ``..``, or a place the sandbox needs for itself.
    """
    path = PurePosixPath(target)
    if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
        raise SandboxStartError(f"Cannot mount at {target!r} in a sandbox.", fix="Use an absolute path without `..`.")
    if path.is_relative_to(INSIDE) or path.is_relative_to(CONTROL) or str(path) in _RESERVED:
        raise SandboxStartError(f"Cannot mount at {target!r}: the sandbox needs it.", fix="Choose another target.")
    return str(path)


def check(spec: SandboxSpec) -> None:
    """Refuse what cannot be before anything is made.

    Raises:
        SandboxStartError: a bad time to live, mount, workdir or gateway socket.
    """
    if spec.limits.ttl_s <= 0:
        raise SandboxStartError("A sandbox needs a time to live above 0 s.", fix="Set limits.ttl_s.")
    inside_path(spec.workdir)
    for mount in spec.mounts:
        inside_path(mount.target)
        if not mount.source.exists():
            raise SandboxStartError(
                f"Cannot mount {mount.source}: there is no such file or folder.", fix="Check the path."
            )
        if mount.overlay and not mount.source.is_dir():
            raise SandboxStartError(
                f"Cannot mount {mount.source} as an overlay: it is no folder.", fix="Mount its folder."
            )
    if spec.network == "gateway":
        if spec.gateway_socket is None:
            raise SandboxStartError(
                'network="gateway" needs the path of the gateway socket.', fix="Set gateway_socket."
            )
        if not spec.gateway_socket.parent.is_dir():
            raise SandboxStartError(
                f"The folder of the gateway socket, {spec.gateway_socket.parent}, does not exist.",
                fix="Start the gateway first.",
            )


def _bind(source: Path, target: str, *, writable: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": not writable}


def bound(spec: SandboxSpec) -> list[Mount]:
    """Mounts that are bind mounts (overlays are copied), parents before children."""
    mounts = [mount for mount in spec.mounts if not mount.overlay]
    return sorted(mounts, key=lambda mount: len(PurePosixPath(mount.target).parts))


def container_config(
    spec: SandboxSpec, *, image: str, user: User, inside: Path, control: Path, labels: dict[str, str]
) -> dict[str, Any]:
    """Body of the Engine API's ``containers/create``.

    Environment values are not in it: they would be shown by ``inspect``. They travel over the control socket.

    Args:
        image: the image's id.
        inside: host folder with PID 1 and its Python.
        control: host folder with the sandbox's sockets.
    """
    mounts = [_bind(inside, INSIDE), _bind(control, CONTROL)]
    mounts += [_bind(m.source.resolve(), inside_path(m.target), writable=m.writable) for m in bound(spec)]
    return {
        "Image": image,
        "Entrypoint": command(CONTROL_SOCKET),
        "Cmd": [],
        "User": str(user),
        "WorkingDir": "/",
        "Hostname": "sandbox",
        # Nobody sets up interfaces then, which takes a third of a start; the runtime makes the loopback all the same.
        "NetworkDisabled": spec.network != "open",
        "Labels": labels,
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "HostConfig": {
            **_resources(spec.limits),
            "AutoRemove": True,
            "NetworkMode": "bridge" if spec.network == "open" else "none",
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "LogConfig": {"Type": "none"},
            "Mounts": mounts,
        },
    }


def _resources(limits: Limits) -> dict[str, Any]:
    memory = max(limits.memory_bytes, _LEAST_MEMORY)
    resources: dict[str, Any] = {
        "Memory": memory,
        "MemorySwap": memory,  # memory and swap together: no swap
        "PidsLimit": limits.pids + PIDS_OVERHEAD,
        "Ulimits": [
            {"Name": name, "Soft": value, "Hard": value}
            for name, value in (("core", 0), ("nofile", limits.open_files), ("fsize", limits.file_bytes))
        ],
        # Together less than the memory limit: a full /tmp is an error message, memory that no kill frees is the end.
        "ShmSize": memory // 4,
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={memory // 2}"},
    }
    if limits.cpus is not None:
        resources["NanoCpus"] = max(int(limits.cpus * 1e9), 10_000_000)  # a hundredth of a core is the least
    return resources
