"""Abuse of the wire against a gateway on a real port: what one client does never reaches another one."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.app import CONNECTIONS, harness_app
from drivetrain.gateway.connections import Connections
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.redact import guarded_logger
from drivetrain.gateway.sessions import Session
from drivetrain.gateway.unexpected import leave_out_client_faults
from drivetrain.tokens.codec import TokenCodec
from tests.gateway.raw import Wire

CHAT = "/v1/chat/completions"
HI = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
ENOUGH_S = 60.0
"""Until something happens that has to; nothing below waits for this long on a healthy machine."""


class Port:
    """A gateway on a port, with clocks short enough to see them end."""

    def __init__(self, gateway: Gateway, connections: Connections, body_s: float) -> None:
        log = guarded_logger("drivetrain.gateway.http")
        leave_out_client_faults(log)
        app = harness_app(gateway, connections=connections, body_s=body_s)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, logger=log, shutdown_timeout=0.1, lingering_time=0.1
        )
        self.gateway = gateway
        self.connections = connections
        self.number = 0
        self.key = ""
        self.session: Session

    async def open(self) -> None:
        await self._runner.setup()
        assert self._runner.server is not None
        self._runner.app[CONNECTIONS].watch(self._runner.server)
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.number = self._runner.addresses[0][1]
        self.session, self.key = await self.gateway.open_session(SessionPolicy(model="m", max_body_bytes=100_000))

    async def close(self) -> None:
        await self._runner.cleanup()
        await self.gateway.aclose()

    async def dial(self) -> Wire:
        return await Wire.open(self.number)

    def auth(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", **(more or {})}

    async def works(self) -> bool:
        """Whether an honest client is served, on a connection of its own."""
        async with asyncio.timeout(ENOUGH_S):
            wire = await self.dial()
            answer = await wire.post(CHAT, HI, self.auth())
            await wire.close()
        return answer.status == 200

    async def raw(self, data: bytes, *, end: bool = False) -> bytes:
        """What is answered to these bytes until the server hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        try:
            async with asyncio.timeout(ENOUGH_S):
                writer.write(data)
                if end:
                    writer.write_eof()
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@pytest.fixture
async def port(request: Any, tmp_path: Any, tiny_model: ModelDir, codec: TokenCodec) -> AsyncIterator[Port]:
    limits = {"most": 40, "first_s": 30.0, "body_s": 30.0, **getattr(request, "param", {})}
    gateway = Gateway(ScriptedEngine(tiny_model, lambda *_: "done"), codec, tmp_path / "j.sqlite", model="m")
    port = Port(gateway, Connections(most=limits["most"], first_s=limits["first_s"]), limits["body_s"])
    await port.open()
    yield port
    await port.close()


@pytest.fixture(autouse=True)
async def unharmed(port: Port, complaints: list[str]) -> AsyncIterator[None]:
    """After each of these an honest client is served and nothing was logged."""
    yield
    assert await port.works()
    assert not complaints


def request(port: Port, *lines: str, body: bytes = b"", path: str = CHAT, method: str = "POST") -> bytes:
    head = [f"{method} {path} HTTP/1.1", "Host: gateway", "Connection: close", f"Authorization: Bearer {port.key}"]
    return "\r\n".join([*head, *lines]).encode("latin-1") + b"\r\n\r\n" + body


def status_of(answer: bytes) -> int:
    """Of the one response there is; 0 when the server just hung up."""
    assert answer.count(b"HTTP/1.1 ") <= 1, answer
    return int(answer.split()[1]) if answer else 0


CHUNKED = "Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n" % len(HI) + HI + b"\r\n0\r\n\r\n"
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
LENGTH = f"Content-Length: {len(HI)}"
SMUGGLING: list[tuple[str, tuple[str, ...], bytes]] = [
    ("a length and chunks", (LENGTH, CHUNKED), CHUNKS),
    ("chunks and a length", (CHUNKED, "Content-Length: 5"), CHUNKS),
    ("two lengths", (LENGTH, "Content-Length: 3"), HI),
    ("one length twice in a line", (f"Content-Length: {len(HI)}, 3",), HI),
    ("a signed length", (f"Content-Length: +{len(HI)}",), HI),
    ("a hexadecimal length", (f"Content-Length: 0x{len(HI):x}",), HI),
    ("a negative length", ("Content-Length: -1",), HI),
    ("a length of other digits", ("Content-Length: \xb2",), HI),
    ("a folded header", ("X-A: b", " c: d", LENGTH), HI),
    ("a folded length", ("Content-Length:", f" {len(HI)}"), HI),
    ("a space before the colon", (f"Content-Length : {len(HI)}",), HI),
    ("a header without a colon", ("Nonsense", LENGTH), HI),
    ("a NUL in a header", ("X-A: a\x00b", LENGTH), HI),
    ("a bare CR in a header", ("X-A: a\rContent-Length: 0", LENGTH), HI),
    ("chunked in another spelling", ("Transfer-Encoding: xchunked",), CHUNKS),
    ("chunked and something", ("Transfer-Encoding: chunked, identity",), CHUNKS),
    ("chunked twice", (CHUNKED, CHUNKED), CHUNKS),
    ("a chunk of a negative size", (CHUNKED,), b"-5\r\n" + HI + b"\r\n0\r\n\r\n"),
    ("a chunk of a size that is no number", (CHUNKED,), b"zz\r\n" + HI + b"\r\n0\r\n\r\n"),
    ("a chunk of a size of 0x", (CHUNKED,), b"0x5\r\n" + HI + b"\r\n0\r\n\r\n"),
    ("a chunk larger than said", (CHUNKED,), b"3\r\n" + HI + b"\r\n0\r\n\r\n"),
    ("a chunk of a size beyond 64 bits", (CHUNKED,), b"f" * 40 + b"\r\n" + HI),
]


@pytest.mark.parametrize(("what", "lines", "body"), SMUGGLING, ids=[what for what, _, _ in SMUGGLING])
async def test_requests_whose_end_is_in_doubt_are_refused(
    port: Port, what: str, lines: tuple[str, ...], body: bytes
) -> None:
    """RFC 9112 section 6: a request that two servers could split in two ways is answered once, and not as a call."""
    answer = await port.raw(request(port, *lines, body=body + SMUGGLED))
    assert status_of(answer) in (0, 400), answer
    assert len(port.session.graph) == 0


BOMB = gzip.compress(b" " * 50_000_000)
TOO_LARGE: list[tuple[str, tuple[str, ...], bytes]] = [
    ("a declared length", ("Content-Length: 100001",), b""),
    ("a length of 18 digits", ("Content-Length: 999999999999999999",), b""),
    ("chunks without end", (CHUNKED,), (b"2710\r\n" + b" " * 10_000 + b"\r\n") * 20),
    ("a gzip bomb", ("Content-Encoding: gzip", f"Content-Length: {len(BOMB)}"), BOMB),
    (
        "a deflate bomb",
        ("Content-Encoding: deflate", CHUNKED),
        b"%x\r\n" % len(zlib.compress(b" " * 10**7)) + zlib.compress(b" " * 10**7) + b"\r\n0\r\n\r\n",
    ),
]


@pytest.mark.parametrize(("what", "lines", "body"), TOO_LARGE, ids=[what for what, _, _ in TOO_LARGE])
async def test_bodies_beyond_the_limit(port: Port, what: str, lines: tuple[str, ...], body: bytes) -> None:
    answer = await port.raw(request(port, *lines, body=body), end=True)
    assert status_of(answer) in (0, 413), answer
    assert len(port.session.graph) == 0


@pytest.mark.parametrize("port", [{"body_s": 1.0}], indirect=True)
async def test_a_chunk_extension_of_a_megabyte_in_front_of_a_broken_chunk(port: Port) -> None:
    """The parser keeps quiet about what came in pieces: the clock of the body ends it."""
    answer = await port.raw(request(port, CHUNKED, body=b"5;" + b"a" * 10**6 + b"\r\n" + HI))
    assert status_of(answer) in (0, 400, 408)
    assert len(port.session.graph) == 0


async def test_a_packed_body_within_the_limit_is_read(port: Port) -> None:
    body = gzip.compress(HI)
    answer = await port.raw(request(port, "Content-Encoding: gzip", f"Content-Length: {len(body)}", body=body))
    assert status_of(answer) == 200


HEADS: list[tuple[str, bytes]] = [
    ("a header of a megabyte", b"X-A: " + b"a" * 10**6),
    ("ten thousand headers", b"\r\n".join(b"X-%d: a" % number for number in range(10_000))),
    ("a header name of 100 kB", b"a" * 10**5 + b": 1"),
    ("a key of 100 kB", b"x-api-key: " + b"a" * 10**5),
]


@pytest.mark.parametrize(("what", "lines"), HEADS, ids=[what for what, _ in HEADS])
async def test_heads_beyond_any_use(port: Port, what: str, lines: bytes) -> None:
    answer = await port.raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n\r\n")
    assert status_of(answer) in (0, 400, 431), answer[:300]


async def test_a_target_beyond_any_use(port: Port) -> None:
    answer = await port.raw(request(port, path="/v1/models/" + "a" * 10**6, method="GET"))
    assert status_of(answer) in (0, 400, 414)


PATHS = [
    "//v1/models",
    "/v1//models",
    "/v1/../admin/sessions",
    "/v1/%2e%2e/admin/sessions",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/v1/models/..%2f..%2fadmin%2fsessions",
    "/v1/models%00",
    "/v1/models/%00",
    "/v1/models/%ff",
    "/V1/MODELS",
    "/v1/models;a=b",
    "/admin/sessions",
    "/admin/health",
    "http://127.0.0.1:1/admin/sessions",
    "http://gateway/admin/sessions",
    "http://example.invalid/v1/chat/completions",
    "https://gateway@evil/v1/models",
    "*",
    "gateway:443",
    "?",
    "#",
    "v1/models",
    "\\v1\\models",
    "/v1/models\x01",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_paths(port: Port, path: str, method: str) -> None:
    """No spelling of a path reaches anything but the listed routes; a full URL is a path on this server, nowhere is
    it fetched."""
    answer = await port.raw(request(port, "Content-Length: 0", path=path, method=method))
    status = status_of(answer)
    assert status in (0, 200, 400, 404, 405), answer
    assert not any(secret in answer for secret in (b'"sessions":', b'"session_id"', b'"status":"ok"', b"root:"))
    if status == 200:
        assert method == "GET" and b'"owned_by":"drivetrain"' in answer, answer


METHODS = ("PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "CONNECT", "HEAD", "PROPFIND", "post", "GE T", "")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/mcp"])
async def test_methods(port: Port, method: str, path: str) -> None:
    """Also when another one is asked for in a header."""
    answer = await port.raw(request(port, "X-HTTP-Method-Override: POST", LENGTH, body=HI, path=path, method=method))
    assert status_of(answer) in (0, 400, 404, 405) or (method == "HEAD" and path == "/v1/models"), answer
    assert len(port.session.graph) == 0


async def test_ten_thousand_tools(port: Port) -> None:
    """They are read, rendered and found too long for the context, not the end of the server."""
    tool = {"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [tool] * 1200}
    wire = await port.dial()
    async with asyncio.timeout(ENOUGH_S):
        answer = await wire.post(CHAT, msgspec.json.encode(body), port.auth())
    assert (answer.status, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    await wire.close()


@pytest.mark.parametrize("port", [{"first_s": 2.0}], indirect=True)
@pytest.mark.parametrize("data", [b"", b"POST /v1/chat", b"POST / HTTP/1.1\r\nHost: x\r\nX-A: a\r\n"])
async def test_a_head_that_does_not_end(port: Port, data: bytes) -> None:
    """Slow-loris: the connection is closed, and others are served meanwhile."""
    silent = asyncio.create_task(port.raw(data))
    assert await port.works()
    assert await silent == b""
    assert port.connections.turned_away >= 1


@pytest.mark.parametrize("port", [{"body_s": 0.5}], indirect=True)
async def test_a_body_that_drips(port: Port) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.number)
    writer.write(request(port, LENGTH, body=HI[:-9]))
    assert await port.works()
    async with asyncio.timeout(ENOUGH_S):
        head = await reader.readuntil(b"\r\n\r\n")
        assert int(head.split()[1]) == 408
        size = int(head.lower().partition(b"content-length: ")[2].split()[0])
        error = msgspec.json.decode(await reader.readexactly(size))["error"]
    assert error["code"] == "request_timeout" and error["type"] == "server_error"
    assert len(port.session.graph) == 1  # of the honest one
    writer.close()


async def test_idle_connections_are_bounded(port: Port) -> None:
    """A client that opens ever more connections loses its own oldest ones; one that is being served keeps its."""
    busy = await port.dial()
    await busy.send(CHAT, HI, port.auth(), cut=1)  # its handler waits for the last byte
    async with asyncio.timeout(ENOUGH_S):
        while not port.connections.serving_now:  # noqa: ASYNC110 (bounded)
            await asyncio.sleep(0.01)
    silent = []
    for _ in range(300):
        silent.append(await asyncio.open_connection("127.0.0.1", port.number))
    async with asyncio.timeout(ENOUGH_S):
        while port.connections.turned_away < 300 + 1 - 40:  # noqa: ASYNC110 (bounded)
            await asyncio.sleep(0.01)
    assert len(port.connections) <= 40 + 1
    assert await port.works()
    busy._writer.write(HI[-1:])
    async with asyncio.timeout(ENOUGH_S):
        assert (await busy.answer()).status == 200
    for _, writer in silent:
        writer.close()
    await busy.close()


async def test_a_flood_of_wrong_keys_and_lost_clients(port: Port) -> None:
    async with aiohttp.ClientSession() as http:

        async def knock(number: int) -> int:
            headers = {"Authorization": f"Bearer wrong-{number}"}
            url = f"http://127.0.0.1:{port.number}{CHAT}"
            async with http.post(url, data=HI, headers=headers) as response:
                return response.status

        assert set(await asyncio.gather(*(knock(number) for number in range(30)))) == {401}
    for cut in (1, 20, 500):
        wire = await port.dial()
        await wire.send(CHAT, HI, port.auth(), cut=cut)
        wire.reset()
