"""What the tests of the dashboard share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import aiohttp
import msgspec
import pytest
from aiohttp import web

from drivetrain.dashboard.model import Event
from drivetrain.gateway.admin import AdminPart, guarded_app
from drivetrain.gateway.keys import AdminKeys
from tests.gateway.conftest import start_rig
from tests.viewer.conftest import run

__all__ = ["run", "start_rig"]
KEY = "an-admin-key-of-a-test"
BEARER = {"Authorization": f"Bearer {KEY}"}
Serve = Callable[[Sequence[AdminPart]], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serve parts behind KEY; answers the address."""
    async with AsyncExitStack() as stack:

        async def start(parts: Sequence[AdminPart]) -> str:
            runner = web.AppRunner(guarded_app(AdminKeys(KEY), parts), access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            return f"http://127.0.0.1:{runner.addresses[0][1]}"

        yield start


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=400), read_bufsize=1 << 22) as session:
        yield session


class Heard(msgspec.Struct):
    """One server-sent event, or a comment (``name`` is then ``:``)."""

    name: str
    id: str
    data: str

    @property
    def event(self) -> Event:
        return msgspec.json.decode(self.data, type=Event)


class Reader:
    """Reads a stream event by event."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self._rest = b""

    async def next(self, *, comments: bool = False) -> Heard:
        """The next event, or with ``comments`` the next of either. Raises EOFError."""
        while True:
            while b"\n\n" not in self._rest:
                data = await self.response.content.readany()
                if not data:
                    raise EOFError
                self._rest += data
            block, self._rest = self._rest.split(b"\n\n", 1)
            lines = block.decode().split("\n")
            if lines[0].startswith(":"):
                if comments:
                    return Heard(":", "", lines[0])
                continue
            fields = dict(line.split(": ", 1) for line in lines)
            if "event" in fields:
                return Heard(fields["event"], fields.get("id", ""), fields["data"])
