"""Client connections as delivery sees them: which is still open, and how the others ended."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from aiohttp import web

from drivetrain.gateway.descriptors import connections_within


class Load(Protocol):
    """Something that was handed over to a connection to the last byte."""

    def used(self) -> None:
        """The client sent another request on the connection: it has read what came before."""

    def ended(self, *, reset: bool) -> None:
        """The connection is gone; ``reset`` when the client dropped it with bytes unread."""


class Connection:
    """One client connection. It refers to no socket, and to its loads only until it ends."""

    def __init__(self) -> None:
        self.open = True
        self.spoke = False
        """Whether it has carried a request."""
        self.serving = 0
        """Requests of it that are being served."""
        self.patience: asyncio.TimerHandle | None = None
        """Ends with the first request."""
        self._loads: list[Load] = []

    def carry(self, load: Load) -> None:
        """The last byte of a reply was written. The load is told what becomes of the connection."""
        if self.open:
            self._loads.append(load)
        else:
            load.ended(reset=False)

    def used(self) -> None:
        """Another request came in."""
        loads, self._loads = self._loads, []
        for load in loads:
            load.used()

    def ended(self, *, reset: bool) -> None:
        """It was closed or reset; idempotent."""
        self.open = False
        loads, self._loads = self._loads, []
        for load in loads:
            load.ended(reset=reset)


class Connections:
    """The open connections of one server, kept to a number and made to speak.

    Who opens connections and sends nothing, or a header that never ends, costs a file descriptor each: one that has
    not sent a whole request head in time is closed, and where there are too many, the one that is idle the longest
    makes room. A client finds its idle connection closed and opens another; a request is never cut off for it.

    Args:
        most: open connections; None = three quarters of the file descriptors this process may have.
        first_s: seconds in which the head of the first request has arrived.
    """

    def __init__(self, *, most: int | None = None, first_s: float = 60.0) -> None:
        self._open: dict[web.RequestHandler, Connection] = {}
        self._most = most
        self._first_s = first_s
        self.turned_away = 0
        """Connections that were closed because there were too many, or because they said nothing."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def serving_now(self) -> int:
        """Requests that are being served."""
        return sum(connection.serving for connection in self._open.values())

    def of(self, request: web.Request) -> Connection:
        """The connection a request came on."""
        if request.transport is None:  # gone while the request waited for its turn
            connection = Connection()
            connection.ended(reset=False)
            return connection
        return self._open.setdefault(request.protocol, Connection())

    @contextmanager
    def serving(self, request: web.Request) -> Iterator[None]:
        """While a request is served its connection is not idle; behind it, it is the one that was used last."""
        connection = self.of(request)
        connection.spoke = True
        connection.serving += 1
        try:
            yield
        finally:
            connection.serving -= 1
            if self._open.pop(request.protocol, None) is not None:
                self._open[request.protocol] = connection

    def watch(self, server: web.Server) -> None:
        """Learn how connections of ``server`` begin and end: aiohttp tells its server object, and nobody else, the
        reason."""
        made, lost = server.connection_made, server.connection_lost
        most = self._most or connections_within(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

        def connection_made(handler: web.RequestHandler, transport: asyncio.Transport) -> None:
            made(handler, transport)
            if len(self._open) >= most:
                self._make_room(transport)
            self._open[handler] = connection = Connection()
            loop = asyncio.get_running_loop()
            connection.patience = loop.call_later(self._first_s, self._hang_up_on_silence, connection, transport)

        def connection_lost(handler: web.RequestHandler, exc: BaseException | None = None) -> None:
            connection = self._open.pop(handler, None)
            if connection is not None:
                if connection.patience is not None:
                    connection.patience.cancel()
                connection.ended(reset=exc is not None)
            lost(handler, exc)

        server.connection_made = connection_made  # type: ignore[method-assign]
        server.connection_lost = connection_lost  # type: ignore[method-assign]

    def _make_room(self, newcomer: asyncio.Transport) -> None:
        """Close the connection that is idle the longest; the newcomer where none is."""
        idle = (handler for handler, connection in self._open.items() if not connection.serving and connection.open)
        longest = next(idle, None)
        self.turned_away += 1
        if longest is None or longest.transport is None:
            newcomer.close()
        else:
            self._open[longest].open = False
            longest.transport.close()

    def _hang_up_on_silence(self, connection: Connection, transport: asyncio.Transport) -> None:
        if not connection.spoke and not transport.is_closing():
            self.turned_away += 1
            transport.close()
