"""One session's key opens one session: nothing of another one is read, continued, replayed or ended with it.

Keys themselves (unknown, revoked, replaced, expired, sealed, scopes, which headers) are in
``tests/gateway/test_keys.py``.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply, texts
from drivetrain.gateway.dialects.openai_responses.ids import seal
from drivetrain.gateway.keys import AdminKeys, mint_key
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.sessions import Session
from tests.gateway.conftest import BASH, Rig, StartRig, bash_call
from tests.gateway.raw import Answer, Wire

SECRET = "PLANTED-in-the-reply-of-A"


class Client:
    """A session and its client."""

    def __init__(self, rig: Rig, session: Session, key: str) -> None:
        self.rig, self.session, self.key = rig, session, key

    async def post(self, path: str, body: Any, **headers: str) -> Answer:
        wire = await Wire.open(self.rig.port)
        named = {"Authorization": f"Bearer {self.key}", **headers}
        answer = await wire.post(path, msgspec.json.encode(body), named)
        await wire.close()
        return answer


@pytest.fixture
async def pair(start_rig: StartRig, tiny_model: ModelDir) -> tuple[Client, Client]:
    """Two sessions of one gateway; the policy of A says a secret and calls a tool, B's says ``mine``."""

    def say(_ids: Any, prompt: str, _index: int) -> str:
        return f"{SECRET} {bash_call('ls')}" if "I am A" in prompt else "mine"

    rig = await start_rig(engine=ScriptedEngine(tiny_model, say))
    clients = []
    for _ in range(2):
        session, key = await rig.gateway.open_session(SessionPolicy(model="policy"))
        clients.append(Client(rig, session, key))
    return clients[0], clients[1]


RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
TOOL = {"type": "function", **BASH["function"]}
AS_A = {
    "model": "m",
    "input": "I am A",
    "tools": [TOOL],
    "include": ["reasoning.encrypted_content"],
}


async def test_ids_of_another_sessions_response_say_nothing(pair: tuple[Client, Client]) -> None:
    """``previous_response_id``, item references and sealed reasoning are looked up in the caller's session only."""
    a, b = pair
    served = (await a.post(RESPONSES, AS_A)).json()
    assert SECRET in msgspec.json.encode(served).decode()
    (turn,) = a.session.graph
    turn.reply = msgspec.structs.replace(turn.reply, reasoning=SECRET)  # this model's parser reads none
    unknown = await b.post(RESPONSES, {"model": "m", "input": "go on", "previous_response_id": served["id"]})
    assert (unknown.status, unknown.json()["error"]["code"]) == (400, "previous_response_not_found")
    for item in served["output"]:
        answer = await b.post(RESPONSES, {"model": "m", "input": [{"type": "item_reference", "id": item["id"]}]})
        assert answer.status == 400 and SECRET.encode() not in answer.body
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": seal(turn.reply.id)}
    answer = await b.post(RESPONSES, {"model": "m", "input": [{"role": "user", "content": "hi"}, sealed]})
    assert answer.status in (200, 400) and SECRET.encode() not in answer.body
    engine: Any = b.rig.gateway.engine
    seen = [
        text
        for call, text in zip(engine.calls, texts(engine.calls, engine), strict=True)
        if call.session_id == b.session.id
    ]
    assert not any(SECRET in text for text in seen)
    assert a.session.conversation(turn.reply.id) and not b.session.conversation(turn.reply.id)
    go_on = {"model": "m", "input": "go on", "previous_response_id": served["id"]}
    assert (await a.post(RESPONSES, go_on)).status == 200  # its own session knows it


async def test_a_call_id_of_another_session_is_no_proof(pair: tuple[Client, Client]) -> None:
    """Tool-call ids are watermarks; one that names another session's turn continues nothing and finds nothing."""
    a, b = pair
    first = {"model": "m", "messages": [{"role": "user", "content": "I am A"}], "tools": [BASH]}
    said = (await a.post(CHAT, first)).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "x"}
    bare = {"role": "assistant", "content": None, "tool_calls": said["tool_calls"]}
    stolen = {**first, "messages": [{"role": "user", "content": "I am B"}, bare, result]}
    answer = await b.post(CHAT, stolen)
    assert answer.status == 200 and SECRET.encode() not in answer.body
    assert [turn.link for turn in b.session.graph] == ["root"]
    await a.post(CHAT, {**first, "messages": [*first["messages"], said, result]})
    assert [turn.link for turn in a.session.graph] == ["root", "linear"]


async def test_an_equal_request_of_another_session_gets_no_replay(pair: tuple[Client, Client]) -> None:
    """Same bytes, same idempotency key, said to be a retry: an answer is replayed inside its session only."""
    a, b = pair
    body = {"model": "m", "messages": [{"role": "user", "content": "who am I?"}]}
    marks = {"Idempotency-Key": "one", "x-stainless-retry-count": "1", "x-session-id": "same"}
    answers = [(await client.post(CHAT, body, **marks)).json() for client in (a, a, b)]
    assert answers[0]["id"] == answers[1]["id"] != answers[2]["id"]
    assert (len(a.session.graph), len(b.session.graph)) == (1, 1)


async def test_naming_another_session_changes_nothing(pair: tuple[Client, Client]) -> None:
    """The key alone says whose call it is, whatever headers, fields or a second key in another place say."""
    a, b = pair
    body = {
        "model": a.session.id,
        "messages": [{"role": "user", "content": "hi"}],
        "session_id": a.session.id,
        "user": a.session.id,
        "metadata": {"session_id": a.session.id},
    }
    named = dict.fromkeys(("x-session-id", "session-id", "X-Drivetrain-Session", "thread-id"), a.session.id)
    assert (await b.post(CHAT, body, **named)).status == 200
    assert (
        await b.post(CHAT + f"?key={a.key}&session={a.session.id}", body, **{"x-goog-api-key": a.key})
    ).status == 200
    assert (len(a.session.graph), len(b.session.graph)) == (0, 2)


async def test_a_flood_of_one_session_is_its_own(start_rig: StartRig, tiny_model: ModelDir) -> None:
    """Its line is full and its calls are refused; another session's call is served meanwhile."""

    def say(_ids: Any, prompt: str, _index: int) -> Any:
        return ScriptedReply(hang=True) if "LOUD" in prompt else "done"

    rig = await start_rig(engine=ScriptedEngine(tiny_model, say))
    policy = SessionPolicy(model="policy", max_concurrent_calls=1, max_queued_calls=2)
    loud = Client(rig, *await rig.gateway.open_session(policy))
    calm = Client(rig, *await rig.gateway.open_session(policy))
    flood = [
        asyncio.create_task(loud.post(CHAT, {"model": "m", "messages": [{"role": "user", "content": f"LOUD {n}"}]}))
        for n in range(12)
    ]
    async with asyncio.timeout(60):
        while sum(task.done() for task in flood) < 12 - 3:  # noqa: ASYNC110 (bounded)
            await asyncio.sleep(0.01)
    assert (await calm.post(CHAT, {"model": "m", "messages": [{"role": "user", "content": "x"}]})).status == 200
    await rig.gateway.seal_session(loud.session.id)
    statuses = sorted(answer.status for answer in await asyncio.gather(*flood))
    assert statuses == [409] * 3 + [429] * 9


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other comparison lets an admin key in: ``hmac.compare_digest`` decides, over digests, for both keys."""
    admin, trainer = mint_key("admin"), mint_key("trainer")
    keys = AdminKeys(admin, trainer)
    assert keys.require(admin, "admin") == "admin"
    compared: list[tuple[bytes, bytes]] = []

    def never(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return False

    monkeypatch.setattr(hmac, "compare_digest", never)
    with pytest.raises(Refusal):
        keys.require(admin, "trainer")
    assert len(compared) == 2 and all(len(one) == len(other) == 32 for one, other in compared)


async def test_session_keys_too(pair: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is found by the digest of what was sent, which nobody can steer towards a stored one byte by byte."""
    a, _ = pair
    store = a.rig.gateway.sessions
    assert store.authenticate(a.key) is a.session
    monkeypatch.setattr(hmac, "compare_digest", lambda *_: False)
    with pytest.raises(Refusal):
        store.authenticate(a.key)


@pytest.fixture
async def canary() -> AsyncIterator[tuple[str, list[str]]]:
    """A server nobody should call; its URL and what was asked of it."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).decode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    server.close()


def _with_urls(url: str) -> list[tuple[str, Any]]:
    """Requests of each API that name a URL wherever the API knows one."""
    picture = {"type": "image", "source": {"type": "url", "url": url}}
    part = {"type": "image_url", "image_url": {"url": url}}
    media = [{"type": "input_image", "image_url": url}, {"type": "input_file", "file_url": url}]
    hi = {"role": "user", "content": "hi"}
    return [
        (CHAT, {"model": url, "messages": [{"role": "user", "content": [part]}], "base_url": url}),
        (CHAT, {"model": "m", "messages": [{"role": "user", "content": f"![x]({url})"}], "web_search_options": {}}),
        (RESPONSES, {"model": "m", "input": [{"role": "user", "content": media}]}),
        (RESPONSES, {"model": "m", "input": "hi", "tools": [{"type": "mcp", "server_label": "x", "server_url": url}]}),
        ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [picture]}]}),
        (
            "/v1/messages",
            {
                "model": "m",
                "max_tokens": 9,
                "messages": [hi],
                "mcp_servers": [{"type": "url", "name": "x", "url": url}],
            },
        ),
        (
            "/v1beta/models/m:generateContent",
            {
                "contents": [{"parts": [{"fileData": {"fileUri": url, "mimeType": "image/png"}}]}],
                "tools": [{"urlContext": {}}],
            },
        ),
    ]


@pytest.mark.parametrize("images", ["refuse", "placeholder"])
async def test_no_url_of_a_request_is_fetched(start_rig: StartRig, canary: tuple[str, list[str]], images: Any) -> None:
    """Nor do headers that proxies believe change where a call goes."""
    url, asked = canary
    rig = await start_rig()
    client = Client(rig, *await rig.gateway.open_session(SessionPolicy(model="policy", images=images)))
    address = url.removeprefix("http://")
    headers = {
        "Forwarded": f"host={address}",
        "X-Forwarded-Host": address,
        "X-Original-URL": url,
        "X-Rewrite-URL": "/admin/sessions",
        "OpenAI-Base-URL": url,
        "x-upstream-url": url,
        "Referer": url,
    }
    statuses = []
    for path, body in _with_urls(url):
        answer = await client.post(path, body, **headers)
        assert answer.status in (200, 400), answer.body
        statuses.append(answer.status)
    assert 200 in statuses
    await asyncio.sleep(0)
    assert asked == []
    async with aiohttp.ClientSession() as http:  # the canary sings
        with pytest.raises(aiohttp.ClientError):
            await http.get(url)
    assert asked
