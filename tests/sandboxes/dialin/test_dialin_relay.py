"""A good link: any HTTP, many streams, large bodies, back-pressure, resets; and what must not get through."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import os
import socket
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from drivetrain.errors import ConfigError
from drivetrain.sandboxes import Reach
from drivetrain.sandboxes.relay import dialin
from drivetrain.sandboxes.relay.dialin import DialIn, inside_argv, inside_script, new_secret, wire
from drivetrain.sandboxes.relay.dialin.package import _MODULES

from .kit import echo, exchange, rigged, until

ROOM = Path(dialin.__file__).parent
PYTHONS = sorted({*Path("/root/.pyenv/versions").glob("3.9.*/bin/python"), Path(sys.executable)})


async def test_http_through_the_relay(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        for part in (await request.read(), request.headers["Authorization"].encode()):
            await stream.write(part)
        return stream

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    async with rigged(tmp_path) as rig, aiohttp.ClientSession() as client:
        await web.UnixSite(runner, str(rig.socket)).start()
        for _ in range(3):
            async with client.post(
                f"http://127.0.0.1:{rig.port}/v1/chat/completions",
                data=b"hello ",
                headers={"Authorization": "Bearer k"},
            ) as reply:
                assert await reply.read() == b"hello Bearer k"
        stats = rig.dial.stats()
        assert (stats.state, stats.links, stats.opened, stats.streams) == ("up", 1, 1, 1)  # kept alive: one stream
        assert stats.bytes_in > 0 and stats.bytes_out > 0
        await runner.cleanup()
        await until(lambda: rig.dial.stats().streams == 0)


async def test_hundreds_of_streams_at_once(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig, await asyncio.start_unix_server(echo, rig.socket, backlog=8):
        bodies = [os.urandom(1 + number * 7) for number in range(300)]
        assert await asyncio.gather(*(exchange(rig, body) for body in bodies)) == bodies
        await until(lambda: rig.dial.stats().streams == 0)
        assert rig.dial.stats().opened == 300


async def test_a_body_of_a_hundred_megabytes(tmp_path: Path) -> None:
    """While other streams are answered."""
    blocks, block = 100, os.urandom(1 << 20)

    async def digest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = hashlib.sha256()
        while data := await reader.read(1 << 20):
            found.update(data)
        writer.write(found.digest())
        writer.close()

    async with rigged(tmp_path) as rig, await asyncio.start_unix_server(digest, rig.socket):
        reader, writer = await rig.connect()
        expected = hashlib.sha256()
        for number in range(blocks):
            writer.write(block)
            await writer.drain()
            expected.update(block)
            if number % 25 == 10:
                assert await exchange(rig, b"small") == hashlib.sha256(b"small").digest()
        writer.write_eof()
        assert await reader.read(-1) == expected.digest()
        assert rig.dial.stats().bytes_in == blocks * len(block) + 4 * len(b"small")
        writer.close()


async def test_a_reader_that_does_not_read_stops_its_own_stream_only(tmp_path: Path) -> None:
    poured = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal poured
        if await reader.read(1) != b"p":
            await echo(reader, writer)
            return
        while poured < 32 << 20:
            writer.write(bytes(65536))
            await writer.drain()
            poured += 65536
        writer.close()

    async with rigged(tmp_path) as rig, await asyncio.start_unix_server(pour, rig.socket):
        reader, writer = await rig.connect()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        writer.write(b"p")
        before = -1
        while poured != before or not poured:
            before = poured
            await asyncio.sleep(0.3)
        assert poured < 16 << 20
        assert await exchange(rig, b"e" + bytes(500_000)) == bytes(500_000)
        inside = rig.inside.process
        assert inside is not None
        resident = int(Path(f"/proc/{inside.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert resident < 100 << 20
        total = 0
        while data := await reader.read(1 << 20):
            total += len(data)
        assert total == 32 << 20
        writer.close()


async def test_the_first_byte_does_not_wait_for_a_timer(tmp_path: Path) -> None:
    """Nagle with delayed acknowledgement costs 40 ms for every new stream; the best of some shows it on any machine."""
    async with rigged(tmp_path) as rig, await asyncio.start_unix_server(echo, rig.socket):
        times = []
        for _ in range(12):
            began = time.perf_counter()
            reader, writer = await rig.connect()
            writer.write(b"x")
            await reader.read(1)
            times.append(time.perf_counter() - began)
            writer.close()
        assert min(times) < 0.03


async def test_half_close_either_way(tmp_path: Path) -> None:
    async def last_word(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"first ")
        writer.write_eof()
        assert await reader.read(-1) == b"question"
        writer.close()
        heard.set()

    heard = asyncio.Event()
    async with rigged(tmp_path) as rig, await asyncio.start_unix_server(last_word, rig.socket):
        reader, writer = await rig.connect()
        assert await reader.read(-1) == b"first "
        writer.write(b"question")
        writer.write_eof()
        await asyncio.wait_for(heard.wait(), 10)
        await until(lambda: rig.dial.stats().streams == 0)
        assert rig.dial.stats().aborted == 0
        writer.close()


@pytest.mark.case("F4")
async def test_a_harness_that_goes_away_cancels_the_call(tmp_path: Path) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def never(request: web.Request) -> web.Response:
        await request.read()
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return web.Response()

    app = web.Application()
    app.router.add_post("/", never)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    async with rigged(tmp_path) as rig, aiohttp.ClientSession() as client:
        await web.UnixSite(runner, str(rig.socket)).start()
        call = asyncio.create_task(client.post(f"http://127.0.0.1:{rig.port}/", data=b"x"))
        await asyncio.wait_for(started.wait(), 10)
        call.cancel()
        await asyncio.wait_for(cancelled.wait(), 10)
        await runner.cleanup()


@pytest.mark.parametrize("end", ["harness", "gateway"])
async def test_a_reset_passes_through(end: str, tmp_path: Path) -> None:
    broken = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if end == "gateway":
            writer.write(b"half an ans")
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.get_extra_info("socket")  # unread input turns the close of a Unix socket into a reset
            writer.transport.abort()
            return
        try:
            while await reader.read(1000):
                pass
        except OSError:
            pass
        broken.set()
        writer.close()

    async with rigged(tmp_path) as rig, await asyncio.start_unix_server(serve, rig.socket, limit=1):
        reader, writer = await rig.connect()
        if end == "harness":
            writer.write(b"q")
            await asyncio.sleep(0.1)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()
            await asyncio.wait_for(broken.wait(), 10)
        else:
            writer.write(b"q" + bytes(2 << 20))
            with pytest.raises(ConnectionError):
                while await reader.read(1000):
                    pass
            writer.close()
        await until(lambda: rig.dial.stats().streams == 0)
        assert rig.dial.stats().aborted == 1


async def test_a_gateway_that_is_down_refuses_and_one_that_comes_back_serves(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        for _ in range(2):
            reader, writer = await rig.connect()
            with pytest.raises(ConnectionError):
                await reader.read(1)
            writer.close()
            async with await asyncio.start_unix_server(echo, rig.socket):
                assert await exchange(rig, b"hello") == b"hello"
            rig.socket.unlink(missing_ok=True)
        assert rig.dial.stats().links == 1


async def test_a_harness_that_starts_before_the_host_has_dialled(tmp_path: Path) -> None:
    async with rigged(tmp_path, start=False) as rig, await asyncio.start_unix_server(echo, rig.socket):
        early = asyncio.create_task(exchange(rig, b"early"))
        await asyncio.sleep(0.2)
        assert not early.done()
        await rig.dial.start()
        assert await early == b"early"


async def test_closing_the_host_ends_the_harness_connections_at_once(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig, await asyncio.start_unix_server(echo, rig.socket):
        reader, writer = await rig.connect()
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        await rig.dial.close()
        await rig.dial.close()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(reader.read(1), 10)
        writer.close()
        assert rig.dial.state == "closed"


# -- who may dial


async def raw(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(-1), 10)
    writer.close()
    return answer


async def test_without_the_secret_nothing_is_learned(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        upgrade = f"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{key}"
        asked = [
            "GET / HTTP/1.1\r\n\r\n",
            "POST /anything HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
            f"{upgrade}\r\n",
            f"{upgrade}{wire.SECRET_HEADER}: {rig.inside.secret[:-1]}\r\n\r\n",
            "nonsense\r\n\r\n",
        ]
        answers = {await raw(rig.inside.dial_port, text.encode()) for text in asked}
        assert answers == {b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"}
        assert await raw(rig.inside.dial_port, b"x" * 100_000 + b"\r\n\r\n") == b""
        assert rig.dial.stats().links == 1 and rig.dial.state == "up"


async def test_the_secret_file_must_be_private_and_is_removed(tmp_path: Path) -> None:
    script, secret = tmp_path / "dialin.pyz", tmp_path / "secret"
    script.write_bytes(inside_script())
    secret.write_text(new_secret())
    argv = inside_argv(
        str(script), secret_file=str(secret), relay_port=0, dial_port=0, dial_host="127.0.0.1", python=sys.executable
    )
    for content, mode, message in ((new_secret(), 0o644, b"0600"), ("tiny-secret", 0o600, b"shorter")):
        secret.write_text(content)
        secret.chmod(mode)
        process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
        _, errors = await process.communicate()
        assert process.returncode == 1
        assert message in errors and b"Traceback" not in errors
        assert content.encode() not in errors
    with pytest.raises(ConfigError):
        DialIn(Reach("http://127.0.0.1:1"), "short", tmp_path)
    with pytest.raises(ConfigError):
        DialIn(Reach("http://127.0.0.1:1"), new_secret(), tmp_path / ("x" * 100))


# -- the file that goes into the sandbox


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parent.parent.name.rpartition(".")[0] or "own")
async def test_the_script_runs_alone(python: Path, tmp_path: Path) -> None:
    async with rigged(tmp_path, python=str(python)) as rig, await asyncio.start_unix_server(echo, rig.socket):
        body = os.urandom(300_000)
        assert await exchange(rig, body) == body
        rig.proxy.cut()
        assert await exchange(rig, body) == body


def test_the_script_is_always_the_same_and_needs_only_the_standard_library() -> None:
    assert inside_script() == inside_script.__wrapped__()
    for name in _MODULES:
        tree = ast.parse((ROOM / f"{name}.py").read_text(), feature_version=(3, 9))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= set(sys.stdlib_module_names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module in {"__future__", "typing", "collections", "collections.abc"}
            elif isinstance(node, ast.ImportFrom):
                assert node.module is None or node.module in _MODULES


def test_the_secret_is_not_in_the_command_line() -> None:
    argv = inside_argv("/opt/dialin.pyz", secret_file="/run/s", relay_port=1, dial_port=2, resume_s=5)
    assert argv[:4] == ["python3", "-I", "-S", "/opt/dialin.pyz"]
    assert all(isinstance(word, str) for word in argv)
