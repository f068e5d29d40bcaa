"""The half of a cloud backend that does not depend on the provider."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.sandboxes.end import end
from drivetrain.sandboxes.label import Label, new_id, new_label
from drivetrain.sandboxes.protocol import (
    Feature,
    SandboxError,
    SandboxHandle,
    SandboxSpec,
    SandboxStartError,
    SandboxUnsupported,
    Snapshot,
)
from drivetrain.sandboxes.remote.labels import KEY_ID, KEY_OWNER, from_metadata, is_left_over, owner_key, to_metadata
from drivetrain.sandboxes.remote.mounts import check
from drivetrain.sandboxes.remote.patience import patiently
from drivetrain.sandboxes.remote.sandbox import RemoteSandbox
from drivetrain.sandboxes.remote.times import CANCEL_S, lease
from drivetrain.sandboxes.remote.transport import LinkLost, Transport

logger = logging.getLogger(__name__)


class Box(msgspec.Struct, frozen=True):
    """A box or a snapshot as the provider lists it."""

    id: str
    metadata: dict[str, str]


class RemoteBackend(ABC):
    """Implements ``SandboxBackend`` over a provider.

    Args:
        relay_port: TCP port inside at which a ``network="gateway"`` sandbox finds the gateway.
        dial_port: TCP port inside that the host dials into for it.
        scope: :meth:`reap` leaves sandboxes of another scope alone.
    """

    name: str
    features: frozenset[Feature]

    def __init__(self, *, relay_port: int, dial_port: int, scope: str) -> None:
        self._scope = scope
        self._relay_port = relay_port
        self._dial_port = dial_port
        self._open: set[RemoteSandbox] = set()
        self._warned = False

    @abstractmethod
    async def _new_box(self, spec: SandboxSpec, metadata: dict[str, str], lifetime_s: int) -> Transport:
        """One attempt at a new box. Raises as a :class:`~drivetrain.sandboxes.remote.transport.Transport` does."""

    @abstractmethod
    async def _adopt(self, box_id: str) -> Transport:
        """A running box of ours."""

    @abstractmethod
    async def _find(self, metadata: dict[str, str]) -> list[Box]:
        """Running boxes with this metadata."""

    @abstractmethod
    async def _kill_box(self, box_id: str) -> None:
        """End a box; one that is gone is fine."""

    def _check(self, spec: SandboxSpec) -> None:
        """Refuse what cannot be, before anything is paid for."""
        if spec.limits.ttl_s <= 0:
            raise SandboxStartError("A sandbox needs a time to live above 0 s.", fix="Set limits.ttl_s.")
        if spec.image is not None and spec.snapshot is not None:
            raise SandboxStartError("A sandbox starts from an image or from a snapshot.", fix="Leave one out.")
        if spec.snapshot is not None and (spec.snapshot.backend != self.name or "snapshot" not in self.features):
            raise SandboxUnsupported(f"The {self.name} backend cannot start from {spec.snapshot}.")
        if spec.snapshot is not None and not spec.snapshot.ref:
            raise SandboxStartError("A snapshot has a name; this one's is empty.")
        if spec.network == "gateway":
            if spec.gateway_socket is None:
                raise SandboxStartError('network="gateway" needs a gateway_socket.', fix="Pass the gateway's socket.")
            if not spec.gateway_socket.parent.is_dir():
                raise SandboxStartError(
                    f"The folder of the gateway_socket {spec.gateway_socket} does not exist.",
                    fix="Start the gateway before the sandbox.",
                )
        for mount in spec.mounts:
            check(mount)

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Start a sandbox.

        Raises:
            SandboxStartError: it did not come up; nothing is left behind.
            SandboxUnsupported: the spec asks for what this backend cannot do.
            ConfigError: the provider does not accept our credentials.
            MissingDependency: the provider's SDK is not installed.
        """
        self._check(spec)
        self._warn(spec)
        label = new_label(new_id(), time.time() + spec.limits.ttl_s, dict(spec.labels))
        transport = await self._box(spec, label)
        sandbox = RemoteSandbox(
            label.id,
            spec,
            transport,
            backend=self.name,
            relay_port=self._relay_port,
            dial_port=self._dial_port,
            on_closed=self._open.discard,
        )
        self._open.add(sandbox)
        try:
            await sandbox.open()
        except BaseException as error:
            await sandbox.close()
            if isinstance(error, SandboxError) and not isinstance(error, SandboxStartError):
                raise SandboxStartError(f"Sandbox {label.id} did not start: {error.what}", fix=error.fix) from error
            raise
        return sandbox

    async def _box(self, spec: SandboxSpec, label: Label) -> Transport:
        """A new box; cancelled or failed, it leaves none behind, whatever became of the provider's replies."""
        making = asyncio.create_task(self._make(spec, label))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # A request under way may already have made one: only its end tells.
            await asyncio.wait([making], timeout=CANCEL_S)
            if making.done() and not making.cancelled() and making.exception() is None:
                await patiently(f"end sandbox {label.id}", making.result().kill)
            else:
                await end(making)
                await self._sweep(label)
            raise
        except Exception as error:
            await self._sweep(label)
            if isinstance(error, SandboxStartError) or not isinstance(error, SandboxError):
                raise
            raise SandboxStartError(f"Sandbox {label.id} did not start: {error.what}", fix=error.fix) from error

    async def _make(self, spec: SandboxSpec, label: Label) -> Transport:
        metadata = to_metadata(label, self._scope)
        lost = False

        async def attempt() -> Transport:
            nonlocal lost
            if lost:  # the reply, perhaps not the box
                for box in await self._find({KEY_ID: label.id}):
                    return await self._adopt(box.id)
            try:
                return await self._new_box(spec, metadata, lease(spec.limits.ttl_s))
            except LinkLost:
                lost = True
                raise

        return await patiently(f"create sandbox {label.id}", attempt)

    async def _sweep(self, label: Label) -> None:
        """End what a failed start may have left; the provider's lease does where even that cannot be asked."""
        with contextlib.suppress(SandboxError, ConfigError):
            for box in await patiently("look for a lost sandbox", lambda: self._find({KEY_ID: label.id})):
                await patiently(f"end sandbox {label.id}", lambda: self._kill_box(box.id))  # noqa: B023

    def _warn(self, spec: SandboxSpec) -> None:
        """Say once which limits the provider's machine sets instead of us."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s sandboxes have the memory, processors and disk of their template or flavor: limits.memory_bytes, "
                "cpus and disk_bytes are not enforced (this sandbox asks for %d bytes of memory)",
                self.name,
                spec.limits.memory_bytes,
            )

    async def drop(self, snapshot: Snapshot) -> None:
        """Remove a snapshot; one that is gone already is fine.

        Raises:
            SandboxUnsupported: it belongs to another backend, or this one has none.
        """
        if snapshot.backend != self.name or "snapshot" not in self.features:
            raise SandboxUnsupported(f"{snapshot} is no snapshot of the {self.name} backend.")
        if not snapshot.ref:
            return
        await patiently("drop a snapshot", lambda: self._drop(snapshot.ref))

    async def _drop(self, ref: str) -> None:
        raise NotImplementedError

    async def reap(self) -> list[str]:
        """End the boxes of dead owners and past deadlines; their ids.

        Only those with our label of this user on this machine; what another left ends with the provider's lease.
        """
        mine = {KEY_OWNER: owner_key(self._scope)}
        reaped = []
        for box in await patiently("list sandboxes", lambda: self._find(mine)):
            label = from_metadata(box.metadata, self._scope)
            if label is None or not is_left_over(label) or any(label.id == each.id for each in self._open):
                continue
            await patiently(f"end sandbox {label.id}", lambda: self._kill_box(box.id))  # noqa: B023
            reaped.append(label.id)
        return reaped

    async def aclose(self) -> None:
        """Close every sandbox this backend still owns; idempotent."""
        results = await asyncio.gather(*(sandbox.close() for sandbox in list(self._open)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
