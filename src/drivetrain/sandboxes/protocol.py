"""``SandboxBackend`` / ``SandboxHandle`` / ``BgJob``: where a harness or a grader runs (RFC 006, design section 6).

Async first, bytes not text, bounded output, process groups, stdin from null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from drivetrain.errors import InfrastructureError

NetworkPolicy = Literal["none", "gateway", "open"]


class SandboxError(InfrastructureError):
    """A sandbox could not do its job; never the policy's fault."""


class SandboxStartError(SandboxError):
    """The sandbox did not come up."""


class SandboxGone(SandboxError):
    """The sandbox died or was closed while it was needed."""


class SandboxTimeout(SandboxError):
    """A sandbox operation (not the command in it) exceeded its deadline."""


class Mount(msgspec.Struct, frozen=True):
    """A host path visible inside, read-only unless ``writable``."""

    source: Path
    target: str
    writable: bool = False


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of the whole sandbox; bytes, counts and seconds.

    ``ttl_s`` is the hard deadline after which the sandbox kills itself even when its owner is gone.
    """

    memory_bytes: int = 4 << 30
    pids: int = 512
    file_bytes: int = 2 << 30
    open_files: int = 4096
    ttl_s: float = 3600.0


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to create.

    ``network``: ``none`` = loopback only; ``gateway`` = loopback plus a relay to ``gateway_socket`` reachable at
    the URL that :meth:`SandboxHandle.gateway_url` gives; ``open`` = the host's network.
    ``gateway_socket`` is the host path of the Unix socket the gateway's harness surface listens on.
    ``workdir`` is a private, writable directory and the default cwd. ``env`` is the whole environment of every
    command except HOME, PATH, TMPDIR, USER and LANG defaults; nothing of the host's environment is inherited.
    ``labels`` identify the owner for the reaper.
    """

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
    whole process tree). ``truncated`` is set when output beyond the bound was dropped (the head is kept).
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
        """Process id as seen from the host."""

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
    ) -> ExecResult:
        """Run to the end or the deadline. ``env`` is added to the spec's. Values never appear in an argv.

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
    ) -> BgJob:
        """Start in the background: own process group, stdin from null, output kept up to the bound."""

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

    async def close(self) -> None:
        """Kill everything inside and remove every trace on the host; idempotent."""


@runtime_checkable
class SandboxBackend(Protocol):
    """A way to make sandboxes."""

    @property
    def name(self) -> str:
        """Name as used on the command line."""

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Start a sandbox.

        Raises:
            SandboxStartError: it did not come up; nothing is left behind.
        """

    async def aclose(self) -> None:
        """Close every sandbox this backend still owns; idempotent."""
