"""The way from inside a cloud sandbox to a gateway without a public address: the dial-in relay, kept running."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain.sandboxes.end import end
from drivetrain.sandboxes.protocol import SandboxError, SandboxGone, SandboxStartError
from drivetrain.sandboxes.relay.dialin import DialIn, inside_argv, inside_script, new_secret

if TYPE_CHECKING:
    from drivetrain.sandboxes.remote.job import RemoteJob
    from drivetrain.sandboxes.remote.sandbox import RemoteSandbox

logger = logging.getLogger(__name__)

# Not the user of the commands: an agent that kills every python of its own must not cut itself off.
RELAY_USER = (65534, 65534)
LISTEN_S = 20.0
RESTART_S = 0.2


class GatewayLink:
    """The relay's inside as a service of the sandbox, and the connection dialled to it.

    Args:
        sandbox: set up already.
        gateway_socket: host path of the Unix socket that the gateway listens on.
        script: inside path at which the relay's script is put; readable for everybody.
        relay_port: loopback port inside, the same for the life of the sandbox.
        dial_port: port that the provider exposes to the host.
    """

    def __init__(
        self, sandbox: RemoteSandbox, gateway_socket: Path, *, script: str, relay_port: int, dial_port: int
    ) -> None:
        self._sandbox = sandbox
        self._socket = gateway_socket
        self._script = script
        self._secret = new_secret()
        self._relay_port = relay_port
        self._dial_port = dial_port
        self._dial: DialIn | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """As seen from inside."""
        return f"http://127.0.0.1:{self._relay_port}"

    async def open(self) -> None:
        """Start both ends.

        Raises:
            SandboxStartError: the relay does not listen.
            SandboxError: the sandbox cannot be dialled into.
        """
        await self._sandbox.put_root(self._script, inside_script())
        job = await self._start()
        self._dial = DialIn(await self._sandbox.reach(self._dial_port), self._secret, self._socket)
        await self._dial.start()
        self._keeper = asyncio.create_task(self._keep(job))

    async def _start(self) -> RemoteJob:
        argv = inside_argv(self._script, secret_file="-", relay_port=self._relay_port, dial_port=self._dial_port)
        job = await self._sandbox.serve_as(RELAY_USER, argv, stdin=self._secret.encode())
        for _ in range(int(LISTEN_S / 0.05)):
            line, newline, _ = job.tail().partition(b"\n")
            if newline or job.poll() is not None:
                break
            await asyncio.sleep(0.05)
        try:
            ports = json.loads(line)
            self._relay_port, self._dial_port = ports["relay_port"], ports["dial_port"]
        except (ValueError, KeyError, TypeError) as error:
            said = job.tail(2000).decode(errors="replace").strip()
            raise SandboxStartError(f"The relay in sandbox {self._sandbox.id} does not listen: {said}.") from error
        return job

    async def _keep(self, job: RemoteJob) -> None:
        while True:
            try:
                done = await job.wait()
                logger.warning("sandbox %s: its relay ended (%d), starting another", self._sandbox.id, done.exit_code)
                await asyncio.sleep(RESTART_S)
                job = await self._start()
            except SandboxGone:
                return
            except SandboxError as error:
                logger.warning("sandbox %s: its relay did not start again: %s", self._sandbox.id, error)
                await asyncio.sleep(1)

    async def close(self) -> None:
        """End the host's side; the inside ends with the sandbox."""
        if self._keeper is not None:
            await end(self._keeper)
        if self._dial is not None:
            await self._dial.close()
