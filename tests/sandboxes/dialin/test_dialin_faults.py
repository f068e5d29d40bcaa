"""Links that are cut, half-open, slow, stolen or lying; ends that are restarted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from drivetrain.sandboxes import Reach
from drivetrain.sandboxes.relay.dialin import (
    DialIn,
    DialInError,
    DialInLost,
    DialInOptions,
    DialInProtocolError,
    DialInRefused,
    DialInReplaced,
    wire,
)

from .kit import QUICK, Rig, echo, exchange, rigged, until


def some_bytes(dice: random.Random) -> int:
    """A link's life: one in four dies in the upgrade or HELLO."""
    return dice.randint(1, 700) if dice.random() < 0.25 else dice.randint(700, 300_000)


@pytest.mark.case("F7")
@pytest.mark.parametrize("chunk", [65536, 997])
async def test_cut_at_random_bytes_nothing_is_lost_or_doubled(chunk: int, tmp_path: Path) -> None:
    """Every link dies after some bytes: in the upgrade, in HELLO, in the middle of frames, during resends."""
    async with rigged(tmp_path) as rig, await asyncio.start_unix_server(echo, rig.socket):
        rig.proxy.cut_after, rig.proxy.chunk = some_bytes, chunk
        rig.proxy.cut()
        bodies = [os.urandom(size) for size in (1, 1000, 70_000, 300_000, 600_000)]
        assert await asyncio.gather(*(exchange(rig, body) for body in bodies)) == bodies
        stats = rig.dial.stats()
        assert stats.resumed >= 5
        assert stats.resent > 0
        assert (stats.abandoned, stats.aborted) == (0, 0)
        assert rig.proxy.connections > stats.links  # some died before they were up


@pytest.mark.case("F7")
@pytest.mark.parametrize("phase", ["before the request", "in the request", "while waiting", "in the answer", "after"])
async def test_a_cut_in_each_phase_of_a_call(phase: str, tmp_path: Path) -> None:
    rig: Rig

    def cut_in(now: str) -> None:
        if now == phase:
            rig.proxy.cut()

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.content.read(10)
        cut_in("in the request")
        await request.read()
        cut_in("while waiting")
        await asyncio.sleep(0.05)
        stream = web.StreamResponse()
        await stream.prepare(request)
        for number in range(20):
            await stream.write(b"data: %d\n\n" % number)
            if number == 5:
                cut_in("in the answer")
                await asyncio.sleep(0.02)
        return stream

    app = web.Application(client_max_size=8 << 20)
    app.router.add_post("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    async with rigged(tmp_path) as rig, aiohttp.ClientSession() as client:
        await web.UnixSite(runner, str(rig.socket)).start()
        for _ in range(2):
            cut_in("before the request")
            async with client.post(f"http://127.0.0.1:{rig.port}/", data=bytes(600_000)) as reply:
                assert await reply.read() == b"".join(b"data: %d\n\n" % number for number in range(20))
            cut_in("after")
        await until(lambda: rig.dial.stats().links == 3)
        stats = rig.dial.stats()
        assert (stats.links, stats.resumed, stats.opened, stats.aborted) == (3, 2, 1, 0)
        await runner.cleanup()


@pytest.mark.case("F7")
async def test_a_half_open_link_is_noticed_by_silence(tmp_path: Path) -> None:
    """The proxy forgets the connection and tells nobody: no end, no reset."""
    async with rigged(tmp_path) as rig, await asyncio.start_unix_server(echo, rig.socket):
        reader, writer = await rig.connect()
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        rig.proxy.forget()
        writer.write(b"after")
        assert await asyncio.wait_for(reader.readexactly(5), 20) == b"after"
        stats = rig.dial.stats()
        assert (stats.links, stats.resumed, stats.aborted) == (2, 1, 0)
        writer.close()


async def test_an_idle_link_is_kept(tmp_path: Path) -> None:
    """Silence for longer than a dead link's limit, with nothing but pings."""
    async with rigged(tmp_path) as rig:
        await asyncio.sleep(2 * QUICK.dead_s)
        assert (rig.dial.stats().dials, rig.dial.state) == (1, "up")


async def test_a_slow_link_is_not_a_dead_one(tmp_path: Path) -> None:
    """A frame takes longer than the limit for silence, yet its bytes come; other streams wait, none is lost."""
    slow = DialInOptions(ping_s=0.5, dead_s=5.0, backoff_s=0.01)
    async with (
        rigged(tmp_path, options=slow, timing=("--ping-s", "0.5", "--dead-s", "5.0")) as rig,
        await asyncio.start_unix_server(echo, rig.socket),
    ):
        rig.proxy.chunk, rig.proxy.pause_s = 2000, 0.01
        body = os.urandom(200_000)
        assert await asyncio.gather(exchange(rig, body), exchange(rig, b"small")) == [body, b"small"]
        assert rig.dial.stats().links == 1


@pytest.mark.case("F7")
async def test_streams_outlive_a_lost_link_for_a_bounded_time(tmp_path: Path) -> None:
    options = DialInOptions(ping_s=0.3, dead_s=1.0, resume_s=0.5, backoff_s=0.01, backoff_max_s=0.1)
    async with (
        rigged(tmp_path, options=options, resume_s=0.5) as rig,
        await asyncio.start_unix_server(echo, rig.socket),
    ):
        reader, writer = await rig.connect()
        writer.write(b"x")
        await reader.readexactly(1)
        rig.proxy.refuse = True
        rig.proxy.cut()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(reader.read(1), 10)
        await until(lambda: rig.dial.stats().streams == 0)
        assert rig.dial.state == "dialing"
        assert isinstance(rig.dial.error, DialInLost)
        rig.proxy.refuse = False
        assert await exchange(rig, b"new") == b"new"
        assert rig.dial.stats().abandoned == 1
        writer.close()


@pytest.mark.case("F7")
async def test_only_one_end_gave_the_session_up(tmp_path: Path) -> None:
    """The inside forgets sooner than the host: the host's streams end when they meet again, and new ones work."""
    async with rigged(tmp_path, resume_s=0.2) as rig, await asyncio.start_unix_server(echo, rig.socket):
        reader, writer = await rig.connect()
        writer.write(b"x")
        await reader.readexactly(1)
        rig.proxy.refuse = True
        rig.proxy.cut()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(reader.read(1), 10)
        assert rig.dial.stats().streams == 1
        rig.proxy.refuse = False
        await rig.dial.wait_up()
        assert await exchange(rig, b"new") == b"new"
        stats = rig.dial.stats()
        assert (stats.streams, stats.aborted, stats.abandoned) == (0, 1, 0)
        writer.close()


async def test_the_inside_is_killed_and_started_again(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig, await asyncio.start_unix_server(echo, rig.socket):
        reader, writer = await rig.connect()
        writer.write(b"x")
        await reader.readexactly(1)
        await rig.inside.kill()
        with contextlib.suppress(ConnectionError):
            assert await reader.read(1) == b""
        await until(lambda: isinstance(rig.dial.error, DialInRefused))  # the proxy says 502
        await rig.inside.start()
        await until(lambda: rig.dial.state == "up")
        assert await exchange(rig, b"new") == b"new"
        stats = rig.dial.stats()
        assert (stats.resumed, stats.aborted, stats.streams) == (0, 1, 0)
        writer.close()


async def test_the_gateway_is_restarted(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        writers = []

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await reader.read(1)

        server = await asyncio.start_unix_server(keep, rig.socket)
        reader, writer = await rig.connect()
        await until(lambda: writers)
        server.close()
        writers[0].transport.abort()
        with contextlib.suppress(ConnectionError):
            assert await reader.read(1) == b""
        rig.socket.unlink(missing_ok=True)
        async with await asyncio.start_unix_server(echo, rig.socket):
            assert await exchange(rig, b"again") == b"again"
        assert rig.dial.stats().links == 1
        writer.close()


# -- somebody else at the dial port


async def test_a_new_dial_replaces_the_old_one_which_stays_away(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig, await asyncio.start_unix_server(echo, rig.socket):
        reader, writer = await rig.connect()
        writer.write(b"x")
        await reader.readexactly(1)
        second = DialIn(Reach(f"http://127.0.0.1:{rig.proxy.port}"), rig.inside.secret, rig.socket, options=QUICK)
        async with second:
            error = await asyncio.wait_for(rig.dial.wait_failed(), 10)
            assert isinstance(error, DialInReplaced)
            with pytest.raises(DialInReplaced):
                rig.dial.check()
            with pytest.raises(ConnectionError):  # its streams were the first host's
                await asyncio.wait_for(reader.read(1), 10)
            assert await exchange(rig, b"new") == b"new"
            assert second.stats().links == 1
        writer.close()


async def test_a_wrong_secret_is_given_up(tmp_path: Path) -> None:
    async with rigged(tmp_path, start=False) as rig:
        wrong = DialIn(Reach(f"http://127.0.0.1:{rig.proxy.port}"), "w" * 43, rig.socket, options=QUICK)
        with pytest.raises(DialInRefused, match=r"status 401.*secret") as caught:
            await wrong.start()
        assert (wrong.state, wrong.stats().dials) == ("failed", QUICK.refusals)
        assert "w" * 43 not in str(caught.value)
        await rig.dial.start()


async def test_nobody_there_is_a_typed_error_in_time(tmp_path: Path) -> None:
    dial = DialIn(Reach("http://127.0.0.1:9"), "s" * 43, tmp_path / "gw.sock", options=QUICK)
    with pytest.raises(DialInLost, match=r"after 0.3 s.*Cannot reach"):
        await dial.start(0.3)
    assert dial.state == "closed"


async def test_a_redirect_is_not_followed_with_the_secret(tmp_path: Path) -> None:
    asked: list[str] = []

    async def serve(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPFound("/elsewhere")

    app = web.Application()
    app.router.add_get("/{tail:.*}", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    dial = DialIn(Reach(url), "s" * 43, tmp_path / "gw.sock", options=QUICK)
    with pytest.raises(DialInLost, match="redirects to /elsewhere"):
        await dial.start(0.5)
    assert set(asked) == {"/"}
    await runner.cleanup()


async def test_a_defect_does_not_look_like_a_link(tmp_path: Path) -> None:
    def broken(state: str) -> None:
        if state == "up":
            raise ZeroDivisionError

    async with rigged(tmp_path, start=False) as rig:
        reach = Reach(f"http://127.0.0.1:{rig.proxy.port}")
        dial = DialIn(reach, rig.inside.secret, rig.socket, options=QUICK, on_state=broken)
        with contextlib.suppress(DialInError):
            await dial.start()
        assert "ZeroDivisionError" in (await asyncio.wait_for(dial.wait_failed(), 10)).what
        await dial.close()
        assert dial.state == "failed"


async def test_without_a_link_for_too_long_it_has_failed(tmp_path: Path) -> None:
    options = DialInOptions(connect_s=1.0, backoff_s=0.01, backoff_max_s=0.05, give_up_s=0.2)
    dial = DialIn(Reach("http://127.0.0.1:9"), "s" * 43, tmp_path / "gw.sock", options=options)
    with pytest.raises(DialInLost, match="Cannot reach"):
        await dial.start(20)
    assert dial.state == "failed"
    await dial.close()
    assert dial.state == "failed"


@asynccontextmanager
async def lying(messages: list[bytes | str]) -> AsyncIterator[tuple[DialIn, list[int | None]]]:
    """A host connected to an inside that says these after a good HELLO; close codes it got."""
    codes: list[int | None] = []

    async def serve(request: web.Request) -> web.WebSocketResponse:
        opened = web.WebSocketResponse()
        await opened.prepare(request)
        await opened.send_bytes(wire.encode_hello(wire.Hello(os.urandom(16), wire.NOBODY, 0)))
        with contextlib.suppress(ConnectionError):  # it may hang up in the middle of a giant
            for message in messages:
                await (opened.send_bytes(message) if isinstance(message, bytes) else opened.send_str(message))
            async for _ in opened:
                pass
            codes.append(opened.close_code)
        return opened

    app = web.Application()
    app.router.add_get("/", serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    options = DialInOptions(backoff_s=0.01, backoff_max_s=0.02, refusals=2)
    dial = DialIn(Reach(f"http://127.0.0.1:{port}"), "s" * 43, Path("/nonexistent.sock"), options=options)
    try:
        with contextlib.suppress(DialInProtocolError):
            await dial.start()
        yield dial, codes
    finally:
        await dial.close()
        await runner.cleanup()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"short", wire.CLOSE_PROTOCOL),
        (wire.encode(wire.DATA, 3, 0, b"x"), wire.CLOSE_PROTOCOL),
        (wire.encode(wire.ACK, 0, 99), wire.CLOSE_PROTOCOL),
        (bytes(wire.MAX_MESSAGE + 1), wire.CLOSE_TOO_BIG),
        (bytes(1 << 20), wire.CLOSE_TOO_BIG),
        ("text", wire.CLOSE_PROTOCOL),
    ],
    ids=["short", "unopened", "ack", "one byte too big", "giant", "text"],
)
async def test_an_inside_that_breaks_the_protocol(message: bytes | str, code: int) -> None:
    async with lying([message]) as (dial, codes):
        error = await asyncio.wait_for(dial.wait_failed(), 10)
        assert isinstance(error, DialInProtocolError), error
        if code == wire.CLOSE_TOO_BIG:  # hung up with the rest unread, so the close code may be lost in a reset
            assert "exceeds limit" in error.what
            return
        await until(lambda: len(codes) == 2)
        assert codes == [code, code]


async def test_the_largest_message_is_not_too_large() -> None:
    full = wire.encode(wire.DATA, 1, 0, bytes(wire.CHUNK_BYTES))
    async with lying([wire.encode(wire.OPEN, 1), full]) as (dial, codes):
        await until(lambda: dial.stats().opened == 1)
        await asyncio.sleep(0.1)
        assert (dial.state, codes) == ("up", [])


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"short", wire.CLOSE_PROTOCOL),
        (wire.encode(wire.OPEN, 1), wire.CLOSE_PROTOCOL),
        (bytes(1 << 20), wire.CLOSE_TOO_BIG),
        ("text", wire.CLOSE_PROTOCOL),
    ],
    ids=["short", "open", "giant", "text"],
)
async def test_a_host_that_breaks_the_protocol(message: bytes | str, code: int, tmp_path: Path) -> None:
    """It has the secret, so it is a defect and no stranger: the link and its streams end, and a good host works."""
    async with rigged(tmp_path, start=False) as rig, aiohttp.ClientSession() as client:
        waiting = asyncio.create_task(exchange(rig, b"x"))
        url, headers = f"http://127.0.0.1:{rig.inside.dial_port}/", {wire.SECRET_HEADER: rig.inside.secret}
        async with client.ws_connect(url, headers=headers) as opened:
            await opened.send_bytes(wire.encode_hello(wire.Hello(os.urandom(16), wire.NOBODY, 0)))
            await (opened.send_bytes(message) if isinstance(message, bytes) else opened.send_str(message))
            with contextlib.suppress(ConnectionError):
                async for _ in opened:
                    pass
            assert opened.close_code in (code, 1006 if code == wire.CLOSE_TOO_BIG else code)
        with pytest.raises(ConnectionError):
            await waiting
        await rig.dial.start()
        async with await asyncio.start_unix_server(echo, rig.socket):
            assert await exchange(rig, b"fine") == b"fine"
