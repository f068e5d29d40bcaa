"""The weight-sync gate as a trainer reaches it: in its own process, or in the process that runs the agents.

TRL's ``HarnessRolloutWorker`` runs sessions, and so our gateway, in a spawned child, while weights are sent by the
parent (trl.md section 6). The child serves its fence on a Unix socket in a private folder that both know; the folder's
mode (0700) is what keeps others out, and no sandbox ever mounts it.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web

from drivetrain.engines.fingerprint import Fingerprint
from drivetrain.engines.protocol import Engine, EngineError, VersionSettable
from drivetrain.errors import ConfigError
from drivetrain.gateway.admin_fence import fence_routes
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.fence_threads import ThreadFence
from drivetrain.gateway.fence_types import FenceTimeout, OnDeadline, PauseMode

OWNER = "trainer"
_GRACE_S = 60.0
"""How much longer than a pause's own deadline its answer may take."""


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """How a pause treats calls in flight (:meth:`drivetrain.gateway.fence.Fence.pause`).

    The default waits for them and lets the engine hold what is left: an agent never sees an error (case row E3).
    """

    mode: PauseMode = "drain"
    deadline_s: float = 60.0
    on_deadline: OnDeadline = "hold"


class Gate(Protocol):
    """What :class:`drivetrain.training.fenced.FencedWeights` asks of a gate. Blocking; errors are the fence's."""

    def pause(self, how: Drain) -> bool:
        """Close the gate; when this returns, no engine step runs. Whether the engine holds calls for that."""

    def resume(self, policy_version: int, fingerprint: Fingerprint | None = None) -> None:
        """Reset the engine's prefix cache, set the version, check the servers' weights and open the gate."""

    def advance(self, policy_version: int) -> None:
        """The version of calls from now on, without closing: for adapters that go on under their own names."""


class LocalGate:
    """The gate of a gateway in this process.

    Args:
        gateway: whose fence it is.
        loop: the event loop that serves it, in another thread.
    """

    def __init__(self, gateway: Gateway, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = gateway.engine
        self._loop = loop
        self._fence = ThreadFence(gateway.fence, loop)

    def pause(self, how: Drain) -> bool:
        """See :class:`Gate`."""
        status = self._fence.pause(how.mode, deadline_s=how.deadline_s, on_deadline=how.on_deadline, owner=OWNER)
        return status.held

    def resume(self, policy_version: int, fingerprint: Fingerprint | None = None) -> None:
        """See :class:`Gate`."""
        self._fence.resume(policy_version, fingerprint=fingerprint, owner=OWNER)

    def advance(self, policy_version: int) -> None:
        """See :class:`Gate`."""
        asyncio.run_coroutine_threadsafe(set_version(self._engine, policy_version), self._loop).result()


class SocketGate:
    """The gate of a gateway in a child process. Before there is one, only the version is kept, for it to begin with.

    Args:
        folder: private to this user; the child serves :func:`serve_gate` with the same one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pause(self, how: Drain) -> bool:
        """See :class:`Gate`."""
        if not self._served():
            return False
        body = {"owner": OWNER, **msgspec.to_builtins(how)}
        return bool(self._post("/admin/pause", body, timeout_s=how.deadline_s + _GRACE_S)["held"])

    def resume(self, policy_version: int, fingerprint: Fingerprint | None = None) -> None:
        """See :class:`Gate`."""
        self._keep(policy_version)
        if self._served():
            body = {"owner": OWNER, "policy_version": policy_version, "fingerprint": fingerprint}
            self._post("/admin/resume", body, timeout_s=_GRACE_S)

    def advance(self, policy_version: int) -> None:
        """See :class:`Gate`."""
        self._keep(policy_version)
        if self._served():
            self._post("/gate/version", {"policy_version": policy_version}, timeout_s=_GRACE_S)

    def _served(self) -> bool:
        return _socket(self._folder).exists()

    def _keep(self, policy_version: int) -> None:
        _version_file(self._folder).write_text(str(policy_version), encoding="ascii")

    def _post(self, path: str, body: Any, *, timeout_s: float) -> dict[str, Any]:
        connection = _UnixConnection(_socket(self._folder), timeout_s)
        try:
            connection.request("POST", path, msgspec.json.encode(body))
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"the gate in {self._folder} does not answer ({error}).") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise _refused(answer.status, text)
        return msgspec.json.decode(text, type=dict[str, Any])


async def serve_gate(gateway: Gateway, folder: Path) -> web.AppRunner:
    """Serve a gateway's fence to :class:`SocketGate`; clean the runner up to end it.

    Raises:
        ConfigError: others can reach the folder, or its path is too long for a socket.
    """
    if folder.stat().st_mode & 0o077:
        raise ConfigError(f"{folder} is open to others.", fix="chmod 700, or take a folder of tempfile.mkdtemp().")
    path = _socket(folder)
    if len(str(path).encode()) > 100:
        raise ConfigError(f"the socket path {path} is too long.", fix="Use a shorter folder, e.g. under /tmp.")
    path.unlink(missing_ok=True)

    async def version(request: web.Request) -> web.Response:
        try:
            await set_version(gateway.engine, int(msgspec.json.decode(await request.read())["policy_version"]))
        except (ConfigError, EngineError) as error:
            detail = {"type": "config_error" if isinstance(error, ConfigError) else "engine_failed"}
            return web.json_response({"error": {**detail, "message": str(error)}}, status=400)
        return web.json_response({})

    app = web.Application()
    app.add_routes([*fence_routes(gateway), web.post("/gate/version", version)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.UnixSite(runner, path).start()
    path.chmod(0o600)
    return runner


async def set_version(engine: Engine, policy_version: int) -> None:
    """Tell an engine its policy version, where it does not count by itself.

    Raises:
        ConfigError: the engine serves another one and cannot be told.
    """
    if engine.policy_version != policy_version and isinstance(engine, VersionSettable):
        await engine.set_policy_version(policy_version)
    if engine.policy_version != policy_version:
        raise ConfigError(f"engine {engine.name} serves policy version {engine.policy_version}, not {policy_version}.")


def kept_version(folder: Path) -> int | None:
    """The version that a :class:`SocketGate` was told before anybody served; None when it was told none."""
    with suppress(FileNotFoundError):
        return int(_version_file(folder).read_text(encoding="ascii"))
    return None


def _socket(folder: Path) -> Path:
    return folder / "gate.sock"


def _version_file(folder: Path) -> Path:
    return folder / "version"


def _refused(status: int, text: bytes) -> Exception:
    try:
        detail: dict[str, Any] = msgspec.json.decode(text)["error"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return EngineError(f"the gate answered {status}: {text[:200]!r}.")
    if detail["type"] == "fence_timeout":
        return FenceTimeout(int(detail["in_flight"]), 0.0)
    message = str(detail["message"])
    return ConfigError(message) if detail["type"] in ("config_error", "fence_busy") else EngineError(message)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
