"""``SandboxBackend`` / ``SandboxHandle`` / ``BgJob``: where a harness or a grader runs (RFC 006, design section 6).

Async first, bytes not text, bounded output, process groups, stdin from null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from drivetrain.errors import ConfigError, InfrastructureError

NetworkPolicy = Literal["none", "gateway", "open"]

Feature = Literal[
    "image",
    "mount",
    "writable_mount",
    "overlay",
    "network_policy",
    "memory_limit",
    "pids_limit",
    "cpu_limit",
    "disk_limit",
    "reach",
    "snapshot",
    "host_pids",
]
"""What a backend can do beyond the core: images by reference; host folders inside (read-only, writable, copy-on-write);
enforcing the network policy and each limit; ``SandboxHandle.reach``; snapshots; job pids in the host's numbering."""


class SandboxError(InfrastructureError):
    """A sandbox could not do its job; never the policy's fault."""


class SandboxStartError(SandboxError):
    """The sandbox did not come up."""


class SandboxGone(SandboxError):
    """The sandbox died or was closed while it was needed."""


class SandboxTimeout(SandboxError):
    """A sandbox operation (not the command in it) exceeded its deadline."""


class SandboxUnsupported(ConfigError):
    """The spec or the call asks for something this backend cannot do (see :attr:`SandboxBackend.features`)."""


class Mount(msgspec.Struct, frozen=True):
    """A host path visible inside.

    Read-only unless ``writable`` (writes reach the host) or ``overlay`` (a folder; writes stay in the sandbox and are
    gone with it, the host's copy never changes). A remote backend uploads the content at start and keeps its modes.
    """

    source: Path
    target: str
    writable: bool = False
    overlay: bool = False

    def __post_init__(self) -> None:
        if self.writable and self.overlay:
            raise ConfigError(f"The mount at {self.target} cannot be both writable and an overlay.", fix="Choose one.")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of the whole sandbox; bytes, counts and seconds.

    ``cpus`` is a share of processor time (1.5 = one and a half cores), None for no limit. ``disk_bytes`` bounds what
    the sandbox may write outside /tmp, None for no limit; ``file_bytes`` bounds one file. A limit a backend cannot
    enforce is said once in the log (see :attr:`SandboxBackend.features`).
    ``ttl_s`` is the hard deadline after which the sandbox kills itself even when its owner is gone.
    """

    memory_bytes: int = 4 << 30
    pids: int = 512
    file_bytes: int = 2 << 30
    open_files: int = 4096
    cpus: float | None = None
    disk_bytes: int | None = None
    ttl_s: float = 3600.0


class Snapshot(msgspec.Struct, frozen=True):
    """A sandbox's files as they were: ``ref`` means something to the backend called ``backend`` only.

    Kept until :meth:`SandboxBackend.drop`; processes, environment and /tmp are not part of it.
    """

    backend: str
    ref: str


class Reach(msgspec.Struct, frozen=True):
    """How the host reaches a TCP port inside: a base URL (http or https, no trailing slash) and headers to send."""

    url: str
    headers: Mapping[str, str] = {}


class SandboxStats(msgspec.Struct, frozen=True, kw_only=True):
    """Use of resources so far; None where the backend cannot tell. Seconds, bytes, counts."""

    cpu_s: float | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    pids: int | None = None
    oom_kills: int | None = None


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to create.

    ``image`` names a container image or a template of the backend; None is the backend's default (local: the host's
    /usr). ``snapshot`` starts from the files of an earlier sandbox.
    ``network``: ``none`` = loopback only; ``gateway`` = loopback plus a relay to ``gateway_socket`` reachable at
    the URL that :meth:`SandboxHandle.gateway_url` gives; ``open`` = the host's network.
    ``gateway_socket`` is the host path of the Unix socket the gateway's harness surface listens on.
    ``workdir`` is a private, writable directory and the default cwd. ``env`` is the whole environment of every
    command except HOME, PATH, TMPDIR, USER and LANG defaults; nothing of the host's environment is inherited.
    ``labels`` identify the owner for the reaper.
    """

    image: str | None = None
    snapshot: Snapshot | None = None
    workdir: str = "/work"
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = {}
    network: NetworkPolicy = "none"
    gateway_socket: Path | None = None
    limits: Limits = Limits()
    labels: Mapping[str, str] = {}


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one command.

    ``exit_code`` follows the shell: 128 + signal when killed. ``timed_out`` is set when the deadline killed it (its
    whole process tree). ``truncated`` is set when output went beyond the bound: ``stdout`` and ``stderr`` then hold the
    head, and all of it is in the files of the spill folder where the caller gave one.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool
    truncated: bool
    duration_s: float


@runtime_checkable
class BgJob(Protocol):
    """A command running in the background inside a sandbox."""

    @property
    def pid(self) -> int:
        """Process id: the host's where the backend has ``host_pids``, else the sandbox's."""

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""

    async def wait(self, timeout_s: float | None = None) -> ExecResult:
        """Wait for the end; on timeout raise TimeoutError and leave the job running."""

    async def kill(self, grace_s: float = 2.0) -> None:
        """TERM, then KILL the whole process tree; idempotent."""

    def tail(self, max_bytes: int = 65536) -> bytes:
        """The last bytes of stdout and stderr so far, in that order."""


@runtime_checkable
class SandboxHandle(Protocol):
    """One running sandbox."""

    @property
    def id(self) -> str:
        """Unique name, also the label the reaper looks for."""

    @property
    def workdir(self) -> str:
        """Default cwd, inside path."""

    @property
    def home(self) -> str:
        """HOME of every command, inside path; private and writable."""

    def gateway_url(self) -> str:
        """Base URL (no trailing slash, no ``/v1``) at which the gateway is reached from inside.

        Raises:
            SandboxError: the sandbox has no gateway network.
        """

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_s: float = 60.0,
        max_output_bytes: int = 4 << 20,
        spill: Path | None = None,
    ) -> ExecResult:
        """Run to the end or the deadline. ``env`` is added to the spec's. Values never appear in an argv.

        ``max_output_bytes`` bounds each of stdout and stderr in memory. With ``spill`` (a host folder, made if
        missing), a stream that exceeds the bound is written there in full, as ``stdout`` or ``stderr`` (1 GiB at most).

        Raises:
            SandboxGone: the sandbox is closed or died (a failing command is not an error).
        """

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int = 16 << 20,
        spill: Path | None = None,
    ) -> BgJob:
        """Start in the background: own process group, stdin from null, output bounded as in :meth:`exec`."""

    async def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Content of a file inside.

        Raises:
            FileNotFoundError: no such file.
            SandboxError: larger than ``max_bytes`` or unreadable.
        """

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file inside; parents are made."""

    async def upload(self, tar: bytes, target: str) -> None:
        """Unpack an (uncompressed) tar archive into directory ``target``; it is created if missing."""

    async def download(self, path: str, *, max_bytes: int = 512 << 20) -> bytes:
        """A directory's content as an uncompressed tar, member names relative to ``path``."""

    async def reach(self, port: int) -> Reach:
        """How the host reaches TCP ``port`` inside.

        Raises:
            SandboxUnsupported: the backend or the network policy has no way in.
        """

    async def stats(self) -> SandboxStats:
        """Use of resources so far.

        Raises:
            SandboxGone: the sandbox is closed or died.
        """

    async def snapshot(self) -> Snapshot:
        """Keep the files of HOME, the workdir and (where there is an image) the image's file system as they are now.

        Raises:
            SandboxUnsupported: the backend has no snapshots.
            SandboxGone: the sandbox is closed or died.
        """

    async def close(self) -> None:
        """Kill everything inside and remove every trace on the host; idempotent."""


@runtime_checkable
class SandboxBackend(Protocol):
    """A way to make sandboxes."""

    @property
    def name(self) -> str:
        """Name as used on the command line."""

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do beyond the core."""

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Start a sandbox.

        Raises:
            SandboxStartError: it did not come up; nothing is left behind.
            SandboxUnsupported: the spec asks for what this backend cannot do.
        """

    async def drop(self, snapshot: Snapshot) -> None:
        """Remove a snapshot; one that is gone already is fine.

        Raises:
            SandboxUnsupported: it belongs to another backend.
        """

    async def reap(self) -> list[str]:
        """Remove sandboxes (and what belongs to them) of dead owners and past deadlines; their ids.

        Only what carries our label and was made for this user; never a live owner's.
        """

    async def aclose(self) -> None:
        """Close every sandbox this backend still owns; idempotent."""
