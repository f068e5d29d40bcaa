"""A client that hangs up just before its reply is written has not got it (design invariant 5)."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from aiohttp import web

from drivetrain.gateway.dialects.openai_chat import OpenAIChat
from drivetrain.trace.sample import rows_of
from tests.gateway.conftest import StartRig


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hangs_up", [True, False])
async def test_a_reply_behind_a_hang_up_is_not_delivered(
    start_rig: StartRig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
    hangs_up: bool,
) -> None:
    """The event loop is busy while the client closes, so that the end of the connection is read after the write."""
    rig = await start_rig(["one"])
    session, client = await rig.session()
    body = json.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.api_key}\r\n"
    raw = socket.create_connection(("127.0.0.1", rig.port))
    name = "events" if stream else "encode"
    real = getattr(OpenAIChat, name)

    def closing(*arguments: Any, **options: Any) -> Any:
        if hangs_up:
            raw.close()
        return real(*arguments, **options)

    monkeypatch.setattr(OpenAIChat, name, closing)
    try:
        raw.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(60):
            while not (raw.fileno() == -1 if hangs_up else any(turn.delivered for turn in session.graph)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        if not hangs_up:
            await asyncio.to_thread(raw.recv, 1 << 16)  # unread bytes would make its end a reset
    finally:
        raw.close()
    await rig.server.aclose()  # whatever was still going on with the connection has ended
    (turn,) = session.graph
    assert turn.delivered is not hangs_up
    assert len(rows_of(session.graph)) == (not hangs_up)
    own = [record for record in caplog.records if record.name.startswith(("drivetrain", "aiohttp"))]
    assert [record.getMessage() for record in own if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_closes_as_soon_as_it_has_the_reply_has_got_it(
    start_rig: StartRig, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """It is quicker than the event loop: its end is there before the write returns."""
    rig = await start_rig(["one"])
    session, client = await rig.session()
    body = json.dumps({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.api_key}\r\n"
    raw = socket.create_connection(("127.0.0.1", rig.port))
    kind = web.StreamResponse if stream else web.Response
    real = kind.write_eof
    seen = b""

    async def taken(self: Any, *arguments: Any) -> None:
        nonlocal seen
        await real(self, *arguments)
        if raw.fileno() != -1:
            seen = raw.recv(1 << 16)
            raw.close()

    monkeypatch.setattr(kind, "write_eof", taken)
    try:
        raw.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(60):
            while raw.fileno() != -1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        raw.close()
    await rig.server.aclose()
    assert b"200 OK" in seen
    (turn,) = session.graph
    assert turn.delivered
    assert len(rows_of(session.graph)) == 1
