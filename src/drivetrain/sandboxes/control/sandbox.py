"""What every sandbox with our PID 1 does the same way, whatever started it: commands, files, the gateway's URL."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from drivetrain.sandboxes.control.channel import Channel
from drivetrain.sandboxes.control.commands import Commands
from drivetrain.sandboxes.control.files import memory_file
from drivetrain.sandboxes.control.job import ControlledJob
from drivetrain.sandboxes.protocol import ExecResult, SandboxSpec


class ControlledSandbox(Commands):
    """The half of ``SandboxHandle`` that talks to ``inside/init.py``; bound to the loop it was made in.

    Args:
        sandbox_id: unique name.
        spec: as given to ``create``.
        channel: the open (or not yet answered) control socket.
        relay_port: TCP port inside at which a ``network="gateway"`` sandbox finds the gateway.
        environment: defaults of every command (HOME, PATH, TMPDIR, USER, LANG, ...); the spec's ``env`` goes over them.
    """

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, *, channel: Channel, relay_port: int, environment: Mapping[str, str]
    ) -> None:
        super().__init__(sandbox_id, spec, environment)
        self._channel = channel
        self._relay_port = relay_port

    def _gateway_at(self) -> str | None:
        return f"http://127.0.0.1:{self._relay_port}" if self._spec.network == "gateway" else None

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
        """Run to the end or the deadline; ``max_output_bytes`` bounds stdout and stderr each (protocol: ``spill``).

        A command that cannot be run exits with 127 (not found) or 126 and says why on stderr. Detached children of a
        command that ended in time keep running; at the deadline, and on cancellation, the whole tree is killed.

        Raises:
            SandboxGone: the sandbox is closed or died.
            SandboxError: no process slot is left.
            SandboxTimeout: the command could not be killed.
        """
        request = self._command(argv, cwd, env)
        return await self._run(
            request, stdin=stdin, timeout_s=timeout_s, max_output_bytes=max_output_bytes, spill=spill
        )

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int = 16 << 20,
        spill: Path | None = None,
    ) -> ControlledJob:
        """Start in the background; ``max_output_bytes`` bounds stdout and stderr each (protocol: ``spill``).

        Raises:
            SandboxGone: the sandbox is closed or died.
            SandboxError: no process slot is left.
        """
        request = self._command(argv, cwd, env)
        return await ControlledJob.launch(
            self._channel, request, stdin_fd=None, max_output_bytes=max_output_bytes, spill=spill
        )

    async def _run(
        self,
        request: dict[str, object],
        *,
        stdin: bytes | None,
        timeout_s: float,
        max_output_bytes: int,
        spill: Path | None = None,
    ) -> ExecResult:
        stdin_fd = None if stdin is None else memory_file(stdin)
        try:
            job = await ControlledJob.launch(
                self._channel, request, stdin_fd=stdin_fd, max_output_bytes=max_output_bytes, spill=spill
            )
        finally:
            if stdin_fd is not None:
                os.close(stdin_fd)
        try:
            return await job.wait(timeout_s)
        except TimeoutError:
            return await job.kill_at_deadline()
        except asyncio.CancelledError:
            job.abandon()
            raise
