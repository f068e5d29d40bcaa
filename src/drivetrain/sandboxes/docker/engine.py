"""The Engine API of Docker or Podman over its Unix socket: every call has a deadline and fails with a typed error."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.sandboxes.protocol import SandboxError, SandboxTimeout

CALL_TIMEOUT_S = 60.0
_SCHEME = "unix://"


class EngineError(SandboxError):
    """The engine refused or failed; ``status`` is its HTTP status (900: it could not be reached)."""

    def __init__(self, what: str, *, status: int, said: str = "", fix: str = "") -> None:
        super().__init__(what, fix=fix)
        self.status = status
        self.said = said


def find_socket(socket: Path | str | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """The engine's socket: the given one, else that of DOCKER_HOST or CONTAINER_HOST, else the first that exists.

    Looked for, in this order: Docker's, rootless Docker's, rootless Podman's, Podman's.

    Raises:
        ConfigError: a variable names something else than a Unix socket.
        MissingDependency: there is none.
    """
    environ = os.environ if environ is None else environ
    if socket is not None:
        return Path(str(socket).removeprefix(_SCHEME))
    for variable in ("DOCKER_HOST", "CONTAINER_HOST"):
        if address := environ.get(variable):
            if not address.startswith(_SCHEME):
                raise ConfigError(
                    f"{variable} is {address!r}, and sandboxes need an engine on this machine: they share Unix sockets "
                    "with it.",
                    fix=f"Set {variable}=unix:///path/to/docker.sock, or unset it.",
                )
            return Path(address.removeprefix(_SCHEME))
    run = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    looked = [
        *("/run/docker.sock", "/var/run/docker.sock", f"{run}/docker.sock"),
        *(f"{run}/podman/podman.sock", "/run/podman/podman.sock"),
    ]
    for path in looked:
        try:
            if Path(path).is_socket():
                return Path(path)
        except OSError:  # a folder of somebody else
            continue
    raise MissingDependency(
        f"No container engine found: there is no socket at {', '.join(looked)}.",
        fix="Start Docker (`systemctl start docker`) or Podman (`systemctl --user start podman.socket`), or set "
        "DOCKER_HOST=unix:///path/to/socket.",
    )


class Engine:
    """A connection pool to one engine; bound to the running loop."""

    def __init__(self, socket: Path) -> None:
        try:
            import aiodocker
        except ImportError as error:
            raise MissingDependency(
                "The docker sandbox backend needs aiodocker.", fix="Install it: pip install 'drivetrain[docker]'."
            ) from error
        self.socket = socket
        self._error = aiodocker.DockerError
        # Long paths and closed folders fail in connect(), with an error that _explain() puts in words.
        self._docker = aiodocker.Docker(url=f"{_SCHEME}{socket}")
        self.name = "Docker"
        self.rootless = False
        self.missing_limits: list[str] = []

    async def close(self) -> None:
        """Close the connections; idempotent."""
        await self._docker.close()

    async def identify(self) -> None:
        """Learn which engine this is, that it answers, and which limits it cannot enforce."""
        version = await self._call("ask for its version", self._docker.version())
        components = " ".join(str(part.get("Name", "")) for part in version.get("Components") or [])
        self.name = "Podman" if "podman" in components.lower() else "Docker"
        info = await self._call("ask for its settings", self._docker.system.info())
        known = {"MemoryLimit": "memory", "PidsLimit": "process", "CpuCfsQuota": "processor"}
        self.missing_limits = [name for field, name in known.items() if info.get(field) is False]
        self.rootless = any("rootless" in str(option) for option in info.get("SecurityOptions") or [])

    async def image(self, reference: str) -> dict[str, Any] | None:
        """What the engine knows about an image; None when it does not have it."""
        try:
            return dict(await self._call(f"look for image {reference}", self._docker.images.inspect(reference)))
        except EngineError as error:
            if error.status == 404:
                return None
            raise

    async def pull(
        self, reference: str, auth: Mapping[str, str] | None, timeout_s: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Progress messages of a pull until it has ended."""
        try:
            async with asyncio.timeout(timeout_s):
                async for message in self._docker.images.pull(
                    reference, auth=dict(auth) if auth is not None else None, stream=True, timeout=None
                ):
                    yield message
        except (TimeoutError, OSError, self._error) as error:
            raise self._explain(f"pull {reference}", error, timeout_s) from error

    async def create(self, name: str, config: dict[str, Any]) -> str:
        """Create a container; its id."""
        made = await self._call("create a container", self._docker.containers.create(config, name=name))
        return str(made.id)

    async def start(self, name: str) -> None:
        """Start a container."""
        await self._call("start a container", self._docker.containers.container(name).start())

    async def inspect(self, name: str) -> dict[str, Any] | None:
        """A container's state; None when there is none."""
        try:
            return dict(await self._call("look at a container", self._docker.containers.container(name).show()))
        except EngineError as error:
            if error.status == 404:
                return None
            raise

    async def remove(self, name: str, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Kill and remove a container with its anonymous volumes and wait until it is gone; missing is fine."""
        container = self._docker.containers.container(name)
        until = asyncio.get_running_loop().time() + timeout_s
        delay = 0.005
        while True:
            try:
                await self._call("remove a container", container.delete(force=True, v=True), timeout_s)
            except EngineError as error:
                if error.status == 404:
                    return
                # It is being removed already, or the kernel has not let go of its file system yet.
                if error.status != 409 and "removal" not in error.said and "busy" not in error.said:
                    raise
            else:
                return
            if asyncio.get_running_loop().time() > until:
                raise SandboxTimeout(f"{self.name} did not remove the container {name} within {timeout_s:g} s.")
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.2)

    async def containers(self, label: str) -> list[dict[str, Any]]:
        """Every container, running or not, that has this label (``name`` or ``name=value``)."""
        filters = json.dumps({"label": [label]})
        found = await self._call("list containers", self._docker.containers.list(all="true", filters=filters))
        return [{"Id": each.id, "Labels": each["Labels"]} for each in found]

    async def images(self, label: str) -> list[dict[str, Any]]:
        """Every image that has this label."""
        filters = {"label": [label]}
        return list(await self._call("list images", self._docker.images.list(filters=filters)))

    async def put(self, name: str, tar: bytes, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Unpack a tar at the root of a container, owners and modes as in the tar."""
        container = self._docker.containers.container(name)
        await self._call("write files into a container", container.put_archive("/", tar), timeout_s)  # type: ignore[no-untyped-call]

    async def get(self, name: str, path: str) -> bytes | None:
        """Content of one regular file of a container; None when there is none."""
        container = self._docker.containers.container(name)
        try:
            tar = await self._call("read a file of a container", container.get_archive(path))
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        member = tar.next()
        file = tar.extractfile(member) if member is not None and member.isfile() else None
        return bytes(file.read()) if file is not None else None

    async def commit(self, name: str, repository: str, tag: str, labels: Sequence[str], timeout_s: float) -> str:
        """Make an image of a container's files; its id."""
        container = self._docker.containers.container(name)
        done = await self._call(
            "keep a container's files",
            container.commit(repository=repository, tag=tag, changes=labels, pause=True, timeout=None),
            timeout_s,
        )
        return str(done["Id"])

    async def remove_image(self, reference: str) -> bool:
        """Remove an image; missing is fine. False when something still uses it."""
        try:
            await self._call("remove an image", self._docker.images.delete(reference, force=True))
        except EngineError as error:
            if error.status == 409:
                return False
            if error.status != 404:
                raise
        return True

    async def _call(self, what: str, call: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except (TimeoutError, OSError, self._error) as error:
            raise self._explain(what, error, timeout_s) from error

    def _explain(self, what: str, error: Exception, timeout_s: float) -> SandboxError:
        if isinstance(error, TimeoutError):
            return SandboxTimeout(
                f"{self.name} at {self.socket} did not {what} within {timeout_s:g} s.", fix="Look at the engine's log."
            )
        status = int(getattr(error, "status", 0) or 900)
        said = one_line(str(getattr(error, "message", None) or error))
        if status == 900:
            return EngineError(
                f"Cannot {what}: the engine at {self.socket} cannot be reached ({said}).",
                status=status,
                said=said,
                fix=self._why_unreachable(said),
            )
        fix = ""
        if status == 401 or status == 403:
            fix = "Check who may use the engine or the registry."
        elif self.rootless and ("cgroup" in said or "rlimit" in said or "permission" in said):
            fix = "A rootless engine needs delegated control groups (systemd, cgroup v2) for these limits."
        return EngineError(f"{self.name} could not {what}: {said}.", status=status, said=said, fix=fix)

    def _why_unreachable(self, said: str) -> str:
        if "ermission denied" in said:
            return (
                f"Give this user the right to it: `usermod -aG docker $USER` and log in again, or chmod {self.socket}."
            )
        if not self.socket.exists():
            return "Start the engine, or set DOCKER_HOST=unix:///path/to/its/socket."
        return "Start the engine (`systemctl start docker`), or remove the stale socket."


def one_line(text: str) -> str:
    """An engine's message without line breaks and trailing full stop."""
    return re.sub(r"\s+", " ", text).strip().rstrip(".")[:2000]
