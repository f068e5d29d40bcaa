"""``RemoteSandbox``: one running box of a provider, from its set-up to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import marshal
import os
import resource
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.sandboxes.control.channel import MARSHAL_VERSION
from drivetrain.sandboxes.control.commands import Commands
from drivetrain.sandboxes.control.transfer import TRANSFER_TIMEOUT_S
from drivetrain.sandboxes.end import end
from drivetrain.sandboxes.protocol import (
    ExecResult,
    Reach,
    SandboxError,
    SandboxGone,
    SandboxSpec,
    SandboxStartError,
    SandboxStats,
    Snapshot,
)
from drivetrain.sandboxes.remote.bundle import setup_script
from drivetrain.sandboxes.remote.gateway import GatewayLink
from drivetrain.sandboxes.remote.job import RemoteJob
from drivetrain.sandboxes.remote.mounts import UID, Packed, pack
from drivetrain.sandboxes.remote.patience import patiently
from drivetrain.sandboxes.remote.supervisor import PYTHON, Supervisor
from drivetrain.sandboxes.remote.times import RENEW_S, TRANSFER_CALL_S, lease
from drivetrain.sandboxes.remote.transport import Reply, Transport

logger = logging.getLogger(__name__)

FOLDER = "/var/lib/drivetrain"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class RemoteSandbox(Commands):
    """Implements ``SandboxHandle``; bound to the loop it was made in.

    Args:
        sandbox_id: our name of it, also its label.
        spec: as given to ``create``.
        transport: the running box.
        backend: name of the backend, for snapshots.
        relay_port: loopback port inside for ``network="gateway"``; 0 for a free one.
        dial_port: port inside that the host dials into; 0 for a free one.
        on_closed: called when nothing is left of it.
    """

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        transport: Transport,
        *,
        backend: str,
        relay_port: int,
        dial_port: int,
        on_closed: Callable[[RemoteSandbox], None],
    ) -> None:
        super().__init__(sandbox_id, spec, {})
        self._transport = transport
        self._backend = backend
        self._relay_port = relay_port
        self._dial_port = dial_port
        self._on_closed = on_closed
        self._supervisor = Supervisor(transport, f"{FOLDER}/{sandbox_id}")
        self._deadline = time.monotonic() + spec.limits.ttl_s
        self._gateway: GatewayLink | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def provider_id(self) -> str:
        """The provider's name of the box."""
        return self._transport.id

    def _gateway_at(self) -> str | None:
        return None if self._gateway is None else self._gateway.url

    async def open(self) -> None:
        """Set the box up; the caller cleans up on failure.

        Raises:
            SandboxStartError: the image lacks what is needed, or a mount cannot be.
            SandboxError: the box cannot be reached.
        """
        packed = [await asyncio.to_thread(pack, mount) for mount in self._spec.mounts]
        try:
            found = await self._boot(packed)
            self._environment = {
                "HOME": found["home"],
                "PATH": found["path"] or DEFAULT_PATH,
                "TMPDIR": "/tmp",
                "USER": found["user"],
                "LANG": "C.UTF-8",
            }
            for number, each in enumerate(packed):
                if number not in found["mounts"]:
                    await self._mount(each)
        finally:
            for each in packed:
                each.close()
        if self._spec.network == "gateway":
            assert self._spec.gateway_socket is not None
            self._gateway = GatewayLink(
                self,
                self._spec.gateway_socket,
                script=f"{FOLDER}/relay-{self.id}.py",
                relay_port=self._relay_port,
                dial_port=self._dial_port,
            )
            await self._gateway.open()
        self._keeper = asyncio.create_task(self._keep())

    async def _boot(self, packed: list[Packed]) -> dict[str, Any]:
        limits = self._spec.limits
        config = {
            "workdir": self.workdir,
            "ttl_s": limits.ttl_s,
            "rlimits": [
                (resource.RLIMIT_CORE, 0),
                (resource.RLIMIT_FSIZE, limits.file_bytes),
                (resource.RLIMIT_NOFILE, limits.open_files),
                (resource.RLIMIT_NPROC, limits.pids),
            ],
            "markers": [each.wanted() for each in packed],
            "fresh": self._spec.snapshot is not None,
        }
        script = f"{FOLDER}/setup-{self.id}.py"
        await self._supervisor.put(script, setup_script())
        words = [PYTHON, "-I", script, self._supervisor.folder, json.dumps(config)]
        reply: Reply = await self._supervisor.attempt(
            "set the sandbox up", lambda: self._transport.run(words, timeout_s=TRANSFER_CALL_S)
        )
        try:
            found: dict[str, Any] = json.loads(reply.stdout)
        except ValueError:
            said = (reply.stderr or reply.stdout).strip()[-500:]
            raise SandboxStartError(
                f"Sandbox {self.id} could not be set up: exit code {reply.exit_code}, {said or 'no output'}.",
                fix="The image needs python3 (3.9 or newer) on root's PATH.",
            ) from None
        if "unfit" in found:
            raise SandboxStartError(
                f"The image {self._spec.image or 'of the provider'} cannot be used: {found['unfit']}.",
                fix="It needs python3 (3.9 or newer, with its standard library) and a Linux kernel from 5.3.",
            )
        return found

    async def _mount(self, packed: Packed) -> None:
        """As root, so that commands read what is mounted and never change it; an overlay is theirs."""
        target = packed.folder
        with packed.content() as content:
            done = await self.run_as(None, {"file": ("upload", os.fsencode(target))}, stdin=content)
        if done.exit_code == 0:
            script = '[ -z "$1" ] || chown -hR "$1" "$2"; mkdir -p "${3%/*}" && echo "$4" > "$3"'
            owner = f"{UID}:{UID}" if packed.mount.overlay else ""
            words = ["sh", "-c", script, "sh", owner, packed.mount.target, packed.marker, packed.digest]
            request = {"argv": [os.fsencode(word) for word in words]}
            done = await self.run_as(None, {**request, "env": {b"PATH": os.fsencode(self._environment["PATH"])}})
        if done.exit_code != 0:
            said = done.stderr.decode(errors="replace").strip()
            raise SandboxStartError(f"Could not put {packed.mount.source} at {packed.mount.target}: {said}.")

    async def run_as(
        self, user: tuple[int, int] | None, request: dict[str, object], *, stdin: bytes | memoryview | None = None
    ) -> ExecResult:
        """What belongs to the sandbox itself: as ``user``, None for root, with a request as for ``inside/init.py``."""
        whole = {"cwd": b"/", "user": user, **request}
        return await self._run(whole, stdin=stdin, timeout_s=TRANSFER_TIMEOUT_S, max_output_bytes=4096)

    async def serve_as(self, user: tuple[int, int], argv: Sequence[str], *, stdin: bytes) -> RemoteJob:
        """A service of the sandbox's own, in the background, out of reach of its commands."""
        request = {**self._command(argv, "/", None), "user": user}
        request["env"] = {b"PATH": os.fsencode(self._environment["PATH"])}
        job = await self._send(request, stdin=stdin, deadline_s=None, max_output_bytes=1 << 16, spill=None)
        return await self._begin(job, 0)

    async def _keep(self) -> None:
        """Extend the provider's lease while the owner lives, and end everything at the time to live."""
        while (left := self._deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(RENEW_S, left))
            left = self._deadline - time.monotonic()
            if left <= 0:
                break
            try:
                await patiently("extend the lease", lambda: self._transport.renew(lease(left)))  # noqa: B023
            except SandboxGone as error:
                self._supervisor.fail(error.what.removeprefix("The sandbox is gone: ").rstrip("."))
                return
            except SandboxError as error:
                logger.warning("sandbox %s: its lease was not extended: %s", self.id, error)
        self._supervisor.fail("its time to live is over")
        await self._end_box()

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
            SandboxError: no process slot is left, or the provider refuses.
            SandboxTimeout: the sandbox cannot be reached, or the command could not be killed.
        """
        return await self._run(
            self._command(argv, cwd, env),
            stdin=stdin,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
            spill=spill,
        )

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int = 16 << 20,
        spill: Path | None = None,
    ) -> RemoteJob:
        """Start in the background; ``max_output_bytes`` bounds stdout and stderr each (protocol: ``spill``).

        Raises:
            SandboxGone: the sandbox is closed or died.
            SandboxError: no process slot is left, or the provider refuses.
        """
        job = await self._send(
            self._command(argv, cwd, env), stdin=None, deadline_s=None, max_output_bytes=max_output_bytes, spill=spill
        )
        return await self._begin(job, 0)

    async def _run(
        self,
        request: dict[str, object],
        *,
        stdin: bytes | memoryview | None,
        timeout_s: float,
        max_output_bytes: int,
        spill: Path | None = None,
    ) -> ExecResult:
        job = await self._send(
            request, stdin=stdin, deadline_s=timeout_s, max_output_bytes=max_output_bytes, spill=spill
        )
        await self._begin(job, timeout_s)
        try:
            return await job.finish(timeout_s)
        except asyncio.CancelledError:
            job.abandon()
            raise

    async def _send(
        self,
        request: dict[str, object],
        *,
        stdin: bytes | memoryview | None,
        deadline_s: float | None,
        max_output_bytes: int,
        spill: Path | None,
    ) -> RemoteJob:
        """The request and stdin, as files that only root reads."""
        self._supervisor.check()
        name = secrets.token_hex(6)
        folder = f"{self._supervisor.folder}/jobs/{name}"
        parts = None if stdin is None else await self._supervisor.put_parts(f"{folder}/stdin", stdin)
        whole = {
            "run": request,
            "stdin": parts,
            "head": max_output_bytes,
            "rest": spill is not None,
            "deadline": deadline_s,
        }
        await self._supervisor.put(f"{folder}/request", marshal.dumps(whole, MARSHAL_VERSION))
        return RemoteJob(self._supervisor, name, max_output_bytes=max_output_bytes, spill=spill)

    async def _begin(self, job: RemoteJob, wait_s: float) -> RemoteJob:
        try:
            await job.begin(wait_s)
        except asyncio.CancelledError:
            job.abandon()
            raise
        return job

    async def reach(self, port: int) -> Reach:
        """How the host reaches TCP ``port`` inside, through the provider's proxy."""
        self._supervisor.check()
        return await self._transport.reach(port)

    async def stats(self) -> SandboxStats:
        """Use of resources so far, summed over the processes of the sandbox.

        Raises:
            SandboxGone: the sandbox is closed or died.
        """
        answer = await self._supervisor.ask({"do": "stats"})
        return SandboxStats(cpu_s=answer["cpu_s"], memory_bytes=answer["memory_bytes"], pids=answer["pids"])

    async def snapshot(self) -> Snapshot:
        """Keep the box's disk as it is now.

        Raises:
            SandboxUnsupported: the provider has no snapshots.
            SandboxGone: the sandbox is closed or died.
        """
        self._supervisor.check()
        await (await self.start(["sync"])).wait(60)
        return Snapshot(self._backend, await self._transport.snapshot())

    async def put_root(self, path: str, data: bytes) -> None:
        """A file of root's inside the supervisor's folder; for what belongs to the sandbox itself."""
        await self._supervisor.put(path, data)

    async def close(self) -> None:
        """End the box; idempotent, also while commands run."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        # A cancelled caller must not leave a half-closed sandbox.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._supervisor.fail("it was closed")
        if self._keeper is not None:
            await end(self._keeper)
        await self._end_box()
        await self._supervisor.settle()
        self._on_closed(self)

    async def _end_box(self) -> None:
        if self._gateway is not None:
            with contextlib.suppress(SandboxError):
                await self._gateway.close()
        await patiently(f"end sandbox {self.id}", self._transport.kill)
