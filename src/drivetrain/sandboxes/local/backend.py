"""``LocalBackend``: sandboxes on this machine from bubblewrap namespaces. No daemon, no image, tens of milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import tempfile
import time
from pathlib import Path

from drivetrain.errors import ConfigError
from drivetrain.sandboxes.label import new_id, new_label, write_label
from drivetrain.sandboxes.local import bwrap, snapshots
from drivetrain.sandboxes.local.cgroups import make_groups, possible_folders, remove_cgroups
from drivetrain.sandboxes.local.disk import can_bound
from drivetrain.sandboxes.local.interpreter import find_interpreter, inside_code
from drivetrain.sandboxes.local.launcher import why_no_stage
from drivetrain.sandboxes.local.reaper import reap
from drivetrain.sandboxes.local.sandbox import LocalSandbox
from drivetrain.sandboxes.protocol import (
    Feature,
    Limits,
    SandboxHandle,
    SandboxSpec,
    SandboxStartError,
    SandboxUnsupported,
    Snapshot,
)

logger = logging.getLogger(__name__)

DEFAULT_RELAY_PORT = 8399


def default_root() -> Path:
    """Where local sandboxes live unless the caller says otherwise: one private folder per user."""
    return Path(tempfile.gettempdir()) / f"drivetrain-{os.getuid()}" / "sandboxes"


@functools.cache
def _features() -> frozenset[Feature]:
    found: set[Feature] = {
        "mount",
        "writable_mount",
        "overlay",
        "snapshot",
        "network_policy",
        "pids_limit",
        "host_pids",
    }
    groups = make_groups(f"probe-{secrets.token_hex(6)}", Limits(cpus=1))
    remove_cgroups(groups.folders)
    if groups.memory:
        found.add("memory_limit")
    if groups.cpu:
        found.add("cpu_limit")
    if can_bound() and why_no_stage(find_interpreter().executable) is None:
        found.add("disk_limit")
    return frozenset(found)


class LocalBackend:
    """Implements ``SandboxBackend`` with bubblewrap.

    A sandbox sees the host's /usr, /bin, /lib* and a few files of /etc read-only, a private /tmp, HOME and workdir,
    and the mounts of its spec. Memory and process limits hold where control groups can be made; else a warning says
    so once.

    Args:
        root: host folder for the sandboxes' files, one sub-folder each; made if missing, mode 0700.
        relay_port: TCP port inside at which a ``network="gateway"`` sandbox finds the gateway.
    """

    name = "local"

    def __init__(self, root: Path | None = None, *, relay_port: int = DEFAULT_RELAY_PORT) -> None:
        self.root = root if root is not None else default_root()
        self._relay_port = relay_port
        self._open: set[LocalSandbox] = set()
        self._prepared: asyncio.Task[None] | None = None
        self._noted: set[str] = set()

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do on this machine. Blocks for about 0.1 s the first time.

        Overlays are copies where none can be mounted; process limits fall back to RLIMIT_NPROC.
        """
        return _features()

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Start a sandbox.

        The first call also removes what dead owners left below ``root``.

        Raises:
            MissingDependency: bubblewrap is not installed.
            ConfigError: the root folder is not ours.
            SandboxUnsupported: an image, or a snapshot of another backend.
            SandboxStartError: it did not come up; nothing is left behind.
        """
        if spec.limits.ttl_s <= 0:
            raise SandboxStartError("A sandbox needs a time to live above 0 s.", fix="Set limits.ttl_s.")
        if spec.image is not None:
            raise SandboxUnsupported(
                f"The local backend has no images, and {spec.image!r} is asked for.", fix="Use another backend."
            )
        bwrap.find_bwrap()
        if self._prepared is None:
            self._prepared = asyncio.create_task(asyncio.to_thread(self._prepare))
        await asyncio.shield(self._prepared)
        snapshot_fd = None if spec.snapshot is None else snapshots.open_snapshot(self.root, spec.snapshot)
        try:
            return await self._create(spec, snapshot_fd)
        finally:
            if snapshot_fd is not None:
                os.close(snapshot_fd)

    async def _create(self, spec: SandboxSpec, snapshot_fd: int | None) -> LocalSandbox:
        label = new_label(new_id(), time.time() + spec.limits.ttl_s, dict(spec.labels))
        label.cgroups = [str(group) for group in possible_folders(label.id)]
        folder = self.root / label.id
        try:
            folder.mkdir(mode=0o700)
        except FileNotFoundError:  # another backend of this user closed and took the empty root away
            await asyncio.to_thread(self._prepare)
            folder.mkdir(mode=0o700)
        write_label(folder, label)
        sandbox = LocalSandbox(
            spec,
            folder=folder,
            label=label,
            relay_port=self._relay_port,
            note=self._note,
            on_closed=self._open.discard,
        )
        self._open.add(sandbox)
        try:
            await sandbox.open(snapshot_fd)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def drop(self, snapshot: Snapshot) -> None:
        """Remove a snapshot; one that is gone already is fine.

        Raises:
            SandboxUnsupported: it belongs to another backend.
        """
        await asyncio.to_thread(snapshots.drop, self.root, snapshot)

    async def reap(self) -> list[str]:
        """Remove the sandboxes below ``root`` whose owner is dead or whose deadline has passed; their ids."""
        return await asyncio.to_thread(reap, self.root)

    def _prepare(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.root, self.root.parent) if self.root == default_root() else (self.root,):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                raise ConfigError(
                    f"The sandbox folder {folder} belongs to somebody else.", fix="Pass another root to LocalBackend."
                )
            folder.chmod(0o700)
        # Found once per process; here, because it takes 0.1 s.
        python = find_interpreter()
        inside_code(python.executable)
        why_no_stage(python.executable)
        for sandbox_id in reap(self.root):
            logger.info("removed sandbox %s of a dead owner", sandbox_id)

    def _note(self, text: str) -> None:
        """Say once what this machine does not let us do."""
        if text not in self._noted:
            self._noted.add(text)
            logger.warning("%s", text)

    async def aclose(self) -> None:
        """Close every sandbox this backend still owns and remove the default root when nobody uses it; idempotent."""
        results = await asyncio.gather(*(sandbox.close() for sandbox in list(self._open)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if self.root == default_root():
            with contextlib.suppress(OSError):  # not empty, or gone already
                self.root.rmdir()
                self.root.parent.rmdir()
