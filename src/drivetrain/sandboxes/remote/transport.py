"""What a provider must be able to do for :class:`~drivetrain.sandboxes.remote.sandbox.RemoteSandbox`."""

from __future__ import annotations

from typing import Protocol

import msgspec

from drivetrain.sandboxes.protocol import Reach, SandboxError


class LinkLost(SandboxError):
    """The answer did not arrive, whatever became of the question: ask again."""


class Busy(SandboxError):
    """The provider asks for patience (429, 503); ``after_s`` is how long when it says so, in seconds."""

    def __init__(self, what: str, *, after_s: float | None = None, fix: str = "") -> None:
        super().__init__(what, fix=fix)
        self.after_s = after_s


class Reply(msgspec.Struct, frozen=True):
    """Outcome of a short command."""

    exit_code: int
    stdout: str
    stderr: str


class Transport(Protocol):
    """One running box. Every call is made as root and is one attempt.

    Raises:
        LinkLost: the connection or a proxy failed.
        Busy: rate limit or quota.
        SandboxGone: the provider says that the box is no more.
        SandboxError: the provider refused, and would again.
    """

    @property
    def id(self) -> str:
        """The provider's name of the box."""

    async def run(self, argv: list[str], *, timeout_s: float) -> Reply:
        """A command that ends by itself soon; its output is ASCII and small."""

    async def put(self, path: str, data: bytes) -> None:
        """Create or replace a file; folders are made."""

    async def get(self, path: str) -> bytes:
        """A file's content. Raises FileNotFoundError."""

    async def reach(self, port: int) -> Reach:
        """How the host reaches a TCP port."""

    async def renew(self, lifetime_s: int) -> None:
        """The box is to live for this long from now."""

    async def snapshot(self) -> str:
        """Keep the disk; the provider's name for it."""

    async def kill(self) -> None:
        """End it; one that is gone already is fine."""
