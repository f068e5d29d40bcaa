"""HTTP to engine servers: one connection pool for thousands of calls in flight, JSON in and out, typed errors.

aiohttp, because httpx does work per queued request per event: 1,000 concurrent calls cost it 22 s of CPU (openenv.md
section 5.3). A call is sent once: to another server only while no connection could be made, never after a byte of its
body may have arrived (case row D6).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec

from drivetrain.engines.protocol import EngineError, EngineMalformed
from drivetrain.engines.remote.address import base_urls
from drivetrain.engines.remote.errors import error_of_reply
from drivetrain.engines.remote.replicas import Replica, Replicas

_log = logging.getLogger(__name__)

T = TypeVar("T")

_KEEP_ALIVE_S = 3.0  # below the 5 s after which uvicorn closes: no call meets a connection that is just being closed
_CONNECT_S = 10.0
_CONTROL_S = 120.0
_TRIAL_S = 3.0
_MAX_REPLY = 256 * 1024 * 1024
_OUT_OF_ORDER = (502, 503)


class _NoConnection(Exception):
    """No connection could be made; says why."""


class RemoteClient:
    """A client of one engine that is served at one or several base URLs.

    Args:
        urls: base URLs, from configuration only.
        api_key: sent as a bearer token; never logged.
        replicas: state of the servers; default: :class:`Replicas` of ``urls``.
        health: the page that is asked for before a server that was down is used again.
        connect_timeout_s: a server that takes longer to accept a connection is down.
    """

    def __init__(
        self,
        urls: str | list[str] | tuple[str, ...],
        *,
        api_key: str | None = None,
        replicas: Replicas | None = None,
        health: str = "/health",
        connect_timeout_s: float = _CONNECT_S,
    ) -> None:
        self.replicas = replicas or Replicas(base_urls(urls))
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._key = (api_key or "").encode()
        self._health = health
        self._connect_timeout_s = connect_timeout_s
        self._trials: dict[Replica, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"<RemoteClient {', '.join(replica.url for replica in self.replicas.all)}>"

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs of the servers."""
        return tuple(replica.url for replica in self.replicas.all)

    @property
    def in_flight(self) -> int:
        """Calls that servers work on now."""
        return sum(replica.in_flight for replica in self.replicas.all)

    async def open(self) -> None:
        """Make the connection pool; idempotent. Nothing is sent."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=_KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
                headers=self._headers,
                trust_env=False,
            )

    async def aclose(self) -> None:
        """Close every connection, which aborts what runs over them; idempotent."""
        for trial in list(self._trials.values()):
            trial.cancel()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def post(
        self,
        path: str,
        body: Any,
        *,
        reply: type[T],
        session_id: str = "",
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> T:
        """Send one call to the session's server, or to the next one if no connection can be made.

        Args:
            path: behind the base URL, with its slash.
            body: anything that msgspec encodes.
            reply: type of the answer; ``Any`` for plain JSON values.
            request_id: sent as ``X-Request-Id``.
            timeout_s: for the whole call; None waits for ever.

        Raises:
            EngineError: no server could be reached (retryable, with Retry-After), the connection broke, the time is
                up, or the server answered with an error status.
            EngineMalformed: the answer is not JSON of that type.
        """
        done: T = await self._call("POST", path, body, reply, session_id, request_id, timeout_s)
        return done

    async def get(self, path: str, *, reply: type[T], timeout_s: float | None = _CONTROL_S) -> T:
        """Ask any server that is up. Raises what :meth:`post` raises."""
        done: T = await self._call("GET", path, None, reply, "", "", timeout_s)
        return done

    async def each(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        reply: type[T] = Any,  # type: ignore[assignment]
        timeout_s: float | None = _CONTROL_S,
    ) -> list[T]:
        """The same call to every server at once; answers in the order of the URLs.

        An empty body counts as ``null`` when ``reply`` is ``Any``: control endpoints often say nothing. ``bytes`` takes
        whatever body comes.

        Raises:
            EngineError: one failed; the message names its URL. The others may have done it.
        """
        asked = [self._named(replica, method, path, body, reply, timeout_s) for replica in self.replicas.all]
        done = await asyncio.gather(*asked, return_exceptions=True)
        for result in done:
            if isinstance(result, BaseException):
                raise result
        return [result for result in done if not isinstance(result, BaseException)]

    async def wait_ready(
        self,
        path: str = "",
        *,
        deadline_s: float,
        tell: Callable[[str], None] | None = None,
        poll_s: float = 0.5,
    ) -> None:
        """Wait until every server answers ``GET path`` (default: its health page) with 200.

        ``tell`` gets a line when a wait begins and about every ten seconds.

        Raises:
            EngineError: a server refuses (a status that waiting does not heal), or is not ready in time; the message
                says which and what it last said.
        """
        await asyncio.gather(
            *(
                self._ready(replica, path or self._health, deadline_s, tell or _log.info, poll_s)
                for replica in self.replicas.all
            )
        )

    async def _ready(
        self, replica: Replica, path: str, deadline_s: float, tell: Callable[[str], None], poll_s: float
    ) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        told = -10.0
        while True:
            try:
                await self._named(replica, "GET", path, None, Any, min(10.0, max(1.0, deadline_s)))
            except EngineError as error:
                waited = loop.time() - start
                if not error.retryable:
                    raise
                if waited + poll_s > deadline_s:
                    raise EngineError(
                        f"not ready within {deadline_s:g} s: {error.what}",
                        fix="See the server's own log.",
                        status=error.status,
                        kind=error.kind,
                    ) from error
                if waited - told >= 10:
                    told = waited
                    tell(f"waiting for {replica.url} ({waited:.0f} s of {deadline_s:g})")
            else:
                self.replicas.answered(replica)
                return
            await asyncio.sleep(poll_s)

    async def _named(
        self, replica: Replica, method: str, path: str, body: Any, reply: Any, timeout_s: float | None
    ) -> Any:
        """One server, by name: for operators, so errors say its URL (those of :meth:`post` reach harnesses)."""
        try:
            return await self._send(replica, method, path, _encoded(body), reply, "", timeout_s)
        except _NoConnection as error:
            raise EngineError(f"{replica.url}: {error}.", kind="unreachable") from error
        except EngineError as error:
            error.what = f"{replica.url}{path}: {error.what}"
            error.args = (error.what,)
            raise

    async def _call(
        self,
        method: str,
        path: str,
        body: Any,
        reply: Any,
        session_id: str,
        request_id: str,
        timeout_s: float | None,
    ) -> Any:
        data = _encoded(body)
        why = ""
        for replica in self.replicas.order(session_id):
            if self.replicas.left_alone(replica) or (replica.is_down and not await self._revived(replica)):
                continue
            try:
                done = await self._send(replica, method, path, data, reply, request_id, timeout_s)
            except _NoConnection as error:  # the next server may have it
                why = str(error)
                self.replicas.failed(replica, why)
                continue
            except EngineError as error:
                if error.status in _OUT_OF_ORDER:
                    self.replicas.failed(replica, f"status {error.status}", wait_s=error.retry_after_s)
                raise
            return done
        raise self.replicas.none_left(f"{why}." if why else "")

    async def _revived(self, replica: Replica) -> bool:
        """Ask after the health of a server that was down; whoever comes meanwhile waits for the same answer."""
        if replica not in self._trials:
            self._trials[replica] = asyncio.create_task(self._try(replica))
        await asyncio.shield(self._trials[replica])
        return not replica.is_down

    async def _try(self, replica: Replica) -> None:
        try:
            await self._send(replica, "GET", self._health, None, Any, "", _TRIAL_S)
        except _NoConnection as error:
            self.replicas.failed(replica, str(error))
        except EngineError as error:
            if error.status is None or error.status >= 500:
                self.replicas.failed(replica, error.what)
            else:
                self.replicas.answered(replica)  # it has no such page; it is there
        else:
            self.replicas.answered(replica)
        finally:
            del self._trials[replica]

    async def _send(
        self,
        replica: Replica,
        method: str,
        path: str,
        data: bytes | None,
        reply: Any,
        request_id: str,
        timeout_s: float | None,
    ) -> Any:
        """One call over one connection.

        Raises:
            _NoConnection: there was none, so the server has seen nothing of the call.
            EngineError: anything that happened after that.
        """
        if self._session is None:
            raise EngineError("the engine's client is not open.", fix="Call start() first.", retryable=False)
        headers = {} if data is None else {"Content-Type": "application/json"}
        if request_id:
            headers["X-Request-Id"] = request_id
        with _counted(replica):
            try:
                async with (
                    asyncio.timeout(timeout_s),
                    self._session.request(
                        method, replica.url + path, data=data, headers=headers, allow_redirects=False
                    ) as answer,
                ):
                    status, answered = answer.status, answer.headers
                    raw = await _read(answer)
            except aiohttp.ConnectionTimeoutError as error:
                raise _NoConnection("no connection in time") from error
            except aiohttp.ClientConnectorError as error:
                if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
                    raise EngineError(
                        "this process has no file left for another connection to the engine server.",
                        fix="Raise the limit of open files (ulimit -n).",
                        kind="open files",
                    ) from error
                raise _NoConnection(_why(error)) from error
            except TimeoutError:
                raise EngineError(f"no answer within {timeout_s:g} s.", status=504, kind="timeout") from None
            except (aiohttp.ClientError, OSError) as error:
                raise EngineError(
                    f"the connection to the engine server broke ({type(error).__name__}); the call may have been "
                    "worked on, so it was not sent again.",
                    kind="connection",
                ) from error
        if status >= 300:
            # Servers and proxies quote what they refuse, and their words end up with the agent.
            said = raw.replace(self._key, b"[key]") if self._key else raw
            raise error_of_reply(status, said, answered)
        return _decoded(raw, reply, answered)


def _encoded(body: Any) -> bytes | None:
    return None if body is None else msgspec.json.encode(body)


def _decoded(raw: bytes, reply: Any, headers: Mapping[str, str]) -> Any:
    if reply is bytes:  # some control pages answer in plain text
        return raw
    if reply is Any and not raw.strip():
        return None
    try:
        return msgspec.json.decode(raw, type=reply)
    except msgspec.ValidationError as error:
        raise EngineMalformed(f"the answer of the engine server is not of the form asked for: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        kind = headers.get("Content-Type", "no content type")
        raise EngineMalformed(f"the engine server answered with something that is no JSON ({kind[:60]}).") from None


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The body, up to a limit: a server that never stops must not fill the memory."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in answer.content.iter_any():
        size += len(chunk)
        if size > _MAX_REPLY:
            raise EngineMalformed(f"the engine server's answer is larger than {_MAX_REPLY // 2**20} MiB.")
        chunks.append(chunk)
    return b"".join(chunks)


@contextmanager
def _counted(replica: Replica) -> Iterator[None]:
    replica.in_flight += 1
    try:
        yield
    finally:
        replica.in_flight -= 1


def _why(error: aiohttp.ClientConnectorError) -> str:
    """In words without the address: it ends up with the agent in the sandbox."""
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if number and number > 0 else type(error).__name__
