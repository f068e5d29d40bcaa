"""Strict keys: unknown 401, sealed 409, on every route, before the body is read; the secret is nowhere."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import aiohttp
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.keys import AdminKeys, Scope, mint_key
from drivetrain.gateway.limits import RateLimit
from drivetrain.gateway.refusal import Refusal
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


async def test_a_journal_has_one_writer(start_rig: StartRig, codec: TokenCodec) -> None:
    rig = await start_rig()
    with pytest.raises(ConfigError, match="written by another process"):
        Gateway(rig.gateway.engine, codec, rig.journal, model="m")


@pytest.mark.parametrize("scope", ["agent", "trainer", "admin"])
def test_a_key_is_256_random_bits_behind_its_scope(scope: Scope) -> None:
    keys = {mint_key(scope) for _ in range(50)}
    assert len(keys) == 50
    for key in keys:
        head, secret = key[: len(f"dt-{scope}-")], key[len(f"dt-{scope}-") :]
        assert head == f"dt-{scope}-"
        assert len(base64.urlsafe_b64decode(secret + "=")) == 32


async def test_key_in_the_query_as_google_clients_send_it(start_rig: StartRig) -> None:
    rig = await start_rig()
    _, client = await rig.session()
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{rig.url}/v1/models", params={"key": client.api_key}) as response:
            assert response.status == 200
        async with http.get(f"{rig.url}/v1/models", params={"key": "wrong"}) as response:
            assert response.status == 401


async def test_a_key_is_checked_before_the_body_is_read(start_rig: StartRig) -> None:
    rig = await start_rig()
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(10_000):
            sent += 1
            yield b"x" * 100_000

    async with aiohttp.ClientSession() as http:
        try:
            async with http.post(f"{rig.url}/v1/chat/completions", data=body()) as response:
                assert response.status == 401
        except aiohttp.ClientConnectionError:
            pass  # hung up on while sending
    assert sent < 10_000


async def test_scopes(start_rig: StartRig) -> None:
    rig = await start_rig(["ok"])
    admin, trainer = mint_key("admin"), mint_key("trainer")
    port = await rig.server.listen_admin(0, admin, trainer_key=trainer)
    session, client = await rig.session()
    base = f"http://127.0.0.1:{port}"
    one = f"/admin/sessions/{session.id}"
    trainers: list[tuple[str, str]] = [
        ("POST", "/admin/sessions"),
        ("GET", "/admin/sessions"),
        ("GET", one),
        ("GET", f"{one}/rows"),
        ("GET", "/admin/health"),
    ]
    admins = [("POST", f"{one}/key"), ("DELETE", f"{one}/key")]

    async def status(method: str, path: str, key: str, where: str = base) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession() as http, http.request(method, where + path, headers=headers) as response:
            if response.status >= 400:
                assert (await response.json())["error"]["code"] in ("invalid_api_key", "forbidden", "not_found")
            return response.status

    for method, path in [*trainers, *admins, ("GET", "/nothing")]:
        for key in (client.api_key, "", mint_key("admin"), mint_key("trainer")):
            assert await status(method, path, key) == 401, (method, path)
    for method, path in trainers:
        assert await status(method, path, trainer) in (200, 201)
        assert await status(method, path, admin) in (200, 201)
    for method, path in admins:
        assert await status(method, path, trainer) == 403
    for method, path in admins:
        assert await status(method, path, admin) == 200
    for key in (admin, trainer):  # they open no model call
        assert await status("GET", "/v1/models", key, rig.url) == 401


def test_admin_keys_must_be_long_and_different() -> None:
    for keys in (("short",), ("a" * 16, "short"), ("",)):
        with pytest.raises(ConfigError, match="shorter than 16"):
            AdminKeys(*keys)
    with pytest.raises(ConfigError, match="is the admin key"):
        AdminKeys("a" * 16, "a" * 16)
    with pytest.raises(Refusal, match="unknown"):
        AdminKeys("a" * 16).require("", "trainer")  # no trainer key: an empty one opens nothing


async def test_revoked_and_replaced_keys(start_rig: StartRig, tiny_model: ModelDir) -> None:
    engine = ScriptedEngine.from_lines([ScriptedReply(hang=True)], tiny_model, then="ok")
    rig = await start_rig(engine=engine)
    session, client = await rig.session()
    running = asyncio.create_task(client.chat.completions.create(model="m", messages=[USER]))
    while not engine.running:  # noqa: ASYNC110 (the engine has no event)
        await asyncio.sleep(0.01)
    await rig.gateway.sessions.revoke(session.id)
    with pytest.raises(openai.APIStatusError):
        await running
    assert engine.running == 0
    with pytest.raises(openai.AuthenticationError, match="revoked"):
        await client.models.list()
    _, second = await rig.gateway.sessions.rotate(session.id)
    _, third = await rig.gateway.sessions.rotate(session.id)
    await rig.server.aclose()
    again = await start_rig(["after"], journal=rig.journal)  # the journal knows
    client.base_url = f"{again.url}/v1"  # type: ignore[assignment]
    for key in (client.api_key, second):
        client.api_key = key
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    client.api_key = third
    assert (await client.chat.completions.create(model="m", messages=[USER])).choices[0].message.content == "after"
    await again.gateway.seal_session(session.id)
    with pytest.raises(Refusal, match="sealed"):
        await again.gateway.sessions.rotate(session.id)


async def test_a_key_expires_and_a_new_one_lives_as_long(start_rig: StartRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await start_rig()
    session, client = await rig.session(key_ttl_s=100)
    now = session.created_at
    monkeypatch.setattr("drivetrain.gateway.sessions.time.time", lambda: now)
    store = rig.gateway.sessions
    now += 99
    assert store.authenticate(client.api_key) is session
    now += 1
    with pytest.raises(Refusal, match="expired") as caught:
        store.authenticate(client.api_key)
    assert (caught.value.status, caught.value.code) == (401, "api_key_expired")
    _, fresh = await store.rotate(session.id)
    now += 99
    assert store.authenticate(fresh) is session
    monkeypatch.undo()
    await rig.server.aclose()
    again = await start_rig(journal=rig.journal)
    assert again.gateway.sessions.authenticate(fresh).id == session.id
    assert again.gateway.sessions.get(session.id).key_issued_at > session.created_at


async def test_rate_limit_says_when_to_come_back(start_rig: StartRig) -> None:
    rig = await start_rig()
    _, client = await rig.session(rate_per_s=0.1, rate_burst=3)
    _, other = await rig.session(rate_per_s=0.1, rate_burst=3)
    for _ in range(3):
        await client.models.list()
    with pytest.raises(openai.RateLimitError) as caught:
        await client.models.list()
    assert caught.value.code == "rate_limited"
    assert 1 <= int(caught.value.response.headers["Retry-After"]) <= 10
    await other.models.list()  # another session's bucket


@given(gaps=st.lists(st.floats(0, 5), max_size=40), per_s=st.floats(0.1, 10), burst=st.integers(1, 5))
def test_no_window_has_more_than_the_burst_and_the_rate(gaps: list[float], per_s: float, burst: int) -> None:
    now = 0.0
    limit = RateLimit(per_s, burst, lambda: now)
    taken: list[float] = []
    for gap in gaps:
        now += gap
        try:
            limit.take()
        except Refusal as refusal:
            assert refusal.retry_after_s is not None
            now += refusal.retry_after_s + 1e-6
            limit.take()  # it was true
        taken.append(now)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + per_s * (taken[last] - taken[first]) + 1e-3


@pytest.mark.parametrize("field", ["engine_url", "llm_url", "base_url", "url", "engine"])
async def test_no_url_comes_in_with_a_session(start_rig: StartRig, field: str) -> None:
    rig = await start_rig()
    admin_key = mint_key("admin")
    port = await rig.server.listen_admin(0, admin_key)
    url = f"http://127.0.0.1:{port}/admin/sessions"
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {admin_key}"}) as http:
        at = {field: "http://192.0.2.1/"}
        for body in (at, {"policy": at}, {"policy": {"patience": at}}):
            async with http.post(url, json=body) as response:
                assert response.status == 400
                assert field in (await response.json())["error"]["message"]
    assert not list(rig.gateway.sessions)
