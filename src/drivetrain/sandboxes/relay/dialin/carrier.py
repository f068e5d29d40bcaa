"""Moves bytes between local connections, the session and whichever link there is; keeps time.

Both ends use it; runs inside the sandbox: standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from . import session as events
from . import wire
from .endpoint import Connect, Endpoint
from .session import Session
from .wire import WireError


class Timing(NamedTuple):
    """Seconds: silence before a PING, silence after which a link is dead, life of streams without a link."""

    ping_s: float = 10.0
    dead_s: float = 25.0
    resume_s: float = 60.0


class Link(Protocol):
    """A connection that carries messages."""

    async def send(self, message: bytes) -> None:
        """Write one message, waiting while the link takes no more; OSError when it is gone."""

    async def receive(self) -> bytes | None:
        """The next message, None at the end; WireError for what is no message."""

    async def close(self, code: int) -> None:
        """Close with a WebSocket code; does not wait long, never fails."""


class LinkDead(Exception):
    """Nothing came for too long."""


class Counters:
    """What happened so far; bytes are payload, by where they came from."""

    def __init__(self) -> None:
        self.links = 0
        self.resumed = 0
        self.resent = 0
        self.opened = 0
        self.aborted = 0
        self.abandoned = 0
        self.sent_bytes = 0
        self.received_bytes = 0


class Carrier:
    """One end of the relay. ``connect`` makes the local connection of a stream that the peer opened."""

    def __init__(
        self, session: Session, timing: Timing, connect: Connect | None = None, on_up: Callable[[], None] | None = None
    ) -> None:
        self.session = session
        self.counters = Counters()
        self._timing = timing
        self._connect = connect
        self._on_up = on_up
        self._endpoints: dict[int, Endpoint] = {}
        self._waiting: deque[tuple[int, bytes, asyncio.Future[None]]] = deque()
        self._wake = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._expired = False  # while a link waited for HELLO
        self._carrying = False
        self._heard = 0.0

    # -- local connections

    @property
    def streams(self) -> int:
        """Local connections now."""
        return len(self._endpoints)

    def adopt(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Endpoint:
        """Open a stream for an accepted connection."""

        async def connected() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return reader, writer

        stream = self.session.open()
        endpoint = self._begin(stream, connected)
        endpoint.when_over(writer.close)  # it may be aborted before its first step
        self._wake.set()
        if not self.session.ready and self._expiry is None:
            self._expire_later()
        return endpoint

    async def send(self, stream: int, data: bytes) -> None:
        """Send a chunk when there is space for it; first come, first served over all streams."""
        self.counters.sent_bytes += len(data)
        if self._waiting or not self.session.has_space():
            sent = asyncio.get_running_loop().create_future()
            self._waiting.append((stream, data, sent))
            await sent
            return
        self.session.send(stream, data)
        self._wake.set()

    def finish(self, stream: int) -> None:
        """The local connection sends no more."""
        self.session.finish(stream)
        self._wake.set()

    def reset(self, stream: int, code: int) -> None:
        """The local connection broke."""
        self.counters.aborted += 1
        self.session.reset(stream, code)
        self._wake.set()

    def consumed(self, stream: int, size: int) -> None:
        """The local connection took bytes."""
        self.session.consumed(stream, size)
        self._wake.set()

    def forget(self, stream: int, endpoint: Endpoint) -> None:
        """The local connection is closed."""
        if self._endpoints.get(stream) is endpoint:
            del self._endpoints[stream]

    def _begin(self, stream: int, connect: Connect) -> Endpoint:
        self.counters.opened += 1
        endpoint = self._endpoints[stream] = Endpoint(self, stream, connect)
        return endpoint

    def _give_space(self) -> None:
        while self._waiting and self.session.has_space():
            stream, data, sent = self._waiting.popleft()
            if not sent.cancelled():
                self.session.send(stream, data)
                sent.set_result(None)

    # -- links

    async def carry(self, link: Link) -> None:
        """Use a link until it ends; returns at its end, the session lives on.

        Raises:
            WireError: the peer broke the protocol; the session is abandoned.
            LinkDead: nothing came for too long.
            OSError: the link broke.
        """
        self._heard = asyncio.get_running_loop().time()
        self._carrying = True
        tasks = [asyncio.ensure_future(step) for step in (self._receive(link), self._send(link), self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except WireError as error:
            self.abandon()
            await link.close(error.code)
            raise
        except LinkDead:
            await link.close(wire.CLOSE_DEAD)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.session.detach()
            self._carrying = False
            if self._expired:
                self.abandon()
            if self._expiry is None:
                self._expire_later()

    async def _receive(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = await link.receive()
            if message is None:
                return
            self._heard = loop.time()
            for event in self.session.receive(message):
                self._apply(event)
            self._give_space()
            self._wake.set()

    async def _send(self, link: Link) -> None:
        await link.send(self.session.attach())
        while True:
            self._wake.clear()
            while True:
                message = self.session.next_message()
                if message is None:
                    break
                await link.send(message)
                self._give_space()
            if not self._wake.is_set():
                await self._wake.wait()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        patience = self._timing.dead_s - self._timing.ping_s
        asked = 0.0  # when the PING that is not answered was sent
        while True:
            now = loop.time()
            if self._heard >= asked:
                asked = 0.0
            if asked and now - asked >= patience:
                raise LinkDead(f"nothing came for {now - self._heard:.1f} s")
            if not asked and now - self._heard >= self._timing.ping_s:
                asked = now  # also after a stall of this process: what came meanwhile is read before the verdict
                self.session.ping(int(now * 1000))
                self._wake.set()
            await asyncio.sleep(min(self._timing.ping_s, patience) / 4)

    def _apply(self, event: NamedTuple) -> None:
        if isinstance(event, events.Attached):
            self._attached(event)
            return
        if isinstance(event, events.Opened):
            assert self._connect is not None
            self._begin(event.stream, self._connect)
            return
        if isinstance(event, events.Received):
            self.counters.received_bytes += len(event.data)
        endpoint = self._endpoints.get(event.stream)  # type: ignore[attr-defined]
        if endpoint is None:
            return
        if isinstance(event, events.Received):
            endpoint.received(event.data)
        elif isinstance(event, events.Ended):
            endpoint.ended()
        elif isinstance(event, events.Credit):
            endpoint.more_credit()
        elif isinstance(event, events.Aborted):
            self.counters.aborted += 1
            endpoint.abort()

    def _attached(self, event: events.Attached) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._expired = False
        self.counters.links += 1
        self.counters.resent += event.resent
        self.counters.resumed += event.resumed and self.counters.links > 1
        if self._on_up is not None:
            self._on_up()

    # -- the end

    def _expire_later(self) -> None:
        self._expiry = asyncio.get_running_loop().call_later(self._timing.resume_s, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._expired = self._carrying  # our HELLO is on its way: what it says must stay true until this link ends
        if not self._expired:
            self.abandon()

    def abandon(self) -> None:
        """Give the session up: every local connection is broken. Not while a link is in use."""
        self._expired = False
        over = list(self._endpoints.values())
        self.counters.abandoned += len(over)
        self._endpoints.clear()
        self.session.abandon()
        for _, _, sent in self._waiting:
            sent.cancel()
        self._waiting.clear()
        for endpoint in over:
            endpoint.abort()

    async def aclose(self) -> None:
        """Break every local connection and wait until they are closed."""
        over = list(self._endpoints.values())
        self.abandon()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        with contextlib.suppress(asyncio.CancelledError):
            for endpoint in over:
                await endpoint.wait()
