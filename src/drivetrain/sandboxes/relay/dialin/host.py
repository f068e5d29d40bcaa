"""The host's end of the dial-in relay: :class:`DialIn`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import aiohttp
import msgspec

from drivetrain.errors import ConfigError
from drivetrain.sandboxes.end import end
from drivetrain.sandboxes.protocol import Reach, SandboxError
from drivetrain.sandboxes.relay.dialin import wire
from drivetrain.sandboxes.relay.dialin.carrier import Carrier, LinkDead, Timing
from drivetrain.sandboxes.relay.dialin.endpoint import READ_AHEAD, Pair
from drivetrain.sandboxes.relay.dialin.session import Session
from drivetrain.sandboxes.relay.dialin.wire import WireError

logger = logging.getLogger(__name__)

DialInState = Literal["idle", "dialing", "up", "failed", "closed"]
"""Not started; no link and trying; a link; given up (see :attr:`DialIn.error`); closed by the owner."""

_CONNECT_RETRY_S = 0.01
_STEADY_S = 1.0
"""A link that lived this long starts the back-off anew."""


class DialInError(SandboxError):
    """The dial-in relay does not carry; never the policy's fault."""


class DialInLost(DialInError):
    """No link could be made, or it broke: network, proxy, or the sandbox is gone."""


class DialInRefused(DialInError):
    """Something answered, but not as our end of the relay does (a status other than 101), e.g. a wrong secret (401)."""


class DialInReplaced(DialInError):
    """Somebody else dialled with the same secret; this end stays away."""


class DialInProtocolError(DialInError):
    """The inside sent what the protocol forbids; every stream was reset."""


class DialInOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds.

    ``ping_s`` / ``dead_s``: silence after which the link is probed / dropped. ``resume_s``: how long streams outlive a
    lost link. ``connect_s``: one dial; also how long the gateway's full backlog is retried. ``backoff_s`` doubles up to
    ``backoff_max_s``, each pause is a random half to whole of it. ``give_up_s``: time without a link after which the
    relay has failed. ``refusals``: so many answers of 401 or 403, or protocol errors, in a row, and it has.
    """

    ping_s: float = 10.0
    dead_s: float = 25.0
    resume_s: float = 60.0
    connect_s: float = 10.0
    backoff_s: float = 0.1
    backoff_max_s: float = 5.0
    give_up_s: float = 300.0
    refusals: int = 5


class DialInStats(msgspec.Struct, frozen=True, kw_only=True):
    """What happened so far.

    ``dials`` counts tries; ``links`` were made (the first included), ``resumed`` of them went on with the session
    before, with ``resent`` frames sent again. ``streams`` are open, ``opened`` ever were, ``aborted`` ended by a reset,
    ``abandoned`` with their session. Bytes are payload from (in) and to (out) the sandbox.
    """

    state: DialInState
    dials: int
    links: int
    resumed: int
    resent: int
    streams: int
    opened: int
    aborted: int
    abandoned: int
    bytes_in: int
    bytes_out: int


class DialIn:
    """Keeps one link into a sandbox and joins its streams to the gateway's Unix socket.

    Args:
        reach: how the host reaches the inside's dial port (``SandboxHandle.reach``).
        secret: what the inside was given.
        gateway_socket: host path of the gateway's Unix socket; may come and go: a stream opened while nobody
            listens is refused.
        on_state: called with the new state at each change.
    """

    def __init__(
        self,
        reach: Reach,
        secret: str,
        gateway_socket: Path,
        *,
        options: DialInOptions | None = None,
        on_state: Callable[[DialInState], None] | None = None,
    ) -> None:
        if len(secret) < 16:
            raise ConfigError("The dial-in secret is shorter than 16 characters.", fix="Use new_secret().")
        if len(str(gateway_socket).encode()) > 100:
            raise ConfigError(f"The socket path {gateway_socket} is too long.", fix="Use a shorter folder.")
        self._url = reach.url.rstrip("/") + "/"
        self._headers = {**reach.headers, wire.SECRET_HEADER: secret}
        self._socket = gateway_socket
        self._options = options = options or DialInOptions()
        self._on_state = on_state
        self._carrier = Carrier(
            Session(opens=False),
            Timing(options.ping_s, options.dead_s, options.resume_s),
            connect=self._connect_gateway,
            on_up=lambda: self._enter("up"),
        )
        self._state: DialInState = "idle"
        self._changed = asyncio.Event()
        self._error: DialInError | None = None
        self._task: asyncio.Task[None] | None = None
        self._dials = 0

    # -- what the owner sees

    @property
    def state(self) -> DialInState:
        """Now."""
        return self._state

    @property
    def error(self) -> DialInError | None:
        """The last trouble; None when the link is up."""
        return self._error

    def stats(self) -> DialInStats:
        """Counters so far."""
        count = self._carrier.counters
        return DialInStats(
            state=self._state,
            dials=self._dials,
            links=count.links,
            resumed=count.resumed,
            resent=count.resent,
            streams=self._carrier.streams,
            opened=count.opened,
            aborted=count.aborted,
            abandoned=count.abandoned,
            bytes_in=count.received_bytes,
            bytes_out=count.sent_bytes,
        )

    def check(self) -> None:
        """Raise when the relay has failed.

        Raises:
            DialInError: why.
        """
        if self._state == "failed":
            assert self._error is not None
            raise self._error

    async def start(self, timeout_s: float = 30.0) -> None:
        """Dial until the link is up. Afterwards the link is kept up in the background.

        Raises:
            DialInError: no link in time, or refused for good; the relay is closed.
        """
        if self._state != "idle":
            raise ConfigError("This DialIn was started before.", fix="Make a new one.")
        self._enter("dialing")
        self._task = asyncio.create_task(self._run(), name="dial-in")
        try:
            await self.wait_up(timeout_s)
        except BaseException:
            await self.close()
            raise

    async def wait_up(self, timeout_s: float = 30.0) -> None:
        """Until the link is up.

        Raises:
            DialInError: not in time, or it has failed or is closed.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._state == "dialing":
                    await self._changed.wait()
        self.check()
        if self._state != "up":
            why = f": {self._error.what}" if self._error else "."
            raise DialInLost(f"No link to {self._url} after {timeout_s:g} s (state {self._state}){why}")

    async def wait_failed(self) -> DialInError:
        """The reason, once the relay has failed; for racing against a rollout. Never returns when it is closed."""
        while self._state != "failed":
            await self._changed.wait()
        assert self._error is not None
        return self._error

    async def close(self) -> None:
        """Tell the inside that nobody comes back, break every stream; idempotent."""
        if self._task is not None:
            await end(self._task)
        await self._carrier.aclose()
        if self._state != "failed":
            self._enter("closed")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- the link

    def _enter(self, state: DialInState) -> None:
        if state == self._state:
            return
        self._state = state
        if state == "up":
            self._error = None
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self._on_state is not None:
            self._on_state(state)

    async def _run(self) -> None:
        try:
            await self._keep()
        except Exception as error:  # a defect must not look like a link that is up
            logger.exception("the dial-in relay to %s broke", self._url)
            self._fail(DialInError(f"The dial-in relay to {self._url} broke: {error!r}."))

    def _fail(self, error: DialInError) -> None:
        self._error = error
        self._carrier.abandon()
        self._enter("failed")
        logger.error("the dial-in relay to %s has failed: %s", self._url, error)

    async def _keep(self) -> None:
        """Dial, carry, and again; returns when it has failed."""
        loop = asyncio.get_running_loop()
        pause, hard, lost_at = self._options.backoff_s, 0, loop.time()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._options.connect_s)
        tracing = aiohttp.TraceConfig()
        tracing.on_request_redirect.append(_no_redirect)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True, trace_configs=[tracing]) as client:
            while True:
                began, links = loop.time(), self._carrier.counters.links
                self._error = await self._once(client)
                was_up = self._carrier.counters.links > links
                now = loop.time()
                if was_up:
                    lost_at = now
                if was_up and now - began >= _STEADY_S:
                    pause = self._options.backoff_s
                hard = hard + 1 if _is_hard(self._error) else 0
                if self._is_over(self._error, hard, now - lost_at):
                    self._fail(self._error)
                    return
                self._enter("dialing")
                logger.info("dialling %s again: %s", self._url, self._error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, self._options.backoff_max_s)

    def _is_over(self, error: DialInError, hard: int, without_link_s: float) -> bool:
        if isinstance(error, DialInReplaced) or hard >= self._options.refusals:
            return True
        return without_link_s >= self._options.give_up_s

    async def _once(self, client: aiohttp.ClientSession) -> DialInError:
        """One dial and the life of its link; why it ended."""
        self._dials += 1
        try:
            async with asyncio.timeout(self._options.connect_s):
                socket_ = await client.ws_connect(
                    self._url,
                    headers=self._headers,
                    max_msg_size=wire.MAX_MESSAGE + 1,  # aiohttp refuses a message of this size, too
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                )
        except aiohttp.WSServerHandshakeError as error:
            return _Refused(self._url, error.status)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return DialInLost(f"Cannot reach {self._url}: {error or type(error).__name__}.")
        link = ClientLink(socket_)
        try:
            await self._carrier.carry(link)
        except WireError as error:
            return DialInProtocolError(f"The inside at {self._url} broke the protocol: {error}.")
        except (LinkDead, OSError) as error:
            return _ended(self._url, link.code, str(error))
        except asyncio.CancelledError:
            await link.close(wire.CLOSE_BYE)
            raise
        finally:
            await link.close(1000)
        return _ended(self._url, link.code, "")

    async def _connect_gateway(self) -> Pair:
        """A connection to the gateway; a full backlog is waited for, as TCP would."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._options.connect_s
        while True:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                opened.connect(str(self._socket))
                return await asyncio.open_unix_connection(sock=opened, limit=READ_AHEAD)
            except BlockingIOError:
                opened.close()
                if loop.time() > give_up:
                    raise
            except BaseException:
                opened.close()
                raise
            await asyncio.sleep(_CONNECT_RETRY_S)


class ClientLink:
    """A ``carrier.Link`` over an aiohttp WebSocket. ``code`` is the close code, None when there was none."""

    def __init__(self, opened: aiohttp.ClientWebSocketResponse) -> None:
        self._opened = opened
        self.code: int | None = None

    async def send(self, message: bytes) -> None:
        """Write one binary message."""
        await self._opened.send_bytes(message)

    async def receive(self) -> bytes | None:
        """The next message; None at the end."""
        got = await self._opened.receive()
        if got.type == aiohttp.WSMsgType.BINARY:
            data: bytes = got.data
            return data
        if got.type == aiohttp.WSMsgType.TEXT:
            raise WireError("a text message")
        if got.type == aiohttp.WSMsgType.ERROR and isinstance(got.data, aiohttp.WebSocketError):
            raise WireError(str(got.data), got.data.code)
        self.code = self._opened.close_code
        return None

    async def close(self, code: int) -> None:
        """Close; waits a second at most for the peer's answer."""
        with contextlib.suppress(Exception):
            await self._opened.close(code=code)


async def _no_redirect(_client: object, _context: object, params: aiohttp.TraceRequestRedirectParams) -> None:
    """The secret goes to the reach URL and nowhere else."""
    raise aiohttp.ClientError(f"it redirects to {params.response.headers.get('Location')}")


class _Refused(DialInRefused):
    """``hard`` when the status says that asking again will not help."""

    def __init__(self, url: str, status: int) -> None:
        self.hard = status in (401, 403)
        super().__init__(
            f"The dial to {url} was answered with status {status}.",
            fix="Check the secret and the reach headers."
            if self.hard
            else "Is the inside running and its port published?",
        )


def _is_hard(error: DialInError) -> bool:
    return isinstance(error, DialInProtocolError) or (isinstance(error, _Refused) and error.hard)


def _ended(url: str, code: int | None, detail: str) -> DialInError:
    """Why a link ended, from its close code."""
    if code == wire.CLOSE_REPLACED:
        return DialInReplaced(f"Another host dialled {url} with the same secret.", fix="Use one DialIn per sandbox.")
    if code in (wire.CLOSE_PROTOCOL, wire.CLOSE_TOO_BIG):
        return DialInProtocolError(f"The inside at {url} closed the link for a protocol error ({code}).")
    return DialInLost(f"The link to {url} ended (code {code}) {detail}".strip() + ".")
