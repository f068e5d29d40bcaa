"""The HTTP client: sent once, fail-over only without a connection, typed errors, thousands in flight."""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any

import msgspec
import pytest

from drivetrain.engines.protocol import EngineError, EngineMalformed
from drivetrain.engines.remote import RemoteClient, Replicas
from tests.engines.remote.server import Server, cut, drop, hang, http, running


class Pong(msgspec.Struct):
    pong: int


class Clock:
    """Time, of servers that are left alone, moves by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def opened(*servers: Server, clock: Clock | None = None, **options: Any) -> RemoteClient:
    replicas = Replicas([server.url for server in servers], first_backoff_s=0.5, clock=clock or Clock())
    client = RemoteClient([server.url for server in servers], replicas=replicas, **options)
    await client.open()
    return client


async def test_json_in_and_out_over_one_connection() -> None:
    async with running(Server(http(200, b'{"pong": 3, "more": null}'))) as (server,):
        client = await opened(server, api_key="hunter2")
        for _ in range(5):
            assert (await client.post("/x", {"ping": [1, 2]}, reply=Pong, request_id="r-1")).pong == 3
        await client.aclose()
    assert server.connections == 1
    assert server.bodies == [b'{"ping":[1,2]}'] * 5
    assert "x-request-id: r-1" in server.heads[0].lower()
    assert "Authorization: Bearer hunter2" in server.heads[0]


async def test_the_key_is_in_no_log_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = Server(http(401, b'{"error": "Unauthorized"}'))
    async with running(server):
        client = await opened(server, api_key="hunter2")
        with pytest.raises(EngineError) as error:
            await client.each("GET", "/v1/models")
        await server.stop()
        with pytest.raises(EngineError) as down:
            await client.post("/x", {}, reply=Any)
        assert "hunter2" not in f"{error.value!r} {error.value} {down.value} {client!r} {caplog.text}"
        await client.aclose()


@pytest.mark.case("D6")
@pytest.mark.parametrize("how", [cut, drop], ids=["cut", "drop"])
async def test_a_call_whose_body_may_have_arrived_is_never_sent_again(how: Any) -> None:
    async with running(Server(how), Server(how)) as servers:
        client = await opened(*servers)
        with pytest.raises(EngineError, match="not sent again") as error:
            await client.post("/x", {}, reply=Any, session_id="s")
        await client.aclose()
    assert sum(server.posts for server in servers) == 1
    assert error.value.retryable and error.value.status is None


@pytest.mark.case("D6")
@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
async def test_nor_one_that_was_answered(status: int) -> None:
    async with running(Server(http(status)), Server(http(status))) as servers:
        client = await opened(*servers)
        with pytest.raises(EngineError):
            await client.post("/x", {}, reply=Any, session_id="s")
        await client.aclose()
    assert sum(server.posts for server in servers) == 1


@pytest.mark.case("D6")
async def test_nor_one_that_timed_out() -> None:
    async with running(Server(hang), Server(hang)) as servers:
        client = await opened(*servers)
        with pytest.raises(EngineError, match=r"no answer within 0\.1 s") as error:
            await client.post("/x", {}, reply=Any, session_id="s", timeout_s=0.1)
        await client.aclose()
    assert error.value.status == 504
    assert sum(server.posts for server in servers) == 1


async def test_without_a_connection_the_next_server_gets_it_and_the_first_is_used_again() -> None:
    async with running(Server(http(200, b'{"pong": 1}')), Server(http(200, b'{"pong": 1}'))) as servers:
        clock = Clock()
        client = await opened(*servers, clock=clock)
        home = client.replicas.order("s")[0].url
        first, second = sorted(servers, key=lambda server: server.url != home)
        await first.stop()
        for _ in range(3):
            await client.post("/x", {}, reply=Pong, session_id="s")
        assert (first.posts, second.posts) == (0, 3)
        await first.start()
        clock.now += 0.5
        await client.post("/x", {}, reply=Pong, session_id="s")
        assert (first.posts, second.posts) == (1, 3)
        assert first.heads[0].startswith("GET /health"), "its health is asked for first, not tried with a call"
        await client.aclose()


async def test_a_server_out_of_order_is_left_alone() -> None:
    async with running(Server(http(503, Retry_After="9")), Server(http(200, b'{"pong": 1}'))) as servers:
        client = await opened(*servers)
        session = next(f"s{n}" for n in range(99) if client.replicas.order(f"s{n}")[0].url == servers[0].url)
        with pytest.raises(EngineError) as error:
            await client.post("/x", {}, reply=Pong, session_id=session)
        assert error.value.retry_after_s == 9
        await client.post("/x", {}, reply=Pong, session_id=session)  # what its caller does next
        assert [server.posts for server in servers] == [1, 1]
        await client.aclose()


async def test_all_down_is_one_retryable_error_and_many_callers_ask_once() -> None:
    server = Server(http(200, b'{"pong": 1}'))
    async with running(server):
        clock = Clock()
        client = await opened(server, clock=clock)
        await server.stop()
        for _ in range(2):
            with pytest.raises(EngineError, match="the engine server is down") as error:
                await client.post("/x", {}, reply=Pong, session_id="s")
            assert str(server.port) not in str(error.value)  # it reaches the agent in the sandbox
            assert error.value.retryable and error.value.status == 503
            assert error.value.retry_after_s == 0.5
        await server.start()
        clock.now += 0.5
        done = await asyncio.gather(*(client.post("/x", {}, reply=Pong, session_id=f"s{n}") for n in range(20)))
        assert len(done) == 20
        assert sum(head.startswith("GET /health") for head in server.heads) == 1
        await client.aclose()


@pytest.mark.parametrize(
    ("body", "kind", "what"),
    [
        (b"<html>hello</html>", "text/html", "no JSON \\(text/html\\)"),
        (b'{"pong": 1', "application/json", "no JSON"),
        (b"\xff\xfe", "application/json", "no JSON"),
        (b"", "application/json", "no JSON"),
        (b"{}", "application/json", "missing required field `pong`"),
        (b'{"pong": "1"}', "application/json", "Expected `int`"),
        (b"[]", "application/json", "Expected `object`"),
    ],
)
async def test_an_answer_of_another_form_is_malformed(body: bytes, kind: str, what: str) -> None:
    async with running(Server(http(200, body, kind=kind))) as (server,):
        client = await opened(server)
        with pytest.raises(EngineMalformed, match=what):
            await client.post("/x", {}, reply=Pong)
        await client.aclose()


async def test_a_redirect_is_not_followed() -> None:
    async with running(Server(http(200)), Server()) as (elsewhere, server):
        server.reply = http(307, Location=f"{elsewhere.url}/x")
        client = await opened(server, api_key="hunter2")
        with pytest.raises(EngineError, match="a redirect") as error:
            await client.post("/x", {}, reply=Any)
        await client.aclose()
    assert not error.value.retryable
    assert not elsewhere.heads, "nobody configured to send it prompts and a key"


async def test_cancelling_closes_the_connection() -> None:
    async with running(Server(hang)) as (server,):
        client = await opened(server)
        call = asyncio.ensure_future(client.post("/x", {}, reply=Any))
        while not server.posts:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert client.replicas.all[0].in_flight == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(10):
            while not server.closed_early:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert client.replicas.all[0].in_flight == 0
        await client.aclose()


async def test_each_is_all_or_an_error_that_names_the_server() -> None:
    async with running(Server(http(200, b"")), Server(http(500, b'{"error": "no"}'))) as servers:
        client = await opened(*servers)
        with pytest.raises(EngineError, match=f"{servers[1].url}/reset: the engine server answered 500: no"):
            await client.each("POST", "/reset")
        assert [server.posts for server in servers] == [1, 1]
        servers[1].reply = http(200, b'{"a": 1}')
        assert await client.each("POST", "/reset") == [None, {"a": 1}]
        await client.aclose()


async def test_waiting_until_ready() -> None:
    server = Server(http(503))
    async with running(server):
        client = await opened(server)
        with pytest.raises(EngineError, match=f"not ready within 0.2 s: {server.url}/health: .* 503"):
            await client.wait_ready(deadline_s=0.2, poll_s=0.05)
        told: list[str] = []
        await server.stop()
        waiting = asyncio.ensure_future(client.wait_ready(deadline_s=30, poll_s=0.02, tell=told.append))
        await asyncio.sleep(0.1)
        server.reply = http(200, b"")
        await server.start()
        await waiting
        assert told and server.url in told[0]
        server.reply = http(401)
        with pytest.raises(EngineError, match="401"):  # waiting does not heal it
            await client.wait_ready(deadline_s=30)
        await client.aclose()


async def test_a_thousand_calls_are_in_flight_at_once() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1000
    if hard < 3 * wanted:
        pytest.skip(f"only {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * wanted), hard))
    everybody = asyncio.Event()

    async def together(server: Server, writer: asyncio.StreamWriter, _body: bytes) -> None:
        if server.posts == wanted:
            everybody.set()
        await everybody.wait()
        writer.write(http(200, b'{"pong": 1}'))
        await writer.drain()

    try:
        async with running(Server(together)) as (server,):
            client = await opened(server)
            async with asyncio.timeout(60):
                done = await asyncio.gather(*(client.post("/x", {}, reply=Pong) for _ in range(wanted)))
            assert len(done) == wanted
            await client.aclose()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_no_file_left_is_not_the_servers_fault() -> None:
    async with running(Server(http(200, b'{"pong": 1}'))) as (server,):
        client = await opened(server)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        try:
            with pytest.raises(EngineError, match="ulimit -n"):
                await client.post("/x", {}, reply=Pong)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert (await client.post("/x", {}, reply=Pong)).pong == 1
        await client.aclose()
