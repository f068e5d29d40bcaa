"""``DockerSandbox``: one running container with our PID 1 in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from drivetrain.sandboxes.control.channel import Channel
from drivetrain.sandboxes.control.sandbox import ControlledSandbox
from drivetrain.sandboxes.docker.config import inside_path
from drivetrain.sandboxes.docker.door import GatewayBroker
from drivetrain.sandboxes.docker.engine import Engine
from drivetrain.sandboxes.docker.images import Image
from drivetrain.sandboxes.docker.usage import Usage
from drivetrain.sandboxes.local.reaper import remove_tree
from drivetrain.sandboxes.protocol import (
    Reach,
    SandboxGone,
    SandboxSpec,
    SandboxStats,
    SandboxUnsupported,
    Snapshot,
)


class DockerSandbox(ControlledSandbox):
    """Implements ``SandboxHandle``. Made by :meth:`DockerBackend.create`; bound to the loop it was made in.

    Commands, jobs and files go over the control socket to PID 1, as in a local sandbox; the engine is asked only for
    the container's life, so an engine that is restarted or slow does not slow commands down.
    """

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        *,
        engine: Engine,
        container: str,
        image: Image,
        folder: Path,
        channel: Channel,
        broker: GatewayBroker | None,
        usage: Usage,
        relay_port: int,
        environment: Mapping[str, str],
        keep: Callable[[DockerSandbox], Awaitable[Snapshot]],
        on_closed: Callable[[DockerSandbox], Awaitable[None]],
    ) -> None:
        super().__init__(sandbox_id, spec, channel=channel, relay_port=relay_port, environment=environment)
        self._engine = engine
        self._container = container
        self._image = image
        self._folder = folder
        self._broker = broker
        self._usage = usage
        self._keep = keep
        self._on_closed = on_closed
        self._closing: asyncio.Task[None] | None = None

    @property
    def image_digest(self) -> str:
        """Digest of the image as the registry knows it, else the engine's id of it: ``sha256:...``."""
        return self._image.digest

    @property
    def container_id(self) -> str:
        """The engine's id of the container."""
        return self._container

    @property
    def overlays(self) -> list[str]:
        """Where overlay mounts are inside."""
        return [inside_path(mount.target) for mount in self._spec.mounts if mount.overlay]

    @property
    def failed_to_close(self) -> bool:
        """Whether the last attempt to close has failed."""
        return self._closing is not None and self._closing.done() and not _succeeded(self._closing)

    async def reach(self, port: int) -> Reach:
        """A container is reached through its gateway relay only, never dialled into."""
        raise SandboxUnsupported(f"Sandbox {self.id} cannot be dialled into (port {port}).")

    async def stats(self) -> SandboxStats:
        """Use of resources so far, from the container's control groups."""
        self._check_alive()
        return await asyncio.to_thread(self._usage.read)

    async def snapshot(self) -> Snapshot:
        """Commit the container's file system (without /tmp and mounts) to an image.

        Raises:
            SandboxGone: the sandbox is closed or died.
            SandboxError: the engine failed.
        """
        self._check_alive()
        return await self._keep(self)

    def _check_alive(self) -> None:
        if self._channel.gone is not None:
            raise SandboxGone(f"The sandbox is gone: {self._channel.gone}.")

    async def close(self) -> None:
        """Kill everything inside, remove the container and its files on the host; idempotent.

        Raises:
            SandboxError: the engine does not answer; the reaper removes the container later, and so does another close.
        """
        if self._closing is None or self.failed_to_close:
            self._closing = asyncio.create_task(self._close())
        # A cancelled caller must not leave a half-removed sandbox.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._channel.fail("it was closed")
        if self._broker is not None:
            await self._broker.close()
        await self._engine.remove(self.id)
        await asyncio.to_thread(remove_tree, self._folder)
        await self._on_closed(self)


def _succeeded(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and task.exception() is None
