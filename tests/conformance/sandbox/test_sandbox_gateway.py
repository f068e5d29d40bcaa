"""What a sandbox reaches: nothing, or the gateway and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from drivetrain.sandboxes import Mount, SandboxBackend, SandboxError, SandboxHandle, SandboxSpec, SandboxStartError

pytestmark = pytest.mark.usefixtures("nothing_left")

# Every file a client in the box needs: the Python that runs the tests, at its own path.
PYTHON_MOUNT = Mount(source=Path(sys.base_prefix), target=sys.base_prefix)
PYTHON = str(Path(sys.executable).resolve())

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
        self.runner: web.AppRunner | None = None
        self.entered = asyncio.Event()
        self.disconnected = asyncio.Event()

    async def start(self, name: str = "one") -> None:
        async def hello(request: web.Request) -> web.Response:
            return web.json_response({"name": name, "size": len(await request.read())})

        async def big(_: web.Request) -> web.Response:
            return web.Response(body=b"x" * (8 << 20))

        async def stream(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for number in range(4):
                await response.write(f"data: {number}\n\n".encode())
                await asyncio.sleep(0.2)
            await response.write_eof()
            return response

        async def slow(_: web.Request) -> web.Response:
            self.entered.set()
            try:
                await asyncio.sleep(60)
            finally:
                self.disconnected.set()
            return web.Response()

        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/hello", hello)
        app.router.add_get("/big", big)
        app.router.add_get("/stream", stream)
        app.router.add_get("/slow", slow)
        self.runner = web.AppRunner(app, handler_cancellation=True)
        await self.runner.setup()
        await web.UnixSite(self.runner, str(self.path)).start()

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
        self.runner = None
        self.path.unlink(missing_ok=True)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    (tmp_path / "gw").mkdir()
    made = Server(tmp_path / "gw" / "gateway.sock")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def wired(backend: SandboxBackend, server: Server) -> SandboxHandle:
    spec = SandboxSpec(network="gateway", gateway_socket=server.path, mounts=(PYTHON_MOUNT,))
    return await backend.create(spec)


async def client(box: SandboxHandle, script: str, timeout_s: float = 30) -> str:
    done = await box.exec([PYTHON, "-I", "-c", CLIENT + script, box.gateway_url()], timeout_s=timeout_s)
    assert done.exit_code == 0, done.stderr.decode()
    return done.stdout.decode()


async def test_none_has_loopback_and_no_route(backend: SandboxBackend) -> None:
    box = await backend.create(SandboxSpec(mounts=(PYTHON_MOUNT,)))
    routes = await box.exec(["cat", "/proc/net/route"])
    assert len(routes.stdout.splitlines()) == 1  # the header
    interfaces = await box.exec(["sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1"])
    assert interfaces.stdout.split() == [b"lo"]
    script = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(server.getsockname()) as one, server.accept()[0] as other:
        one.sendall(b"loop")
        print(other.recv(9))
try:
    socket.create_connection(("1.1.1.1", 53), timeout=5)
except OSError as error:
    print(error.errno)
"""
    done = await box.exec([PYTHON, "-I", "-c", script])
    assert done.stdout == b"b'loop'\n101\n", done  # ENETUNREACH


async def test_none_has_no_gateway(box: SandboxHandle) -> None:
    with pytest.raises(SandboxError, match="gateway"):
        box.gateway_url()


async def test_none_does_not_see_the_hosts_loopback(backend: SandboxBackend) -> None:
    host = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = host.sockets[0].getsockname()[1]
    script = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)"
    async with host:
        shut = await backend.create(SandboxSpec(mounts=(PYTHON_MOUNT,)))
        assert b"ConnectionRefusedError" in (await shut.exec([PYTHON, "-I", "-c", script])).stderr
        wide = await backend.create(SandboxSpec(mounts=(PYTHON_MOUNT,), network="open"))
        assert (await wide.exec([PYTHON, "-I", "-c", script])).exit_code == 0


async def test_gateway_is_reached_and_nothing_else(wired: SandboxHandle) -> None:
    assert wired.gateway_url().startswith("http://127.0.0.1:")
    out = await client(
        wired,
        """
print(get("/hello", b"12345")[1].read().decode())
import socket
try:
    socket.create_connection(("1.1.1.1", 53), timeout=5)
except OSError as error:
    print(error.errno)
""",
    )
    answer, code = out.splitlines()
    assert json.loads(answer) == {"name": "one", "size": 5}
    assert code == "101"


async def test_gateway_socket_cannot_be_replaced_from_inside(wired: SandboxHandle, server: Server) -> None:
    done = await wired.exec(
        [
            "sh",
            "-c",
            "find / -maxdepth 4 -name gateway.sock -exec rm -f {} + 2>&1; find / -maxdepth 4 -name gateway.sock",
        ]
    )
    assert b"Read-only" in done.stdout
    assert server.path.exists()


async def test_large_bodies_pass_both_ways(wired: SandboxHandle) -> None:
    out = await client(
        wired, 'print(len(get("/big")[1].read())); print(json.loads(get("/hello", b"y" * (8 << 20))[1].read())["size"])'
    )
    assert out.split() == [str(8 << 20), str(8 << 20)]


async def test_a_slow_reader_gets_everything(wired: SandboxHandle) -> None:
    script = """
c, r = get("/big")
time.sleep(0.5)
n = 0
while d := r.read(300000):
    n += len(d)
    time.sleep(0.01)
print(n)
"""
    assert await client(wired, script) == f"{8 << 20}\n"


async def test_events_arrive_promptly(wired: SandboxHandle) -> None:
    script = """
c, r = get("/stream")
while line := r.readline():
    if line.strip():
        print(time.monotonic(), line.strip().decode())
"""
    lines = [line.split(" ", 1) for line in (await client(wired, script)).splitlines()]
    assert [text for _, text in lines] == [f"data: {number}" for number in range(4)]
    gaps = [float(b[0]) - float(a[0]) for a, b in itertools.pairwise(lines)]
    assert all(gap > 0.05 for gap in gaps), gaps  # buffered together they would be near 0


async def test_twenty_parallel_connections(wired: SandboxHandle) -> None:
    script = """
results = []
def one(i):
    results.append(json.loads(get("/hello", b"z" * (i * 10000))[1].read())["size"] == i * 10000)
    c, r = get("/stream")
    results.append(r.read().count(b"data:") == 4)
threads = [threading.Thread(target=one, args=(i,)) for i in range(20)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(results), all(results))
"""
    begun = time.monotonic()
    assert await client(wired, script) == "40 True\n"
    assert time.monotonic() - begun < 20  # one after the other would need more


async def test_half_close(backend: SandboxBackend, tmp_path: Path) -> None:
    """A client that shuts its sending side still gets the answer; the server sees the end of the request."""

    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    (tmp_path / "gw").mkdir()
    path = tmp_path / "gw" / "raw.sock"
    async with await asyncio.start_unix_server(upper, path):
        box = await backend.create(SandboxSpec(network="gateway", gateway_socket=path, mounts=(PYTHON_MOUNT,)))
        script = """
import socket
s = socket.create_connection((url.hostname, url.port))
s.sendall(b"abc" * 100000)
s.shutdown(socket.SHUT_WR)
n = b""
while d := s.recv(65536): n += d
print(n == b"ABC" * 100000)
"""
        assert await client(box, script) == "True\n"


async def test_a_client_that_leaves_is_seen_by_the_gateway(wired: SandboxHandle, server: Server) -> None:
    script = """
import socket
s = socket.create_connection((url.hostname, url.port))
s.sendall(b"GET /slow HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
time.sleep(0.3)
"""
    await client(wired, script)
    assert server.entered.is_set()
    await asyncio.wait_for(server.disconnected.wait(), 5)


async def test_a_restarted_gateway_is_reached_and_a_stopped_one_refuses(wired: SandboxHandle, server: Server) -> None:
    ask = 'print(json.loads(get("/hello")[1].read())["name"])'
    assert await client(wired, ask) == "one\n"
    await server.stop()
    done = await wired.exec([PYTHON, "-I", "-c", CLIENT + ask, wired.gateway_url()])
    assert done.exit_code == 1
    assert any(word in done.stderr for word in (b"RemoteDisconnected", b"ConnectionRefused", b"ConnectionReset"))
    await server.start("two")
    assert await client(wired, ask) == "two\n"


async def test_a_killed_relay_comes_back(wired: SandboxHandle) -> None:
    # The relay is the only process besides PID 1 that has no keeper above it.
    killed = await wired.exec(["sh", "-c", "for p in 2 3 4 5; do kill -9 $p; done 2>/dev/null; exit 0"])
    assert killed.exit_code in (0, 137)
    assert await client(wired, 'print(json.loads(get("/hello")[1].read())["name"])') == "one\n"


async def test_gateway_needs_a_socket_in_a_folder_of_its_own(backend: SandboxBackend, tmp_path: Path) -> None:
    with pytest.raises(SandboxStartError, match="gateway_socket"):
        await backend.create(SandboxSpec(network="gateway"))
    with pytest.raises(SandboxStartError, match="gateway"):
        await backend.create(SandboxSpec(network="gateway", gateway_socket=tmp_path / "none" / "g.sock"))
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "journal.db").touch()
    with pytest.raises(SandboxStartError, match="journal"):
        await backend.create(SandboxSpec(network="gateway", gateway_socket=tmp_path / "shared" / "g.sock"))
