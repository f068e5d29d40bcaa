"""The allow-list: what is no model call is 404 in the caller's API after its key was checked, and leaves no trace."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from drivetrain.gateway.policy import SessionPolicy
from drivetrain.journal.reader import JournalReader
from tests.gateway.conftest import Rig, StartRig, bash_call

PATHS = [
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/chat/completions"),
    ("DELETE", "/v1/chat/completions"),
    ("POST", "/v1/chat/completions/x"),
    ("POST", "/v1/models"),
    ("GET", "/v1/messages"),
    ("POST", "/v1/messages/batches"),
    ("GET", "/v1/responses/resp_1"),
    ("POST", "/v1beta/models/m:embedContent"),
    ("POST", "/v1beta/models/m"),
    ("GET", "/v1beta/cachedContents"),
    ("GET", "/"),
    ("HEAD", "/"),
    ("HEAD", "/v1/models"),
    ("OPTIONS", "/v1/chat/completions"),
    ("POST", "/nonsense"),
    ("GET", "/v1//models"),
    ("POST", "/admin/sessions"),
    ("GET", "/admin/health"),
    ("GET", "/metrics"),
]
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "contents": [], "input": "hi"})


def openai_shape(error: Any, code: str) -> bool:
    return error["error"]["code"] == code and error["error"]["type"] == "invalid_request_error"


def anthropic_shape(error: Any, code: str) -> bool:
    kinds = {"not_found": "not_found_error", "invalid_api_key": "authentication_error"}
    return error["type"] == "error" and error["error"]["type"] == kinds[code]


def google_shape(error: Any, code: str) -> bool:
    statuses = {"not_found": (404, "NOT_FOUND"), "invalid_api_key": (401, "UNAUTHENTICATED")}
    return (error["error"]["code"], error["error"]["status"]) == statuses[code]


CALLERS = {
    "openai": (lambda key: {"Authorization": f"Bearer {key}"}, openai_shape),
    "anthropic": (lambda key: {"x-api-key": key, "anthropic-version": "2023-06-01"}, anthropic_shape),
    "google": (lambda key: {"x-goog-api-key": key}, google_shape),
}


def shape_of(path: str, caller: str) -> Any:
    """A path of one API is answered in it; every other, and one of Google's prefix, as the caller's headers say."""
    if path.startswith(("/v1/chat/", "/v1/responses")):
        return openai_shape
    if path.startswith("/v1/messages"):
        return anthropic_shape
    if path.startswith("/v1beta/") and caller == "openai":
        return google_shape
    return CALLERS[caller][1]


@pytest.mark.parametrize("caller", list(CALLERS))
async def test_unknown_routes(start_rig: StartRig, caller: str) -> None:
    """One rig for all paths: nothing of them may be left in the graph, the journal or the session's counts."""
    rig = await start_rig(["ok"])
    session, client = await rig.session()
    headers = CALLERS[caller][0]
    before = journal_of(rig, session.id)
    async with aiohttp.ClientSession() as http:
        for method, path in PATHS:
            for key, status, code in (("nobody", 401, "invalid_api_key"), (client.api_key, 404, "not_found")):
                body = BODY if method == "POST" else None
                async with http.request(method, rig.url + path, headers=headers(key), data=body) as response:
                    raw = await response.read()
                    assert response.status == status, (method, path, key)
                    assert response.content_type == "application/json"
                assert method == "HEAD" or shape_of(path, caller)(json.loads(raw), code), (method, path, raw)
        async with http.get(rig.url + "/v1/embeddings") as response:
            assert response.status == 401
    assert len(session.graph) == 0
    assert session.events == {}
    assert session.memo.decoded == 0
    assert journal_of(rig, session.id) == before


def journal_of(rig: Rig, session_id: str) -> Any:
    reader = JournalReader(rig.journal)
    return reader.events(session_id), len(reader.graph(session_id, "0" * 8)), len(list(reader.sessions()))


ROUTES = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1beta/models/m:generateContent",
    "/v1beta/models/m:streamGenerateContent?alt=sse",
    "/v1beta/models/m:countTokens",
    "/v1/models/m:generateContent",
    "/nonsense",
]


@pytest.mark.parametrize("route", ROUTES)
async def test_wrong_key_is_refused_before_the_body_is_read(start_rig: StartRig, route: str) -> None:
    """A gigabyte is announced and none of it sent: the answer comes all the same."""
    rig = await start_rig()
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(
        f"POST {route} HTTP/1.1\r\nHost: x\r\nx-api-key: nobody\r\nContent-Type: application/json\r\n"
        f"Content-Length: 1000000000\r\n\r\n".encode()
    )
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    writer.close()
    assert head.startswith(b"HTTP/1.1 401 ")


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 5}),
    ("/v1/responses", {"input": "hi", "include": ["message.output_text.logprobs"]}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}),
    (
        "/v1beta/models/m:generateContent",
        {"contents": [{"parts": [{"text": "hi"}]}], "generationConfig": {"responseLogprobs": True, "logprobs": 5}},
    ),
    ("/v1beta/models/m:streamGenerateContent?alt=sse", {"contents": [{"parts": [{"text": "hi"}]}]}),
    ("/v1beta/models/m:streamGenerateContent", {"contents": [{"parts": [{"text": "hi"}]}]}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), CALLS)
async def test_replies_carry_no_token_ids_and_no_logprobs(
    start_rig: StartRig, path: str, body: dict[str, Any], stream: bool
) -> None:
    """Also when they are asked for (design section 5: what is trained never enters the sandbox)."""
    rig = await start_rig([bash_call("ls"), bash_call("ls")])
    session, client = await rig.session()
    asked = {**body, "model": "m", "return_token_ids": True}
    if "/v1beta/" not in path:
        asked["stream"] = stream
    async with (
        aiohttp.ClientSession() as http,
        http.post(rig.url + path, json=asked, headers={"Authorization": f"Bearer {client.api_key}"}) as response,
    ):
        raw = await response.text()
        assert response.status == 200, raw
    turn = next(iter(session.graph))
    assert turn.delivered
    for payload in (line.removeprefix("data: ") for line in raw.splitlines() if "{" in line):
        names = {
            name for name, _ in _fields(json.loads(payload.strip().strip(",").removeprefix("[").removesuffix("]")))
        }
        assert not names & {"token_ids", "prompt_token_ids", "token_id", "logprobsResult", "avgLogprobs", "tokens"}
    values = [value for _, value in _numbers(raw)]
    assert not any(abs(value - float(logprob)) < 1e-9 for value in values for logprob in turn.logprobs)
    assert ", ".join(map(str, turn.sampled_ids[:3].tolist())) not in raw
    assert ",".join(map(str, turn.sampled_ids[:3].tolist())) not in raw


def _fields(value: Any) -> list[tuple[str, Any]]:
    """Every field of a JSON value at any depth whose value is not empty."""
    if isinstance(value, list):
        return [pair for item in value for pair in _fields(item)]
    if not isinstance(value, dict):
        return []
    own = [(name, item) for name, item in value.items() if item not in (None, [], {})]
    return own + [pair for item in value.values() for pair in _fields(item)]


def _numbers(raw: str) -> list[tuple[str, float]]:
    found = []
    for word in raw.replace(",", " ").replace(":", " ").replace("}", " ").replace("]", " ").split():
        try:
            found.append((word, float(word)))
        except ValueError:
            continue
    return found


async def test_a_body_is_asked_for_only_with_a_good_key(start_rig: StartRig) -> None:
    """``Expect: 100-continue``: 401 and 413 come instead of the invitation."""
    rig = await start_rig(["fine"])
    session, key = await rig.gateway.open_session(SessionPolicy(model="policy", max_body_bytes=1000))
    body = BODY.encode()

    async def first_line(key: str, length: int) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {key}\r\n"
        writer.write(f"{head}Content-Length: {length}\r\nExpect: 100-continue\r\n\r\n".encode())
        return await asyncio.wait_for(reader.readline(), 10), reader, writer

    for wrong_key, length, status in (("dt-agent-wrong", len(body), b" 401 "), (key, 5000, b" 413 ")):
        line, _, writer = await first_line(wrong_key, length)
        assert status in line
        writer.close()
    line, reader, writer = await first_line(key, len(body))
    assert b" 100 " in line
    writer.write(body)
    assert await reader.readline() == b"\r\n"
    assert b" 200 " in await asyncio.wait_for(reader.readline(), 20)
    writer.close()
    assert len(session.graph) == 1
