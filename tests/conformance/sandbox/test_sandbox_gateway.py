"""The way from inside to the gateway: whatever HTTP does passes, and the gateway may come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from drivetrain.sandboxes import SandboxBackend, SandboxError, SandboxHandle, SandboxStartError
from tests.conformance.sandbox.inside import sh
from tests.conformance.sandbox.kits.base import Kit

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLIENT = """
import http.client, json, sys, time, threading, urllib.parse
url = urllib.parse.urlsplit(sys.argv[1])
def get(path, body=None):
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=20)
    connection.request("POST" if body is not None else "GET", path, body)
    return connection, connection.getresponse()
"""


class Server:
    """A small HTTP server on a Unix socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = ""
        self.runner: web.AppRunner | None = None
        self.entered = asyncio.Event()
        self.disconnected = asyncio.Event()
        self.release = asyncio.Event()
        self.seen: asyncio.Queue[str] = asyncio.Queue()
        self.meeting = asyncio.Barrier(20)

    async def start(self, name: str = "one") -> None:
        self.name = name
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/hello", self.hello)
        for handler in (self.big, self.stream, self.slow, self.held, self.meet):
            app.router.add_get(f"/{handler.__name__}", handler)
        app.router.add_get("/confirm/{number}", self.confirm)
        self.runner = web.AppRunner(app, handler_cancellation=True)
        await self.runner.setup()
        await web.UnixSite(self.runner, str(self.path)).start()
        self.path.chmod(0o777)

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
        self.runner = None
        self.path.unlink(missing_ok=True)

    async def hello(self, request: web.Request) -> web.Response:
        return web.json_response({"name": self.name, "size": len(await request.read())})

    async def big(self, _: web.Request) -> web.Response:
        return web.Response(body=b"x" * (8 << 20))

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Each event only after the client has confirmed the one before: held together they would never come."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(4):
            await response.write(f"data: {number}\n\n".encode())
            assert await asyncio.wait_for(self.seen.get(), 20) == str(number)
        await response.write_eof()
        return response

    async def confirm(self, request: web.Request) -> web.Response:
        self.seen.put_nowait(request.match_info["number"])
        return web.Response()

    async def slow(self, _: web.Request) -> web.Response:
        self.entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.disconnected.set()
        return web.Response()

    async def held(self, _: web.Request) -> web.Response:
        """Answers when the test says so."""
        self.entered.set()
        await self.release.wait()
        return web.Response(text="at last")

    async def meet(self, _: web.Request) -> web.Response:
        """Answers when twenty are there at once."""
        await self.meeting.wait()
        return web.Response(text="met")


@pytest_asyncio.fixture(loop_scope="module")
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    (tmp_path / "gw").mkdir()
    made = Server(tmp_path / "gw" / "gateway.sock")
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def wired(backend: SandboxBackend, kit: Kit, server: Server) -> SandboxHandle:
    return await backend.create(kit.spec(network="gateway", gateway_socket=server.path, mounts=kit.client().mounts))


async def ask(box: SandboxHandle, kit: Kit, script: str, timeout_s: float = 40) -> str:
    done = await box.exec([kit.client().python, "-I", "-c", CLIENT + script, box.gateway_url()], timeout_s=timeout_s)
    assert done.exit_code == 0, done.stderr.decode()
    return done.stdout.decode()


async def test_large_bodies_pass_both_ways(wired: SandboxHandle, kit: Kit) -> None:
    out = await ask(
        wired,
        kit,
        'print(len(get("/big")[1].read())); print(json.loads(get("/hello", b"y" * (8 << 20))[1].read())["size"])',
    )
    assert out.split() == [str(8 << 20), str(8 << 20)]


async def test_a_slow_reader_gets_everything(wired: SandboxHandle, kit: Kit) -> None:
    script = """
c, r = get("/big")
time.sleep(0.5)
n = 0
while d := r.read(300000):
    n += len(d)
    time.sleep(0.01)
print(n)
"""
    assert await ask(wired, kit, script) == f"{8 << 20}\n"


async def test_events_arrive_one_by_one(wired: SandboxHandle, kit: Kit) -> None:
    script = """
c, r = get("/stream")
while line := r.readline():
    if line.strip():
        print(line.strip().decode())
        get("/confirm/" + line.split()[1].decode())[1].read()
"""
    assert await ask(wired, kit, script) == "data: 0\ndata: 1\ndata: 2\ndata: 3\n"


async def test_twenty_connections_at_once(wired: SandboxHandle, kit: Kit) -> None:
    script = """
results = []
def one(i):
    results.append(json.loads(get("/hello", b"z" * (i * 10000))[1].read())["size"] == i * 10000)
    results.append(get("/meet")[1].read() == b"met")
threads = [threading.Thread(target=one, args=(i,)) for i in range(20)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(results), all(results))
"""
    assert await ask(wired, kit, script) == "40 True\n"


async def test_keep_alive_connections_are_used_again(wired: SandboxHandle, kit: Kit) -> None:
    script = """
c, r = get("/hello"); r.read()
for n in range(50):
    c.request("POST", "/hello", b"x" * n)
    assert json.loads(c.getresponse().read())["size"] == n
print("fine")
"""
    assert await ask(wired, kit, script) == "fine\n"


async def test_half_close(backend: SandboxBackend, kit: Kit, tmp_path: Path) -> None:
    """A client that shuts its sending side still gets the answer; the server sees the end of the request."""

    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    (tmp_path / "gw").mkdir()
    path = tmp_path / "gw" / "raw.sock"
    async with await asyncio.start_unix_server(upper, path):
        box = await backend.create(kit.spec(network="gateway", gateway_socket=path, mounts=kit.client().mounts))
        script = """
import socket
s = socket.create_connection((url.hostname, url.port))
s.sendall(b"abc" * 100000)
s.shutdown(socket.SHUT_WR)
n = b""
while d := s.recv(65536): n += d
print(n == b"ABC" * 100000)
"""
        assert await ask(box, kit, script) == "True\n"


async def test_a_client_that_leaves_is_seen_by_the_gateway(wired: SandboxHandle, kit: Kit, server: Server) -> None:
    script = """
import socket
s = socket.create_connection((url.hostname, url.port))
s.sendall(b"GET /slow HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
time.sleep(60)
"""
    asking = asyncio.create_task(ask(wired, kit, script, timeout_s=2))
    await asyncio.wait_for(server.entered.wait(), 20)
    assert not server.disconnected.is_set()
    with pytest.raises(AssertionError):  # killed at its deadline
        await asking
    await asyncio.wait_for(server.disconnected.wait(), 20)


async def test_a_restarted_gateway_is_reached_and_a_stopped_one_refuses(
    wired: SandboxHandle, kit: Kit, server: Server
) -> None:
    name = 'print(json.loads(get("/hello")[1].read())["name"])'
    assert await ask(wired, kit, name) == "one\n"
    await server.stop()
    done = await wired.exec([kit.client().python, "-I", "-c", CLIENT + name, wired.gateway_url()])
    assert done.exit_code == 1
    assert any(word in done.stderr for word in (b"RemoteDisconnected", b"ConnectionRefused", b"ConnectionReset"))
    await server.start("two")
    assert await ask(wired, kit, name) == "two\n"


@pytest.mark.case("F7")
async def test_a_severed_connection_loses_no_reply(wired: SandboxHandle, kit: Kit, server: Server) -> None:
    """A model call in flight while the way between host and sandbox is cut."""
    asking = asyncio.create_task(ask(wired, kit, 'print(get("/held")[1].read().decode())'))
    await asyncio.wait_for(server.entered.wait(), 20)
    kit.cut()
    server.release.set()
    assert await asking == "at last\n"
    assert json.loads(await ask(wired, kit, 'print(get("/hello", b"12345")[1].read().decode())'))["size"] == 5


async def test_an_inside_that_kills_all_it_can_still_reaches_the_gateway(wired: SandboxHandle, kit: Kit) -> None:
    """``pkill python`` and ``kill -1`` are things agents do; what carries their model calls must come back."""
    with contextlib.suppress(SandboxError):
        await sh(wired, "kill -9 -1", timeout_s=5)
    script = """
for attempt in range(100):
    try:
        print(json.loads(get("/hello")[1].read())["name"])
        break
    except OSError:
        time.sleep(0.1)
"""
    assert await ask(wired, kit, script) == "one\n"


async def test_the_gateways_socket_cannot_be_removed_from_inside(
    wired: SandboxHandle, kit: Kit, server: Server
) -> None:
    await sh(wired, "find / -maxdepth 4 -path /proc -prune -o -name gateway.sock -exec rm -f {} +")
    assert server.path.exists()
    assert json.loads(await ask(wired, kit, 'print(get("/hello", b"12345")[1].read().decode())'))["size"] == 5


async def test_gateway_needs_a_socket(backend: SandboxBackend, kit: Kit) -> None:
    with pytest.raises(SandboxStartError, match="gateway_socket"):
        await backend.create(kit.spec(network="gateway"))


async def test_without_a_gateway_there_is_no_url(box: SandboxHandle) -> None:
    with pytest.raises(SandboxError, match="gateway"):
        box.gateway_url()
