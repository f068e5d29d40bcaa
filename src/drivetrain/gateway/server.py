"""Bind the surfaces: TCP and a Unix socket for harnesses, another TCP port for the admin."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from drivetrain.errors import ConfigError
from drivetrain.gateway.admin import AdminPart, admin_app
from drivetrain.gateway.admission import Admission
from drivetrain.gateway.app import CONNECTIONS, harness_app
from drivetrain.gateway.bind import Tls, bind, check_address
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.keys import AdminKeys
from drivetrain.gateway.openapi.part import openapi_part
from drivetrain.gateway.patience import Patience
from drivetrain.gateway.redact import guarded_logger
from drivetrain.gateway.respond import SESSION
from drivetrain.gateway.unexpected import leave_out_client_faults

_log = guarded_logger("drivetrain.gateway.http")
leave_out_client_faults(_log)


class GatewayServer:
    """Serves a gateway until it is closed.

    Nothing is bound until a ``listen`` method is called. The admin surface is a separate application on a separate
    address, so that a sandbox that reaches the harness surface never reaches it (case row D13). Addresses other
    machines reach are served under TLS only; ``allow_public`` overrides that, for a proxy that speaks TLS in front.
    """

    def __init__(self, gateway: Gateway, *, patience: Patience | None = None) -> None:
        self.gateway = gateway
        app = harness_app(gateway, patience=patience)
        app.middlewares.insert(0, _without_trace)
        app.middlewares.append(_admitted(gateway.admission))  # the key was checked, the body is not read yet
        self._harness = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=1.0,
            logger=_log,
        )
        self._admin: web.AppRunner | None = None
        self._started = False

    async def listen_tcp(
        self, port: int, host: str = "127.0.0.1", *, tls: Tls | None = None, allow_public: bool = False
    ) -> int:
        """Serve harnesses; port 0 picks a free one. Returns the port.

        Raises:
            ConfigError: see :func:`~drivetrain.gateway.bind.check_address` and :func:`~drivetrain.gateway.bind.bind`.
        """
        check_address(host, tls=tls, allow_public=allow_public)
        await self._setup()
        return await bind(self._harness, host, port, tls)

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

    async def listen_admin(
        self,
        port: int,
        admin_key: str,
        host: str = "127.0.0.1",
        *,
        trainer_key: str = "",
        parts: Iterable[AdminPart] = (),
        tls: Tls | None = None,
        allow_public: bool = False,
    ) -> int:
        """Serve the admin surface, and the ``parts`` that share it, under its own keys. Returns the port.

        Raises:
            ConfigError: it is served already, or see :class:`~drivetrain.gateway.keys.AdminKeys`,
                :func:`~drivetrain.gateway.bind.check_address` and :func:`~drivetrain.gateway.bind.bind`.
        """
        if self._admin is not None:
            raise ConfigError("the admin surface is served already.", fix="Call listen_admin once.")
        keys = AdminKeys(admin_key, trainer_key)
        check_address(host, tls=tls, allow_public=allow_public, keys=keys)
        parts = tuple(parts)
        app = admin_app(self.gateway, keys, (*parts, openapi_part(parts)))
        admin = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, logger=_log)
        await admin.setup()
        try:
            bound = await bind(admin, host, port, tls)
        except BaseException:
            await admin.cleanup()
            raise
        self._admin = admin
        return bound

    async def drain(self, deadline_s: float) -> int:
        """Refuse new requests of harnesses (503, Retry-After) and let those that are being served finish; returns how
        many have not by the deadline. The admin surface goes on. Call :meth:`aclose` next."""
        return await self.gateway.admission.drain(deadline_s)

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


@web.middleware
async def _without_trace(request: web.Request, handler: Handler) -> web.StreamResponse:
    """An idle connection keeps its last request: not the session with it, which may have ended."""
    response = await handler(request)
    if SESSION in request:
        del request[SESSION]
    return response


def _admitted(admission: Admission) -> Middleware:
    @web.middleware
    async def admitted(request: web.Request, handler: Handler) -> web.StreamResponse:
        length = request.content_length
        if length is None:
            length = request[SESSION].policy.max_body_bytes if request.can_read_body else 0
        async with admission.admit(length):
            return await handler(request)

    return admitted
