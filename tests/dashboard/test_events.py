"""The stream: snapshot, deltas, coming back, and a reader that does not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
from aiohttp import web

from drivetrain.dashboard import events
from drivetrain.dashboard.board import Board
from drivetrain.dashboard.events import EventStream
from drivetrain.dashboard.model import RolloutView, RunView
from drivetrain.dashboard.part import Dashboard
from drivetrain.gateway.admin import AdminPart, guarded_app
from drivetrain.gateway.keys import AdminKeys
from tests.dashboard.conftest import BEARER, KEY, Reader, Serve
from tests.dashboard.simulated import RUN, Simulated


class NoTraces:
    def page(self, rollout_id: str) -> bytes:
        raise NotImplementedError


@pytest.fixture
def board() -> Board:
    board = Board(RunView(name="r"))
    board.put(RolloutView(id="a"))
    board.commit()
    return board


def part(stream: EventStream) -> AdminPart:
    return AdminPart(routes=(web.get("/admin/events", stream.serve),))


async def test_snapshot_then_deltas_then_the_end(serve: Serve, http: aiohttp.ClientSession, board: Board) -> None:
    url = await serve([part(EventStream(board))])
    async with http.get(f"{url}/admin/events", headers=BEARER) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["Cache-Control"] == "no-store"
        reader = Reader(response)
        first = await reader.next()
        assert (first.name, first.id) == ("snapshot", f"{board.epoch}-1")
        assert first.event.run == RunView(name="r") and [view.id for view in first.event.rollouts] == ["a"]
        board.put(RolloutView(id="b", phase="agent", turns=2))
        board.commit()
        second = await reader.next()
        assert (second.name, second.id) == ("delta", f"{board.epoch}-2")
        assert second.event.rollouts == [RolloutView(id="b", phase="agent", turns=2)] and second.event.run is None
        board.put(RolloutView(id="b", turns=3))
        board.commit()
        board.close()
        assert (await reader.next()).event.rollouts[0].turns == 3  # what is left is told before the end
        assert (await reader.next()).name == "end"
        with pytest.raises(EOFError):
            await reader.next()


async def test_a_reader_that_comes_back_continues(serve: Serve, http: aiohttp.ClientSession, board: Board) -> None:
    url = await serve([part(EventStream(board))])
    board.put(RolloutView(id="b"))
    board.commit()

    async def first(last_id: str) -> tuple[str, list[str]]:
        async with http.get(f"{url}/admin/events", headers={**BEARER, "Last-Event-ID": last_id}) as response:
            heard = await Reader(response).next()
            return heard.name, [view.id for view in heard.event.rollouts]

    assert await first(f"{board.epoch}-1") == ("delta", ["b"])
    assert await first("feedbeef-1") == ("snapshot", ["a", "b"])  # the server was started again
    assert await first(f"{board.epoch}-77") == ("snapshot", ["a", "b"])


async def test_silence_is_broken(serve: Serve, http: aiohttp.ClientSession, board: Board) -> None:
    url = await serve([part(EventStream(board, heartbeat_s=0.02))])
    async with http.get(f"{url}/admin/events", headers=BEARER) as response:
        reader = Reader(response)
        assert [(await reader.next(comments=True)).name for _ in range(3)] == ["snapshot", ":", ":"]


async def test_readers_are_bounded_and_counted(
    serve: Serve, http: aiohttp.ClientSession, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_READERS", 2)
    stream = EventStream(board, heartbeat_s=0.02)
    url = await serve([part(stream)])
    open_ones = [await http.get(f"{url}/admin/events", headers=BEARER) for _ in range(2)]
    async with http.get(f"{url}/admin/events", headers=BEARER) as refused:
        assert (refused.status, refused.headers["Retry-After"]) == (503, "10")
    for response in open_ones:
        response.close()
    await until(lambda: stream.readers == 0)


async def test_a_slow_reader_holds_one_event_and_catches_up(serve: Serve, board: Board) -> None:
    """Every commit changes a megabyte; whoever does not read gets the latest state, not all that it missed."""
    stream = EventStream(board)
    transports: list[asyncio.Transport] = []

    async def watched(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        transports.append(request.transport)
        return await stream.serve(request)

    url = await serve([AdminPart(routes=(web.get("/admin/events", watched),))])
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    connection.setblocking(False)
    address = urlsplit(url)
    await asyncio.get_running_loop().sock_connect(connection, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 16)
    writer.write(f"GET /admin/events HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\nConnection: close\r\n\r\n".encode())
    await asyncio.wait_for(stream.arrived.wait(), 100)
    commits, most = 60, 0
    for number in range(commits):
        for name in range(1000):
            board.put(RolloutView(id=f"r{name}", turns=number, error="e" * 1000))
        board.commit()
        size = len(board.event(board.version - 1)[1])
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.sleep(0.002)
        most = max([most, *(transport.get_write_buffer_size() for transport in transports)])
    assert size > 1_000_000
    assert 0 < most <= size + 10_000  # one event, never a queue of them
    board.close()
    text = (await asyncio.wait_for(reader.read(-1), 100)).decode()
    writer.close()
    assert 1 < text.count("event: ") < commits / 2
    assert f'"turns":{commits - 1}' in text and "event: end" in text


async def test_a_reader_that_takes_nothing_is_let_go(serve: Serve, board: Board) -> None:
    stream = EventStream(board, stalled_s=0.2)
    url = urlsplit(await serve([part(stream)]))
    for name in range(2000):
        board.put(RolloutView(id=f"r{name}", error="e" * 4000))  # eight megabytes: no socket buffer takes it
    board.commit()
    reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=1 << 10)
    writer.write(f"GET /admin/events HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY}\r\n\r\n".encode())
    await asyncio.wait_for(stream.arrived.wait(), 100)
    await until(lambda: stream.readers == 0)
    assert len(await asyncio.wait_for(reader.read(-1), 100)) < 8_000_000  # the connection is closed, the rest dropped
    writer.close()


async def test_a_thousand_rollouts(serve: Serve, http: aiohttp.ClientSession) -> None:
    """One event per update; who reads all of it ends with what the board holds."""
    source = Simulated(1000)
    board = Board(RUN)
    dashboard = Dashboard(board, source, NoTraces(), tick_s=3600)
    url = await serve([dashboard.part()])
    known: dict[str, RolloutView] = {}
    async with http.get(f"{url}/admin/events", headers=BEARER) as response:
        reader = Reader(response)
        sizes: list[int] = []
        for _ in range(25):
            heard = await reader.next()
            event = heard.event
            sizes.append(len(heard.data))
            known |= {view.id: view for view in event.rollouts}
            assert not sizes[1:] or len(event.rollouts) <= 200  # those that run, not all
            await dashboard.update()
        while board.version > int(heard.id.partition("-")[2]):
            heard = await reader.next()
            known |= {view.id: view for view in heard.event.rollouts}
    assert known == {view.id: view for view in board.rollouts()}
    assert len(known) == 1000 and sizes[0] < 400_000 and max(sizes[1:]) < 60_000
    assert sum(board.summary.phases.values()) == 1000


async def test_a_source_that_fails_is_logged_and_asked_again(
    serve: Serve, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Simulated):
        calls = 0

        async def update(self, board: Board, summary: object) -> None:
            self.calls += 1
            if self.calls == 2:
                raise OSError("the disk is gone")
            await super().update(board, summary)  # type: ignore[arg-type]

    source = Failing(8)
    url = await serve([Dashboard(Board(RUN), source, NoTraces(), tick_s=0.01).part()])
    async with http.get(f"{url}/admin/events", headers=BEARER) as response:
        reader = Reader(response)
        while source.calls < 4:
            await reader.next()
    assert "could not be brought up to date" in caplog.text


async def test_closing_tells_the_last_state(http: aiohttp.ClientSession) -> None:
    source = Simulated(8)
    runner = web.AppRunner(guarded_app(AdminKeys(KEY), [Dashboard(Board(RUN), source, NoTraces(), tick_s=3600).part()]))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with http.get(f"{url}/admin/events", headers=BEARER) as response:
        reader = Reader(response)
        assert (await reader.next()).name == "snapshot"
        source.views["last"] = RolloutView(id="last")
        closing = asyncio.create_task(runner.cleanup())
        told: set[str] = set()
        while (heard := await reader.next()).name != "end":
            told |= {view.id for view in heard.event.rollouts}
        assert "last" in told
        await closing
    assert source.closed


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_events_leave_out_what_is_as_usual() -> None:
    assert msgspec.json.encode(RolloutView(id="a")) == b'{"id":"a"}'
