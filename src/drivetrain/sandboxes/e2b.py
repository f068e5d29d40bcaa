"""``E2BBackend``: sandboxes at E2B, through its official SDK (extra ``e2b``)."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.sandboxes.protocol import (
    Feature,
    Reach,
    SandboxError,
    SandboxGone,
    SandboxSpec,
    SandboxUnsupported,
)
from drivetrain.sandboxes.remote.backend import Box, RemoteBackend
from drivetrain.sandboxes.remote.labels import KEY_ID
from drivetrain.sandboxes.remote.times import CALL_S, TRANSFER_CALL_S
from drivetrain.sandboxes.remote.transport import Busy, LinkLost, Reply, Transport

if TYPE_CHECKING:
    import e2b

DEFAULT_RELAY_PORT = 8399
DEFAULT_DIAL_PORT = 8398
ROOT = "root"
_RETRIED_STATUS = (500, 502, 504)


def _sdk() -> Any:
    try:
        import e2b
    except ImportError as error:
        raise MissingDependency(
            "The e2b backend needs E2B's SDK.", fix="Install it: pip install 'drivetrain[e2b]'."
        ) from error
    return e2b


@contextlib.asynccontextmanager
async def _translated(what: str) -> AsyncIterator[None]:
    """The SDK's exceptions as ours."""
    sdk = _sdk()
    import httpx
    from connectrpc.errors import ConnectError

    try:
        yield
    except (sdk.RateLimitException, sdk.ServiceBusyException) as error:
        raise Busy(f"E2B could not {what}: {error}.") from error
    except (sdk.SandboxNotRunningException, sdk.SandboxNotFoundException) as error:
        raise SandboxGone(f"The sandbox is gone: E2B no longer runs it ({what}).") from error
    except sdk.FileNotFoundException as error:
        raise FileNotFoundError(str(error)) from error
    except sdk.AuthenticationException as error:
        raise ConfigError(f"E2B could not {what}: {error}.", fix="Set E2B_API_KEY to a valid key.") from error
    except sdk.TimeoutException as error:  # also: unreachable, cut off by a proxy
        raise LinkLost(f"E2B could not {what}: {error}.") from error
    except sdk.SandboxException as error:
        if getattr(error, "status_code", None) in _RETRIED_STATUS:
            raise LinkLost(f"E2B could not {what}: {error}.") from error
        raise SandboxError(f"E2B could not {what}: {error}.") from error
    except (httpx.TransportError, ConnectError, OSError, json.JSONDecodeError) as error:
        # The last: a proxy's page of text, where the SDK expects its API's errors.
        raise LinkLost(f"E2B could not {what}: {error!r}.") from error
    except Exception as error:
        # The SDK says so, with no class of its own, when a stream ends in the middle.
        if type(error) is Exception:
            raise LinkLost(f"E2B could not {what}: {error}.") from error
        raise


class E2BTransport:
    """Implements ``Transport`` with one ``e2b.AsyncSandbox``; everything as root, which E2B's templates allow."""

    def __init__(self, box: e2b.AsyncSandbox) -> None:
        self._box = box

    @property
    def id(self) -> str:
        """E2B's id of the sandbox."""
        return self._box.sandbox_id

    async def run(self, argv: list[str], *, timeout_s: float) -> Reply:
        """Through envd's process service; a failing command is no error."""
        sdk = _sdk()
        async with _translated("run a command"):
            try:
                done = await self._box.commands.run(
                    shlex.join(argv), user=ROOT, cwd="/", timeout=timeout_s, request_timeout=timeout_s
                )
            except sdk.CommandExitException as error:
                return Reply(error.exit_code, error.stdout, error.stderr)
            return Reply(done.exit_code, done.stdout, done.stderr)

    async def put(self, path: str, data: bytes) -> None:
        """Through envd's file service."""
        async with _translated(f"write {path}"):
            await self._box.files.write(path, data, user=ROOT, request_timeout=TRANSFER_CALL_S)

    async def get(self, path: str) -> bytes:
        """Through envd's file service."""
        async with _translated(f"read {path}"):
            return bytes(await self._box.files.read(path, format="bytes", user=ROOT, request_timeout=TRANSFER_CALL_S))

    async def reach(self, port: int) -> Reach:
        """E2B's proxy; the token lets nobody else in."""
        config = self._box.connection_config
        url = config.get_sandbox_direct_url(self._box.sandbox_id, self._box.sandbox_domain, port)
        headers = {"E2b-Sandbox-Id": self._box.sandbox_id, "E2b-Sandbox-Port": str(port)}
        if self._box.traffic_access_token:
            headers["e2b-traffic-access-token"] = self._box.traffic_access_token
        return Reach(url.rstrip("/"), headers)

    async def renew(self, lifetime_s: int) -> None:
        """Set the sandbox's timeout."""
        async with _translated("extend the time-out"):
            await self._box.set_timeout(lifetime_s)

    async def snapshot(self) -> str:
        """A snapshot of the disk only: a sandbox made from it boots afresh.

        Raises:
            SandboxUnsupported: the account or the machine has no snapshots of this kind.
        """
        sdk = _sdk()
        async with _translated("take a snapshot"):
            try:
                taken = await self._box.create_snapshot(mode="filesystem", request_timeout=TRANSFER_CALL_S)
            except sdk.SandboxException as error:
                if getattr(error, "status_code", None) in (400, 409):
                    raise SandboxUnsupported(
                        f"E2B refuses a snapshot of the disk: {error}.", fix="Ask E2B to enable it for your team."
                    ) from error
                raise
        ref: str = taken.snapshot_id
        return ref

    async def kill(self) -> None:
        """End the sandbox."""
        async with _translated("end a sandbox"):
            await self._box.kill()


class E2BBackend(RemoteBackend):
    """Implements ``SandboxBackend`` at E2B. ``spec.image`` is a template's name or id.

    A template needs bash and python3 3.9+; commands run as its user of uid 1000. ``none`` and ``gateway`` close the
    sandbox's way to the internet at E2B's side; the gateway is reached through a connection dialled from here.

    Args:
        template: for specs without an image; None is E2B's default.
        relay_port: TCP port inside at which a ``network="gateway"`` sandbox finds the gateway.
        dial_port: TCP port inside that is dialled from here.
        scope: ``reap`` leaves sandboxes of another scope alone (two runs of one user that share an account).
        options: connection options of the SDK (``api_key``, ``domain``, ``api_url``, ``sandbox_url``, ...); what is not
            given comes from its environment variables (``E2B_API_KEY``, ``E2B_DOMAIN``, ...).
    """

    name = "e2b"
    features: frozenset[Feature] = frozenset(
        {"image", "mount", "overlay", "network_policy", "pids_limit", "reach", "snapshot"}
    )

    def __init__(
        self,
        *,
        template: str | None = None,
        relay_port: int = DEFAULT_RELAY_PORT,
        dial_port: int = DEFAULT_DIAL_PORT,
        scope: str = "",
        **options: Any,
    ) -> None:
        super().__init__(relay_port=relay_port, dial_port=dial_port, scope=scope)
        self._template = template
        self._options = {"request_timeout": CALL_S, **options}

    async def _new_box(self, spec: SandboxSpec, metadata: dict[str, str], lifetime_s: int) -> Transport:
        template = spec.snapshot.ref if spec.snapshot is not None else spec.image or self._template
        async with _translated("create a sandbox"):
            box = await _sdk().AsyncSandbox.create(
                template,
                timeout=lifetime_s,
                metadata=metadata,
                allow_internet_access=spec.network == "open",
                network={"allow_public_traffic": False},
                idempotency_key=metadata[KEY_ID],
                **self._options,
            )
        return E2BTransport(box)

    async def _adopt(self, box_id: str) -> Transport:
        async with _translated("connect to a sandbox"):
            return E2BTransport(await _sdk().AsyncSandbox.connect(box_id, **self._options))

    async def _find(self, metadata: dict[str, str]) -> list[Box]:
        sdk = _sdk()
        found = []
        async with _translated("list sandboxes"):
            pages = sdk.AsyncSandbox.list(sdk.SandboxQuery(metadata=metadata), **self._options)
            while pages.has_next:
                found += [Box(each.sandbox_id, dict(each.metadata or {})) for each in await pages.next_items()]
        return found

    async def _kill_box(self, box_id: str) -> None:
        async with _translated("end a sandbox"):
            await _sdk().AsyncSandbox.kill(box_id, **self._options)

    async def _drop(self, ref: str) -> None:
        async with _translated("drop a snapshot"):
            await _sdk().AsyncSandbox.delete_snapshot(ref, **self._options)
