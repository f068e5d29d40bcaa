"""Bind the surfaces: loopback TCP and a Unix socket for harnesses, loopback TCP for the admin."""

from __future__ import annotations

import errno
import ipaddress
from pathlib import Path

from aiohttp import web

from drivetrain.errors import ConfigError
from drivetrain.gateway.admin import admin_app
from drivetrain.gateway.app import CONNECTIONS, harness_app
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.keys import AdminKeys
from drivetrain.gateway.patience import Patience


class GatewayServer:
    """Serves a gateway until it is closed.

    Nothing is bound until a ``listen`` method is called. The admin surface is a separate application on a separate
    address, so that a sandbox that reaches the harness surface never reaches it (case row D13).
    """

    def __init__(self, gateway: Gateway, *, patience: Patience | None = None) -> None:
        self.gateway = gateway
        self._harness = web.AppRunner(
            harness_app(gateway, patience=patience), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
        )
        self._admin: web.AppRunner | None = None
        self._started = False

    async def listen_tcp(self, port: int, host: str = "127.0.0.1") -> int:
        """Serve harnesses on a loopback address; port 0 picks a free one. Returns the port.

        Raises:
            ConfigError: the address is public, or the port is in use.
        """
        await self._setup()
        return await _bind(self._harness, host, port)

    async def listen_unix(self, path: Path) -> None:
        """Serve harnesses on a Unix socket that sandboxes mount.

        A stale socket file is replaced. The socket is open to every local user who can reach its folder (the user
        inside a sandbox is another one): keep the folder private; the key is what is checked.

        Raises:
            ConfigError: the path is too long for a socket.
        """
        await self._setup()
        if len(str(path).encode()) > 100:
            raise ConfigError(f"the socket path {path} is too long.", fix="Use a shorter folder, e.g. under /tmp.")
        path.unlink(missing_ok=True)
        await web.UnixSite(self._harness, path).start()
        path.chmod(0o666)

    async def listen_admin(self, port: int, admin_key: str, host: str = "127.0.0.1") -> int:
        """Serve the admin surface under its own key. Returns the port.

        Raises:
            ConfigError: the address is public, the port is in use, or the key is shorter than 16 characters.
        """
        keys = AdminKeys(admin_key)
        self._admin = web.AppRunner(
            admin_app(self.gateway, keys), access_log=None, shutdown_timeout=1.0
        )
        await self._admin.setup()
        return await _bind(self._admin, host, port)

    async def aclose(self) -> None:
        """Stop listening, cancel running calls, close the journal; idempotent."""
        if self._admin is not None:
            await self._admin.cleanup()
            self._admin = None
        if self._started:
            await self._harness.cleanup()
            self._started = False
        await self.gateway.aclose()

    async def _setup(self) -> None:
        if not self._started:
            await self._harness.setup()
            assert self._harness.server is not None
            self._harness.app[CONNECTIONS].watch(self._harness.server)
            self._started = True


async def _bind(runner: web.AppRunner, host: str, port: int) -> int:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(
            f"refusing to listen on {host}: only loopback addresses are served without TLS.",
            fix="Use 127.0.0.1 and a tunnel or a TLS proxy of your own.",
        )
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ConfigError(f"cannot listen on {host}:{port}: {error}.") from error
        raise ConfigError(
            f"port {port} on {host} is in use.", fix="Choose another port, or 0 for any free one."
        ) from error
    return int(runner.addresses[-1][1])
