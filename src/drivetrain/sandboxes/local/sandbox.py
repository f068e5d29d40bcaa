"""``LocalSandbox``: one running local sandbox, from bubblewrap's launch to the last trace removed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from drivetrain.sandboxes.control.channel import Channel
from drivetrain.sandboxes.control.sandbox import ControlledSandbox
from drivetrain.sandboxes.label import Label, started, write_label
from drivetrain.sandboxes.local import bwrap
from drivetrain.sandboxes.local.cgroups import Groups, make_groups, remove_cgroups
from drivetrain.sandboxes.local.interpreter import find_interpreter
from drivetrain.sandboxes.local.reaper import remove_tree
from drivetrain.sandboxes.protocol import (
    Limits,
    Reach,
    SandboxGone,
    SandboxSpec,
    SandboxStartError,
    SandboxStats,
    SandboxUnsupported,
    Snapshot,
)

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


class LocalSandbox(ControlledSandbox):
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
        super().__init__(
            label.id,
            spec,
            channel=Channel(),
            relay_port=relay_port,
            environment={
                "HOME": bwrap.HOME,
                "PATH": bwrap.PATH,
                "TMPDIR": "/tmp",
                "USER": bwrap.USER,
                "LANG": "C.UTF-8",
            },
        )
        self._folder = folder
        self._label = label
        self._on_limits = on_limits
        self._on_closed = on_closed
        self._groups = Groups()
        self._process: subprocess.Popen[bytes] | None = None
        self._init_pidfd: int | None = None
        self._closing: asyncio.Task[None] | None = None

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

    async def reach(self, port: int) -> Reach:
        """A local sandbox is reached through its gateway relay only, never dialled into."""
        raise SandboxUnsupported(f"Sandbox {self.id} cannot be dialled into (port {port}).")

    async def stats(self) -> SandboxStats:
        """Use of resources so far, from its control groups where there are any."""
        if self._channel.gone is not None:
            raise SandboxGone(f"The sandbox is gone: {self._channel.gone}.")
        return SandboxStats()

    async def snapshot(self) -> Snapshot:
        """The local backend has no snapshots."""
        raise SandboxUnsupported("The local backend has no snapshots.")

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
