"""What OpenEnv's server does not tell an environment: that a request stands alone, and that a client has hung up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

ONE_REQUEST: ContextVar[bool] = ContextVar("one_request", default=False)
"""True in a request to one of :data:`ALONE`."""

ALONE = ("/reset", "/step")
"""Routes for which OpenEnv makes an environment that it closes with the answer."""

_GRACE_S = 1.0
_AHEAD = 64  # messages of a client that does not wait for answers


class Transport:
    """ASGI middleware around OpenEnv's app.

    OpenEnv reads a WebSocket only between steps, so a client that dies during one would keep its sandboxes until
    the step is over, which for a grading can be half an hour. Here the connection is watched all the time, and the
    handler cancelled when nobody is left to answer; its own clean-up then closes the session.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http" and scope["path"].removeprefix(scope.get("root_path", "")) in ALONE:
            ONE_REQUEST.set(True)
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        line = _Line(receive)
        serving = asyncio.ensure_future(self._app(scope, line.next, send))
        watching = asyncio.ensure_future(line.watch())
        try:
            await asyncio.wait({serving, watching}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({serving}, timeout=_GRACE_S)
            if not line.heard:
                serving.cancel()
            await asyncio.wait({serving})
        finally:
            gone = watching.done()
            watching.cancel()
            serving.cancel()
            await asyncio.gather(serving, watching, return_exceptions=True)
        if not gone and (error := serving.exception()) is not None:
            raise error  # after a hang-up, an answer that could not be sent is no news


class _Line:
    """One WebSocket's messages on their way to the handler.

    ``heard``: the handler knows that the client is gone.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._inbox: asyncio.Queue[Message] = asyncio.Queue(_AHEAD)
        self.heard = False

    async def next(self) -> Message:
        """The handler's ``receive``."""
        message = await self._inbox.get()
        self.heard = message["type"] == "websocket.disconnect"
        return message

    async def watch(self) -> None:
        """Take messages until the client is gone."""
        while True:
            message = await self._receive()
            await self._inbox.put(message)
            if message["type"] == "websocket.disconnect":
                return
