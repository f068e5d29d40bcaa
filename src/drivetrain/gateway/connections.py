"""Client connections as delivery sees them: which is still open, and how the others ended."""

from __future__ import annotations

from typing import Protocol

from aiohttp import web


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
    """The open connections of one server."""

    def __init__(self) -> None:
        self._open: dict[object, Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def of(self, request: web.Request) -> Connection:
        """The connection a request came on."""
        if request.transport is None:  # gone while the request waited for its turn
            connection = Connection()
            connection.ended(reset=False)
            return connection
        return self._open.setdefault(request.protocol, Connection())

    def watch(self, server: web.Server) -> None:
        """Learn how connections of ``server`` end: aiohttp tells its server object, and nobody else, the reason."""
        pass_on = server.connection_lost

        def connection_lost(handler: web.RequestHandler, exc: BaseException | None = None) -> None:
            connection = self._open.pop(handler, None)
            if connection is not None:
                connection.ended(reset=exc is not None)
            pass_on(handler, exc)

        server.connection_lost = connection_lost  # type: ignore[method-assign]
