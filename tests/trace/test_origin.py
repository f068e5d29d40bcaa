"""Identity headers: recorded with the turn, never the key; journals without them stay readable."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import aiohttp
import msgspec

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.server import GatewayServer
from drivetrain.journal.reader import JournalReader
from drivetrain.tokens.codec import TokenCodec


async def test_headers_are_kept_with_the_turn(tmp_path: Path, codec: TokenCodec, tiny_model: ModelDir) -> None:
    path = tmp_path / "journal.sqlite"
    gateway = Gateway(ScriptedEngine.from_lines(["done"], tiny_model), codec, path, model="m")
    server = GatewayServer(gateway)
    session, key = await gateway.open_session(SessionPolicy(model="m"))
    port = await server.listen_tcp(0)
    headers = {
        "Authorization": f"Bearer {key}",
        "X-Claude-Code-Agent-Id": "a1",
        "x-session-id": f"of {key}",
        "cookie": "c",
    }
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=headers) as response,
    ):
        assert response.status == 200, await response.text()
    await server.aclose()
    stored = JournalReader(path).graph(session.id, session.graph.session_tag)
    assert stored[0].origin == {"x-claude-code-agent-id": "a1"}
    assert all(key.encode() not in file.read_bytes() for file in tmp_path.iterdir())

    with sqlite3.connect(path) as db:
        record = msgspec.json.decode(db.execute("SELECT record FROM turns").fetchone()[0])
        del record["origin"]
        db.execute("UPDATE turns SET record = ?", (msgspec.json.encode(record),))
        db.execute("UPDATE meta SET value = '2'")  # of a time that had neither origins nor checksums
    assert JournalReader(path).graph(session.id, session.graph.session_tag)[0].origin == {}
