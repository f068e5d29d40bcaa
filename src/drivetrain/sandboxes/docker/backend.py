"""``DockerBackend``: sandboxes that are containers, on Docker or Podman, over the Engine API's Unix socket."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import tempfile
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from drivetrain.cache import Progress
from drivetrain.errors import ConfigError
from drivetrain.sandboxes.control.channel import Channel
from drivetrain.sandboxes.docker.config import HOME, User, check, container_config, parse_user
from drivetrain.sandboxes.docker.door import BROKER_SOCKET, ControlDoor, GatewayBroker, make_folder
from drivetrain.sandboxes.docker.engine import Engine, find_socket
from drivetrain.sandboxes.docker.images import Image, ImageNotFound, Images
from drivetrain.sandboxes.docker.labels import SANDBOX, SNAPSHOT, as_changes, kept_overlays, make_labels
from drivetrain.sandboxes.docker.reaper import reap
from drivetrain.sandboxes.docker.runtime import CONTROL, build_inside
from drivetrain.sandboxes.docker.sandbox import DockerSandbox
from drivetrain.sandboxes.docker.seed import Accounts, accounts, build_seed
from drivetrain.sandboxes.docker.usage import Usage
from drivetrain.sandboxes.label import Label, new_id, new_label, write_label
from drivetrain.sandboxes.local.reaper import remove_tree
from drivetrain.sandboxes.protocol import (
    Feature,
    Limits,
    SandboxError,
    SandboxGone,
    SandboxHandle,
    SandboxSpec,
    SandboxStartError,
    SandboxUnsupported,
    Snapshot,
)

logger = logging.getLogger(__name__)

DEFAULT_IMAGE = "debian:bookworm-slim"
DEFAULT_RELAY_PORT = 8399
START_TIMEOUT_S = 60.0
_COMMIT_TIMEOUT_S = 600.0
_STARTS_AT_ONCE = 8
_SNAPSHOTS = "drivetrain-snapshot"
_REFERENCE = re.compile(rf"{_SNAPSHOTS}:dt-[0-9a-f]+")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# An image's id is a digest of its content, so this is never out of date, whichever engine has it. Asking takes long.
_ACCOUNTS: dict[tuple[str, User], Accounts] = {}

T = TypeVar("T")


def default_root() -> Path:
    """Where the sandboxes' sockets live unless the caller says otherwise: one private folder per user."""
    return Path(tempfile.gettempdir()) / f"drivetrain-{os.getuid()}" / "docker"


class DockerBackend:
    """Implements ``SandboxBackend`` with containers of Docker or Podman on this machine.

    PID 1 of a container is ours (``inside/init.py``), run by a Python that is mounted read-only with its own C library,
    so any Linux image of this architecture will do. Commands run as a user without capabilities who owns HOME
    (``/home/agent``) and the workdir; the image's own variables are the defaults of its environment.

    Args:
        socket: the engine's socket; else DOCKER_HOST, CONTAINER_HOST, or the first of the usual places.
        image: for specs that name none.
        user: ``uid:gid`` of commands. Default: this process's own, and 1000:1000 when that is root.
        root: host folder for the sandboxes' sockets, one sub-folder each; made if missing, mode 0700.
        relay_port: TCP port inside at which a ``network="gateway"`` sandbox finds the gateway.
        progress: receives a line at most each second while an image is pulled; default: the log.
        registry_auth: ``username``, ``password`` (or ``identitytoken``) for pulls.
        pull_timeout_s: how long a pull may take, retries included.
        cache: where the mounted Python is kept; default: ``$DRIVETRAIN_CACHE`` or ``~/.cache/drivetrain``.
    """

    name = "docker"
    features: frozenset[Feature] = frozenset(
        {
            *("image", "mount", "writable_mount", "overlay", "network_policy", "snapshot", "host_pids"),
            *("memory_limit", "pids_limit", "cpu_limit"),
        }
    )

    def __init__(
        self,
        socket: Path | str | None = None,
        *,
        image: str = DEFAULT_IMAGE,
        user: str | None = None,
        root: Path | None = None,
        relay_port: int = DEFAULT_RELAY_PORT,
        progress: Progress | None = None,
        registry_auth: Mapping[str, str] | None = None,
        pull_timeout_s: float = 1800.0,
        cache: Path | None = None,
    ) -> None:
        self.root = root if root is not None else default_root()
        self._socket = socket
        self._default_image = image
        self._user = parse_user(user or _default_user())
        self._relay_port = relay_port
        self._progress = progress or logger.info
        self._auth = registry_auth
        self._pull_timeout_s = pull_timeout_s
        self._cache = cache
        self._engine: Engine | None = None
        self._images: Images | None = None
        self._inside: Path | None = None
        self._prepared: asyncio.Task[None] | None = None
        self._starting = asyncio.Semaphore(_STARTS_AT_ONCE)
        self._open: set[DockerSandbox] = set()
        self._to_drop: set[str] = set()
        self._dropping = asyncio.Lock()
        self._warned: set[str] = set()
        self._creating = 0

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Start a sandbox. The first call also removes what dead owners left below ``root``.

        Raises:
            MissingDependency: aiodocker is not installed, or there is no engine.
            ConfigError: DOCKER_HOST is not a Unix socket, or the root folder is not ours.
            ImageNotFound, ImageRefused, RegistryBusy: the image cannot be had (each a SandboxStartError).
            SandboxStartError: it did not come up; nothing is left behind.
            SandboxUnsupported: the snapshot belongs to another backend.
        """
        check(spec)
        self._creating += 1
        try:
            return await self._create(spec)
        finally:
            self._creating -= 1

    async def _create(self, spec: SandboxSpec) -> DockerSandbox:
        if spec.snapshot is not None and spec.snapshot.backend != self.name:
            raise SandboxUnsupported(f"The docker backend cannot start from a snapshot of {spec.snapshot.backend!r}.")
        try:
            engine = await self._connect()
            image = await self._image(spec)
            async with self._starting:
                return await self._start(engine, image, spec)
        except SandboxStartError:
            raise
        except SandboxError as error:
            raise SandboxStartError(f"A sandbox did not start: {error.what}", fix=error.fix) from error

    async def _image(self, spec: SandboxSpec) -> Image:
        assert self._images is not None
        if spec.snapshot is None:
            return await self._images.ensure(spec.image or self._default_image)
        if not _REFERENCE.fullmatch(spec.snapshot.ref):
            raise ImageNotFound(f"{spec.snapshot.ref!r} is no snapshot of the docker backend.")
        return await self._images.ensure(spec.snapshot.ref, pull=False)

    async def _connect(self) -> Engine:
        """Find the engine and make the root folder, once."""
        if self._prepared is None or (self._prepared.done() and _failed(self._prepared)):
            self._prepared = asyncio.create_task(self._prepare())
            self._prepared.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._prepared)
        assert self._engine is not None
        return self._engine

    async def _prepare(self) -> None:
        engine = Engine(find_socket(self._socket))
        try:
            await engine.identify()
            self._inside = await asyncio.to_thread(build_inside, self._cache)
            await asyncio.to_thread(self._make_root)
            for sandbox_id in await reap(engine, self.root):
                logger.info("removed sandbox %s of a dead owner", sandbox_id)
        except BaseException:
            await engine.close()
            raise
        self._engine = engine
        self._images = Images(engine, progress=self._progress, auth=self._auth, timeout_s=self._pull_timeout_s)

    def _make_root(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.root, self.root.parent) if self.root == default_root() else (self.root,):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                raise ConfigError(
                    f"The sandbox folder {folder} belongs to somebody else.", fix="Pass another root to DockerBackend."
                )
            folder.chmod(0o700)

    async def _start(self, engine: Engine, image: Image, spec: SandboxSpec) -> DockerSandbox:
        label = new_label(new_id(), time.time() + spec.limits.ttl_s, dict(spec.labels))
        folder = self.root / label.id
        self._make_root()  # another backend of this user may have closed and taken the empty root away
        folder.mkdir(mode=0o700)
        door: ControlDoor | None = None
        broker: GatewayBroker | None = None
        channel: Channel | None = None
        try:
            write_label(folder, label)
            make_folder(folder / "control")
            door = ControlDoor(folder / "control")
            if spec.network == "gateway":
                assert spec.gateway_socket is not None
                broker = GatewayBroker(folder / "control", spec.gateway_socket)
            container, names = await self._make_container(engine, image, spec, label, folder)
            channel, pid = await self._meet(engine, container, door)
            await self._go(channel, pid, spec)
        except BaseException as error:
            await _steadily(self._undo(engine, label.id, folder, channel, broker))
            if isinstance(error, SandboxGone | TimeoutError | OSError):
                raise SandboxStartError(f"A container did not become a sandbox: {error}.") from error
            raise
        finally:
            if door is not None:
                door.close()
        sandbox = DockerSandbox(
            label.id,
            spec,
            engine=engine,
            container=container,
            image=image,
            folder=folder,
            channel=channel,
            broker=broker,
            usage=Usage(pid),
            relay_port=self._relay_port,
            environment=_environment(image, names),
            keep=self._keep,
            on_closed=self._closed,
        )
        self._open.add(sandbox)
        return sandbox

    async def _make_container(
        self, engine: Engine, image: Image, spec: SandboxSpec, label: Label, folder: Path
    ) -> tuple[str, Accounts]:
        """Create, fill and start the container; its id and the accounts in it."""
        assert self._inside is not None
        config = container_config(
            spec,
            image=image.id,
            user=self._user,
            inside=self._inside,
            control=folder / "control",
            labels=make_labels(SANDBOX, label, self.root),
        )
        container = await _steadily(engine.create(label.id, config))
        names = _ACCOUNTS.get((image.id, self._user))
        if names is None:
            passwd, group = [await engine.get(label.id, path) or b"" for path in ("/etc/passwd", "/etc/group")]
            names = _ACCOUNTS[image.id, self._user] = accounts(passwd, group, self._user)
        kept = kept_overlays(image.labels) if spec.snapshot is not None else frozenset()
        seed = await asyncio.to_thread(build_seed, spec, self._user, names, kept)
        await engine.put(label.id, seed)
        await _steadily(engine.start(label.id))
        return container, names

    async def _meet(self, engine: Engine, container: str, door: ControlDoor) -> tuple[Channel, int]:
        """PID 1's connection and its pid on this host."""

        async def first_pid() -> int:
            found = await engine.inspect(container)
            return int(found["State"].get("Pid") or 0) if found is not None else 0

        channel = Channel(await door.accept(container, first_pid, START_TIMEOUT_S))
        try:
            pid = await channel.expect("hello", START_TIMEOUT_S)
        except BaseException:
            channel.fail("it did not start")
            raise
        return channel, pid

    async def _go(self, channel: Channel, pid: int, spec: SandboxSpec) -> None:
        # Where we may: never PID 1 for want of memory. Commands put themselves back in reach.
        try:
            Path(f"/proc/{pid}/oom_score_adj").write_text("-1000")
            shielded = True
        except OSError:
            shielded = False
        relay = (self._relay_port, f"broker:{CONTROL}/{BROKER_SOCKET}".encode()) if spec.network == "gateway" else None
        rlimits = [(resource.RLIMIT_CORE, 0)]  # the others are the container's own
        config = {"ttl_s": spec.limits.ttl_s, "rlimits": rlimits, "relay": relay, "shielded": shielded}
        channel.send(("go", config))
        await channel.expect("ready", START_TIMEOUT_S)
        self._note_missing_limits(spec.limits)

    def _note_missing_limits(self, limits: Limits) -> None:
        """Say once which limits do not hold."""
        missing = [*(self._engine.missing_limits if self._engine is not None else ())]
        if limits.disk_bytes is not None:
            missing.append("disk")
        if fresh := [name for name in missing if name not in self._warned]:
            self._warned.update(fresh)
            logger.warning("containers here do not enforce the %s limit of sandboxes", " and ".join(fresh))

    async def _undo(
        self, engine: Engine, name: str, folder: Path, channel: Channel | None, broker: GatewayBroker | None
    ) -> None:
        if channel is not None:
            channel.fail("it did not start")
        if broker is not None:
            await broker.close()
        try:
            await engine.remove(name)
        except SandboxError as error:
            logger.warning("could not remove the container %s, which the reaper does later: %s", name, error)
            return
        await asyncio.to_thread(remove_tree, folder)

    async def _keep(self, sandbox: DockerSandbox) -> Snapshot:
        engine = await self._connect()
        label = new_label(new_id(), 0.0, {})
        changes = as_changes(make_labels(SNAPSHOT, label, self.root, sandbox.overlays))
        reference = f"{_SNAPSHOTS}:{label.id}"
        try:
            await _steadily(engine.commit(sandbox.id, _SNAPSHOTS, label.id, changes, _COMMIT_TIMEOUT_S))
        except BaseException:
            await _steadily(engine.remove_image(reference))
            raise
        return Snapshot(self.name, reference)

    async def drop(self, snapshot: Snapshot) -> None:
        """Remove a snapshot; what still uses it keeps its files, and they go with the last user.

        Raises:
            SandboxUnsupported: it belongs to another backend.
            SandboxError: the engine failed.
        """
        if snapshot.backend != self.name:
            raise SandboxUnsupported(f"The docker backend cannot drop a snapshot of {snapshot.backend!r}.")
        if not _REFERENCE.fullmatch(snapshot.ref):
            return
        engine = await self._connect()
        image = await engine.image(snapshot.ref)
        if image is not None:
            await engine.remove_image(snapshot.ref)
            self._to_drop.add(str(image["Id"]))
        await self._drop_rest(engine)

    async def _drop_rest(self, engine: Engine) -> None:
        """Remove dropped snapshots that nothing uses any more; one made from another before that one."""
        async with self._dropping:
            progress = True
            while progress:
                gone = [image for image in list(self._to_drop) if await engine.remove_image(image)]
                self._to_drop.difference_update(gone)
                progress = bool(gone)

    async def _closed(self, sandbox: DockerSandbox) -> None:
        self._open.discard(sandbox)
        if self._to_drop and self._engine is not None:
            await self._drop_rest(self._engine)

    async def reap(self) -> list[str]:
        """Remove containers, folders and snapshots below ``root`` of dead owners and past deadlines; their ids.

        Raises:
            MissingDependency: there is no engine.
            SandboxError: the engine failed.
        """
        return await reap(await self._connect(), self.root)

    async def aclose(self) -> None:
        """Close every sandbox this backend still owns, and the connections to the engine; idempotent.

        Raises:
            SandboxError: a container could not be removed; the reaper does it later.
        """
        results: list[BaseException | None] = []
        while self._creating or self._open:
            results += await asyncio.gather(*(box.close() for box in list(self._open)), return_exceptions=True)
            self._open -= {box for box in self._open if box.failed_to_close}
            if self._creating:
                await asyncio.sleep(0.01)
        if self._prepared is not None:
            await asyncio.wait([self._prepared])
            self._prepared = None
        if self._images is not None:
            await self._images.close()
        if self._engine is not None:
            await self._engine.close()
            self._engine = None
        for folder in (self.root, self.root.parent) if self.root == default_root() else ():
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone already
                break
        for result in results:
            if isinstance(result, BaseException):
                raise result


def _failed(task: asyncio.Task[None]) -> bool:
    return task.cancelled() or task.exception() is not None


def _default_user() -> str:
    return f"{os.getuid()}:{os.getgid()}" if os.getuid() else "1000:1000"


def _environment(image: Image, names: Accounts) -> dict[str, str]:
    return {"PATH": _PATH, "LANG": "C.UTF-8", **image.env, "HOME": HOME, "TMPDIR": "/tmp", "USER": names.name}


async def _steadily(work: Coroutine[Any, Any, T]) -> T:
    """Await to the end even when the caller is cancelled: what a half-made request leaves on the engine is unknown."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise
