"""``LocalSandbox``: one running local sandbox, from bubblewrap's launch to the last trace removed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import resource
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec

from drivetrain.sandboxes.control.channel import Channel
from drivetrain.sandboxes.control.files import memory_file
from drivetrain.sandboxes.control.job import ControlledJob
from drivetrain.sandboxes.control.sandbox import ControlledSandbox
from drivetrain.sandboxes.label import Label, started, write_label
from drivetrain.sandboxes.local import bwrap
from drivetrain.sandboxes.local.cgroups import Groups, make_groups, remove_cgroups
from drivetrain.sandboxes.local.disk import can_bound, make_image
from drivetrain.sandboxes.local.interpreter import Interpreter, find_interpreter, inside_code
from drivetrain.sandboxes.local.launcher import Order, StageError, kill, launch, why_no_stage
from drivetrain.sandboxes.local.layout import PlainLayout, furnish
from drivetrain.sandboxes.local.owner import exchange
from drivetrain.sandboxes.local.reaper import remove_tree
from drivetrain.sandboxes.local.seccomp import program
from drivetrain.sandboxes.local.snapshots import ARCHIVE, new_snapshot, pack_request, unpack_request
from drivetrain.sandboxes.local.stage import Stage
from drivetrain.sandboxes.local.usage import tree_usage
from drivetrain.sandboxes.protocol import (
    Limits,
    Reach,
    SandboxError,
    SandboxGone,
    SandboxSpec,
    SandboxStartError,
    SandboxStats,
    SandboxTimeout,
    SandboxUnsupported,
    Snapshot,
)

START_TIMEOUT_S = 20.0
SNAPSHOT_TIMEOUT_S = 600.0


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


async def _in_thread(function: Callable[..., None], *arguments: object) -> None:
    """Run it in a thread; a cancelled caller waits too, so that nothing is written behind the clean-up's back."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        await asyncio.shield(running)
    finally:
        await asyncio.wait([running])


class LocalSandbox(ControlledSandbox):
    """Implements ``SandboxHandle``. Made by :meth:`LocalBackend.create`; bound to the loop it was made in."""

    def __init__(
        self,
        spec: SandboxSpec,
        *,
        folder: Path,
        label: Label,
        relay_port: int,
        note: Callable[[str], None],
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
        self._note = note
        self._on_closed = on_closed
        self._groups = Groups()
        self._launch: asyncio.Future[subprocess.Popen[bytes]] | None = None
        self._early: asyncio.Future[int | None] | None = None
        self._told_fd: int | None = None
        self._init_pidfd: int | None = None
        self._closing: asyncio.Task[None] | None = None

    async def open(self, snapshot_fd: int | None = None) -> None:
        """Start everything, with the files of an archive if there is one; the caller cleans up on failure."""
        spec = self._spec
        python = find_interpreter()  # the backend has found it before, in a thread
        # Not in a thread (it takes half a millisecond): a start cancelled meanwhile would not know what to remove.
        self._groups = make_groups(self.id, spec.limits)
        stderr_fd = os.memfd_create("stderr", os.MFD_CLOEXEC)
        try:
            await self._start(python, stderr_fd)
            pid = await self._channel.expect("hello", START_TIMEOUT_S)
            self._init_pidfd = os.pidfd_open(pid)
            if await self._end_early() != pid:
                self._put_on_label(pid)
                await asyncio.to_thread(self._limit, pid)
            self._channel.send(("go", self._config(pid)))
            await self._channel.expect("ready", START_TIMEOUT_S)
            if snapshot_fd is not None:
                await self._transfer(unpack_request(spec), "start from a snapshot", stdin_fd=snapshot_fd)
        except SandboxStartError:
            raise
        except (SandboxError, TimeoutError, OSError) as error:
            said = os.pread(stderr_fd, 4096, 0).decode(errors="replace").strip()
            raise SandboxStartError(
                f"A local sandbox did not start: {said or error}.",
                fix="If namespaces are not permitted here, allow unprivileged user namespaces (sysctl "
                "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in a container: "
                "a seccomp profile that allows them).",
            ) from error
        finally:
            os.close(stderr_fd)

    async def _start(self, python: Interpreter, stderr_fd: int) -> None:
        """Start bubblewrap: from a stage where root can set one, else as the caller."""
        limits = self._spec.limits
        why = why_no_stage(python.executable)
        image = None
        if limits.disk_bytes is not None:
            if why is None and can_bound():
                image = self._folder / "disk"
                await _in_thread(make_image, image, limits.disk_bytes)
            else:
                self._note(
                    f"the disk limit of sandboxes is not enforced: {why or 'there are no loop devices or no mkfs.ext4'}"
                )
        if image is None:
            furnish(self._folder)
        if why is None:
            stage = Stage(self._folder, image)
            try:
                await self._run_bwrap(python, stage, stderr_fd, exchange(python.executable))
                return
            except StageError as error:
                if image is not None:
                    raise
                self._note(f"sandboxes with some mounts run as root outside of their namespace: {error}")
        plain = PlainLayout(self._folder)
        await self._run_bwrap(python, plain, stderr_fd)

    async def _run_bwrap(
        self, python: Interpreter, layout: Stage | PlainLayout, stderr_fd: int, exchange_fd: int = -1
    ) -> None:
        control_fd = self._channel.remote.fileno()
        code_fd, filter_fd = memory_file(inside_code(python.executable)), memory_file(program())
        told_fd, info_fd = os.pipe()
        try:
            argv = bwrap.build_argv(
                self._spec,
                bwrap=bwrap.find_bwrap(),
                layout=layout,
                python=python,
                control_fd=control_fd,
                code_fd=code_fd,
                filter_fd=filter_fd,
                info_fd=info_fd,
            )
            stage = layout if isinstance(layout, Stage) else None
            if isinstance(layout, PlainLayout) and layout.copies:
                self._note("overlay mounts are copies here: there is no stage to mount an overlay on")
                await _in_thread(layout.copy)
            order = Order(argv, (control_fd, code_fd, filter_fd, info_fd), stderr_fd, stage, exchange_fd, furnish)
            self._launch = asyncio.wrap_future(launch(order))
            # Cancelled, it still has to be known what there is to remove: see _close.
            await asyncio.shield(self._launch)
        finally:
            if self._launch is not None:
                await asyncio.wait([self._launch])
            for fd in (code_fd, filter_fd, info_fd):
                os.close(fd)
            if self._launch is None or self._launch.exception() is not None:
                os.close(told_fd)
            else:
                self._told_fd = told_fd
                # The kernel may take 10 ms to move a process: meanwhile Python starts.
                self._early = asyncio.ensure_future(asyncio.to_thread(self._limit_early, told_fd))
        self._channel.remote.close()

    def _config(self, pid: int) -> dict[str, object]:
        spec = self._spec
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
        return {
            "ttl_s": spec.limits.ttl_s,
            "rlimits": _rlimits(spec.limits, self._groups),
            "relay": relay,
            "shielded": shielded,
        }

    async def reach(self, port: int) -> Reach:
        """A local sandbox is reached through its gateway relay only, never dialled into."""
        raise SandboxUnsupported(f"Sandbox {self.id} cannot be dialled into (port {port}).")

    async def stats(self) -> SandboxStats:
        """Use of resources so far: from its control groups, or from /proc where there are none.

        Raises:
            SandboxGone: the sandbox is closed or died.
        """
        if self._channel.gone is not None:
            raise SandboxGone(f"The sandbox is gone: {self._channel.gone}.")
        held = self._groups.stats()
        if held.cpu_s is not None or self._label.init_pid is None:
            return held
        # Version 1 would need one more group for the time, and each costs milliseconds to move into.
        tree = await asyncio.to_thread(tree_usage, self._label.init_pid)
        return msgspec.structs.replace(held, cpu_s=tree.cpu_s) if self._groups.folders else tree

    async def snapshot(self) -> Snapshot:
        """Keep the files of HOME and the workdir, and what was written over overlay mounts, until they are dropped.

        Commands go on meanwhile: a file that is written to is kept as it was found.

        Raises:
            SandboxGone: the sandbox is closed or died.
            SandboxError: something could not be read, or the host's disk is full.
        """
        if self._channel.gone is not None:
            raise SandboxGone(f"The sandbox is gone: {self._channel.gone}.")
        made, folder = new_snapshot(self._folder.parent, self._label.labels)
        try:
            fd = os.open(folder / ARCHIVE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                await self._transfer(pack_request(self._spec), "take a snapshot", stdout_fd=fd)
            finally:
                os.close(fd)
        except BaseException:
            await asyncio.to_thread(remove_tree, folder)
            raise
        return made

    async def _transfer(
        self, request: dict[str, object], what: str, *, stdin_fd: int | None = None, stdout_fd: int | None = None
    ) -> None:
        job = await ControlledJob.launch(
            self._channel, request, stdin_fd=stdin_fd, stdout_fd=stdout_fd, max_output_bytes=4096
        )
        try:
            done = await job.wait(SNAPSHOT_TIMEOUT_S)
        except TimeoutError:
            job.abandon()
            raise SandboxTimeout(f"Sandbox {self.id} could not {what} within {SNAPSHOT_TIMEOUT_S:g} s.") from None
        except asyncio.CancelledError:
            job.abandon()
            raise
        if done.exit_code != 0:
            said = done.stderr.decode(errors="replace").strip() or f"exit code {done.exit_code}"
            raise SandboxError(f"Sandbox {self.id} could not {what}: {said}.")

    def _put_on_label(self, pid: int) -> None:
        self._label.init_pid, self._label.init_started = pid, started(pid)
        write_label(self._folder, self._label)

    def _limit_early(self, told_fd: int) -> int | None:
        """Label and limit PID 1 as soon as bubblewrap says which it is; the pid, or None where that did not work."""
        poller = select.poll()
        poller.register(told_fd, select.POLLIN)
        try:
            told = os.read(told_fd, 4096) if poller.poll(START_TIMEOUT_S * 1000) else b""
            found = re.search(rb'"child-pid": (\d+)', told)
            if found is None:
                return None
            pid = int(found[1])
            self._put_on_label(pid)
            self._groups.add(pid)
            self._say_missing()
        except OSError:
            return None
        return pid

    async def _end_early(self) -> int | None:
        """Wait for :meth:`_limit_early`; bubblewrap must have written all it has to say, or be about to die."""
        # Cancelled, it still has to be waited for: see _close.
        pid = await asyncio.shield(self._early) if self._early is not None else None
        if self._told_fd is not None:
            os.close(self._told_fd)
            self._told_fd = None
        return pid

    def _limit(self, pid: int) -> None:
        try:
            self._groups.add(pid)
        except OSError:
            remove_cgroups(self._groups.folders)
            self._groups = Groups()
        self._say_missing()

    def _say_missing(self) -> None:
        missing = self._groups.missing(self._spec.limits)
        if missing:
            self._note(
                f"no permission to make control groups here: the {' and '.join(missing)} limit of sandboxes is not "
                "enforced by them (processes fall back to RLIMIT_NPROC on Linux 5.14+, the others have no limit)"
            )

    async def close(self) -> None:
        """Kill everything inside and remove every trace on the host; idempotent, also while commands run."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        # A cancelled caller must not leave a half-removed sandbox.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._channel.fail("it was closed")
        process = None
        if self._launch is not None:
            await asyncio.wait([self._launch])
            process = self._launch.result() if self._launch.exception() is None else None
        if process is not None:
            if self._init_pidfd is not None:
                # PID 1 first: the kernel ends the namespace with it, and bwrap exits only after that.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
                os.close(self._init_pidfd)
                self._init_pidfd = None
            else:
                kill(process)
        await self._end_early()
        await asyncio.to_thread(self._remove, process)
        self._on_closed(self)

    def _remove(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is not None:
            process.wait()
        remove_cgroups(self._groups.folders)
        remove_tree(self._folder)
