"""Strict keys: unknown 401, sealed 409, on every route, before the body is read; the secret is nowhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import openai
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.keys import mint_key
from drivetrain.gateway.server import GatewayServer
from drivetrain.tokens.codec import TokenCodec
from tests.gateway.conftest import StartRig

USER = {"role": "user", "content": "hi"}
ROUTES = [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/nothing"), ("POST", "/admin/sessions")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("key", ["", "wrong", "dt-" + "A" * 43])
async def test_unknown_key_is_401_everywhere(start_rig: StartRig, method: str, path: str, key: str) -> None:
    rig = await start_rig()
    session, _ = await rig.session()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession() as http,
        http.request(
            method, rig.url + path, headers=headers, data=b"not read" if method == "POST" else None
        ) as response,
    ):
        assert response.status == 401
        assert (await response.json())["error"]["code"] == "invalid_api_key"
    assert len(session.graph) == 0


async def test_key_in_each_header(start_rig: StartRig) -> None:
    rig = await start_rig()
    _, client = await rig.session()
    for headers in ({"x-api-key": client.api_key}, {"x-goog-api-key": client.api_key}):
        async with aiohttp.ClientSession() as http, http.get(f"{rig.url}/v1/models", headers=headers) as response:
            assert response.status == 200


async def test_unknown_route_is_404_with_a_key(start_rig: StartRig) -> None:
    rig = await start_rig()
    session, client = await rig.session()
    headers = {"Authorization": f"Bearer {client.api_key}"}
    async with aiohttp.ClientSession() as http:
        for path in ("/v1/embeddings", "/admin/sessions", "/"):
            async with http.post(rig.url + path, headers=headers, json={}) as response:
                assert response.status == 404
    assert len(session.graph) == 0


async def test_sealed_session_is_409_and_its_running_call_is_not_recorded(
    start_rig: StartRig, tiny_model: ModelDir
) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(hang=True)], tiny_model)
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    running = asyncio.create_task(client.chat.completions.create(model="m", messages=[USER]))
    while not engine.running:  # noqa: ASYNC110 (the engine has no event)
        await asyncio.sleep(0.01)
    await rig.gateway.seal_session(session.id)
    with pytest.raises(openai.ConflictError):
        await running
    with pytest.raises(openai.ConflictError):
        await client.chat.completions.create(model="m", messages=[USER])
    assert engine.running == 0
    assert len(session.graph) == 0
    assert session.events["in_flight_at_seal"] == 1


async def test_secret_is_not_on_disk(start_rig: StartRig) -> None:
    rig = await start_rig(["ok"])
    session, client = await rig.session()
    await client.chat.completions.create(model="m", messages=[USER])
    assert client.api_key not in session.id
    for file in rig.journal.parent.glob("journal*"):
        assert client.api_key.encode() not in file.read_bytes()


async def test_admin_surface(start_rig: StartRig) -> None:
    rig = await start_rig(["ok"])
    admin_key = mint_key()
    port = await rig.server.listen_admin(0, admin_key)
    url = f"http://127.0.0.1:{port}/admin"
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{url}/sessions", headers={"Authorization": "Bearer nope"}) as response:
            assert response.status == 401
        http.headers["Authorization"] = f"Bearer {admin_key}"
        async with http.post(f"{url}/sessions", json={"policy": {"max_turns": 3}, "labels": {"task": "t"}}) as response:
            opened = await response.json()
            assert response.status == 201 and opened["policy"]["max_turns"] == 3
        async with http.post(f"{url}/sessions", json={"policy": {"temperature": 0}}) as response:
            assert response.status == 400 and "temperature" in (await response.json())["error"]["message"]
        async with http.post(f"{url}/sessions", json={"polcy": {}}) as response:
            assert response.status == 400
        client = openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key=opened["api_key"], max_retries=0)
        await client.chat.completions.create(model="m", messages=[USER])
        async with http.get(f"{url}/sessions") as response:
            text = await response.text()
            assert opened["api_key"] not in text and opened["session_id"] in text
        async with http.get(f"{url}/sessions/{opened['session_id']}/rows") as response:
            assert len((await response.json())["rows"]) == 1
        async with http.delete(f"{url}/sessions/{opened['session_id']}") as response:
            assert (await response.json())["state"] == "sealed"
        async with http.get(f"{url}/sessions/unknown") as response:
            assert response.status == 404
    with pytest.raises(openai.ConflictError):
        await client.chat.completions.create(model="m", messages=[USER])


async def test_binding(start_rig: StartRig, tiny_model: ModelDir, codec: TokenCodec, tmp_path: Path) -> None:
    rig = await start_rig()
    other = GatewayServer(Gateway(rig.gateway.engine, codec, tmp_path / "other.sqlite", model="m"))
    with pytest.raises(ConfigError, match=f"port {rig.port} on 127.0.0.1 is in use"):
        await other.listen_tcp(rig.port)
    with pytest.raises(ConfigError, match="only loopback"):
        await other.listen_tcp(0, "0.0.0.0")
    with pytest.raises(ConfigError, match="admin key is shorter"):
        await other.listen_admin(0, "short")
    await other.aclose()
    with pytest.raises(ConfigError, match="written by another process"):
        Gateway(rig.gateway.engine, codec, rig.journal, model="m")
