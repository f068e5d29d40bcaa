"""``LocalSandbox``: one running local sandbox, from bubblewrap's launch to the last trace removed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import resource
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from drivetrain.errors import ConfigError
from drivetrain.sandboxes import bwrap
from drivetrain.sandboxes.cgroups import Groups, make_groups, remove_cgroups
from drivetrain.sandboxes.channel import Channel, memory_file
from drivetrain.sandboxes.interpreter import find_interpreter
from drivetrain.sandboxes.job import LocalJob
from drivetrain.sandboxes.label import Label, started, write_label
from drivetrain.sandboxes.protocol import (
    ExecResult,
    Limits,
    SandboxError,
    SandboxGone,
    SandboxSpec,
    SandboxStartError,
)
from drivetrain.sandboxes.reaper import remove_tree
from drivetrain.sandboxes.transfer import FileTransfer

START_TIMEOUT_S = 20.0


def _rlimits(limits: Limits, groups: Groups) -> list[tuple[int, int]]:
    """Per-process limits, as (resource, value). No RLIMIT_AS: node and the JVM reserve far more than they use."""
    values = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
    ]
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
    if not groups.pids and release >= (5, 14):
        # Since 5.14 the kernel counts per user namespace, so this is a limit of the sandbox and not of the user.
        values.append((resource.RLIMIT_NPROC, limits.pids))
    return values


class LocalSandbox(FileTransfer):
    """Implements ``SandboxHandle``. Made by :meth:`LocalBackend.create`; bound to the loop it was made in."""

    def __init__(
        self,
        spec: SandboxSpec,
        *,
        folder: Path,
        label: Label,
        relay_port: int,
        on_limits: Callable[[Groups], None],
        on_closed: Callable[[LocalSandbox], None],
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._label = label
        self._channel = Channel()
        self._relay_port = relay_port
        self._on_limits = on_limits
        self._on_closed = on_closed
        self._groups = Groups()
        self._process: subprocess.Popen[bytes] | None = None
        self._init_pidfd: int | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """Unique name, also the name of its folder and the label the reaper looks for."""
        return self._label.id

    @property
    def workdir(self) -> str:
        """Default cwd, inside path."""
        return self._spec.workdir

    @property
    def home(self) -> str:
        """HOME of every command, inside path."""
        return bwrap.HOME

    def gateway_url(self) -> str:
        """Base URL of the gateway as seen from inside.

        Raises:
            SandboxError: the sandbox has no gateway network.
        """
        if self._spec.network != "gateway":
            raise SandboxError(
                f"Sandbox {self.id} has no way to the gateway: its network is {self._spec.network!r}.",
                fix='Create it with network="gateway" and a gateway_socket.',
            )
        return f"http://127.0.0.1:{self._relay_port}"

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
        """Run to the end or the deadline; ``max_output_bytes`` bounds stdout and stderr each.

        A command that cannot be run exits with 127 (not found) or 126 and says why on stderr. Detached children of a
        command that ended in time keep running; at the deadline, and on cancellation, the whole tree is killed.

        Raises:
            SandboxGone: the sandbox is closed or died.
            SandboxError: no process slot is left.
            SandboxTimeout: the command could not be killed.
        """
        request = self._command(argv, cwd, env)
        return await self._run(request, stdin=stdin, timeout_s=timeout_s, max_output_bytes=max_output_bytes)

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int = 16 << 20,
    ) -> LocalJob:
        """Start in the background; ``max_output_bytes`` bounds stdout and stderr each.

        Raises:
            SandboxGone: the sandbox is closed or died.
            SandboxError: no process slot is left.
        """
        request = self._command(argv, cwd, env)
        return await LocalJob.launch(self._channel, request, stdin_fd=None, max_output_bytes=max_output_bytes)

    def _command(self, argv: Sequence[str], cwd: str | None, env: Mapping[str, str] | None) -> dict[str, object]:
        if isinstance(argv, str) or not argv:
            raise ConfigError(f"A command is a non-empty list of strings, not {argv!r}.")
        defaults = {
            "HOME": bwrap.HOME,
            "PATH": bwrap.PATH,
            "TMPDIR": "/tmp",
            "USER": bwrap.USER,
            "LANG": "C.UTF-8",
        }
        whole = {**defaults, **self._spec.env, **(env or {})}
        return {
            "argv": [os.fsencode(word) for word in argv],
            "cwd": os.fsencode(cwd or self.workdir),
            "env": {os.fsencode(name): os.fsencode(value) for name, value in whole.items()},
        }

    async def _run(
        self, request: dict[str, object], *, stdin: bytes | None, timeout_s: float, max_output_bytes: int
    ) -> ExecResult:
        stdin_fd = None if stdin is None else memory_file(stdin)
        try:
            job = await LocalJob.launch(self._channel, request, stdin_fd=stdin_fd, max_output_bytes=max_output_bytes)
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

    async def open(self) -> None:
        """Start everything; the caller cleans up on failure."""
        label, spec = self._label, self._spec
        bwrap_path = bwrap.find_bwrap()
        python = await asyncio.to_thread(find_interpreter)
        for name in ("home", "work"):
            (self._folder / name).mkdir()
        bwrap.make_etc(self._folder / "etc")
        argv = bwrap.build_argv(
            spec, bwrap=bwrap_path, folder=self._folder, python=python, control_fd=self._channel.remote.fileno()
        )
        # Not in a thread (it takes half a millisecond): a start cancelled meanwhile would not know what to remove.
        self._groups = make_groups(self.id, spec.limits)
        label.cgroups = [str(folder) for folder in self._groups.folders]
        write_label(self._folder, label)
        stderr_fd = os.memfd_create("stderr", os.MFD_CLOEXEC)
        try:
            self._process = bwrap.launch(argv, control_fd=self._channel.remote.fileno(), stderr_fd=stderr_fd)
            self._channel.remote.close()
            pid = await self._channel.expect("hello", START_TIMEOUT_S)
            self._init_pidfd = os.pidfd_open(pid)
            label.init_pid, label.init_started = pid, started(pid)
            write_label(self._folder, label)
            await asyncio.to_thread(self._limit, pid)
            relay = None
            if spec.network == "gateway":
                assert spec.gateway_socket is not None
                relay = (self._relay_port, os.fsencode(f"{bwrap.GATEWAY_FOLDER}/{spec.gateway_socket.name}"))
            # Where we may: never PID 1 for want of memory. Commands put themselves back in reach.
            try:
                Path(f"/proc/{pid}/oom_score_adj").write_text("-1000")
                shielded = True
            except OSError:
                shielded = False
            config = {
                "ttl_s": spec.limits.ttl_s,
                "rlimits": _rlimits(spec.limits, self._groups),
                "relay": relay,
                "shielded": shielded,
            }
            self._channel.send(("go", config))
            await self._channel.expect("ready", START_TIMEOUT_S)
        except (SandboxGone, TimeoutError, OSError) as error:
            said = os.pread(stderr_fd, 4096, 0).decode(errors="replace").strip()
            raise SandboxStartError(
                f"A local sandbox did not start: {said or error}.",
                fix="If namespaces are not permitted here, allow unprivileged user namespaces (sysctl "
                "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in a container: "
                "a seccomp profile that allows them).",
            ) from error
        finally:
            os.close(stderr_fd)

    def _limit(self, pid: int) -> None:
        try:
            self._groups.add(pid)
        except OSError:
            remove_cgroups(self._groups.folders)
            self._groups = Groups()
        self._on_limits(self._groups)

    async def close(self) -> None:
        """Kill everything inside and remove every trace on the host; idempotent, also while commands run."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        # A cancelled caller must not leave a half-removed sandbox.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._channel.fail("it was closed")
        process = self._process
        if process is not None:
            if self._init_pidfd is not None:
                # PID 1 first: the kernel ends the namespace with it, and bwrap exits only after that.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
                os.close(self._init_pidfd)
                self._init_pidfd = None
            else:
                bwrap.kill(process)
            await asyncio.to_thread(process.wait)
        await asyncio.to_thread(self._remove)
        self._on_closed(self)

    def _remove(self) -> None:
        remove_cgroups(self._groups.folders)
        remove_tree(self._folder)
