"""The relay as a script of its own, as a container would run it."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drivetrain.sandboxes.relay import relay


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    number = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", relay.__file__, str(number), str(tmp_path / "s.sock")
    )
    for _ in range(500):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.close()
            break
        except OSError:
            await asyncio.sleep(0.01)
    yield number
    assert process.returncode is None, "the relay died"
    process.kill()
    await process.wait()


async def test_nobody_behind_it_closes_the_connection(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_back_pressure(port: int, tmp_path: Path) -> None:
    """A reader that does not read stops the writer: the relay buffers a bounded amount."""
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        if await reader.read(1) != b"g":
            return
        while sent < 64 << 20:
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536
        writer.close()

    async with await asyncio.start_unix_server(pour, tmp_path / "s.sock"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
        writer.write(b"g")
        await asyncio.sleep(1)
        assert 0 < sent < 32 << 20
        total = 0
        while chunk := await reader.read(1 << 20):
            total += len(chunk)
        assert total == 64 << 20
        writer.close()


async def test_more_connections_than_the_gateways_backlog(port: int, tmp_path: Path) -> None:
    """A full backlog on the Unix socket makes a connect fail at once; the relay tries again."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s.sock"))
    listener.listen(1)
    clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
    await asyncio.sleep(0.2)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(5))
        writer.close()

    async def ask(number: int) -> bytes:
        reader, writer = clients[number]
        writer.write(b"%05d" % number)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return answer

    async with await asyncio.start_unix_server(echo, sock=listener):
        answers = await asyncio.gather(*(ask(number) for number in range(30)))
    assert answers == [b"%05d" % number for number in range(30)]


async def test_a_reset_on_one_side_ends_the_other(port: int, tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()
        writer.close()

    async with await asyncio.start_unix_server(serve, tmp_path / "s.sock"):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"hello")
        await asyncio.sleep(0.1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        await asyncio.wait_for(gone.wait(), 5)
