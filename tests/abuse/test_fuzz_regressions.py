"""Every input that fuzzing, or thinking about it, has found a defect with; each names what was wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.gateway.admin import admin_app
from drivetrain.gateway.keys import AdminKeys
from drivetrain.tokens.codec import TokenCodec
from tests.abuse.bodies import ANTHROPIC, CHAT, GOOGLE, RESPONSES, Api
from tests.abuse.fuzzing import Victim, check
from tests.abuse.inprocess import Surface, payloads

HI = b'{"contents":[{"parts":[{"text":"hi"}]}],'
MESSAGES = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'
REFUSED: list[tuple[str, Api, bytes]] = [
    ("a tool that is not UTF-8", RESPONSES, b'{"model":"m","input":"hi","tools":[{"type":"function","name":"\xff"}]}'),
    (
        "a namespace that is not",
        RESPONSES,
        b'{"model":"m","input":"hi","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"\xff"}]}]}',
    ),
    (
        "an unknown field that is not, echoed",
        RESPONSES,
        b'{"model":"m","input":"hi","tools":[{"type":"function","name":"b","u":"\xff"}]}',
    ),
    ("an item that is not", RESPONSES, b'{"model":"m","input":[{"type":"message","role":"user","content":"\xff"}]}'),
    ("an item whose type is not", RESPONSES, b'{"model":"m","input":[{"type":"\xff"}]}'),
    (
        "an unknown field beside a tool_reference that is not",
        ANTHROPIC,
        b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"tool_reference","tool_name":"a",'
        b'"u":{"tool_name":"\xff"}}]}],"tools":[{"name":"b","defer_loading":true}]}',
    ),
    ("an unknown field of a message that is not", CHAT, MESSAGES.replace(b'"hi"', b'"hi","u":"\xff"')),
    ("media that are no object", GOOGLE, b'{"contents":[{"parts":[{"inlineData":3}]}]}'),
    ("media that are a list", GOOGLE, b'{"contents":[{"parts":[{"fileData":[1]}]}]}'),
]
SERVED: list[tuple[str, Api, bytes]] = [
    (
        "an integer of 5,000 digits as text",
        GOOGLE,
        HI + b'"tools":{"functionDeclarations":[{"name":"a","parameters":{"maxItems":"' + b"9" * 5000 + b'"}}]}}',
    ),
    (
        "a digit that is no ASCII digit",
        GOOGLE,
        HI + '"tools":{"functionDeclarations":[{"name":"a","parameters":{"maxItems":"²"}}]}}'.encode(),
    ),
    (
        "tools on several lines, echoed inside an event",
        RESPONSES,
        b'{"model":"m","input":"hi","stream":true,"tools":[{\n "type":"function",\r\n "name":"b"}]}',
    ),
]


@pytest.fixture
async def victim(tmp_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> AsyncIterator[Victim]:
    victim = await Victim.start(tmp_path, tiny_model, codec)
    for _ in range(51):  # media are refused in the first session of fifty calls, read as placeholders in the second
        await victim.ask(ANTHROPIC, "/v1/messages/count_tokens", MESSAGES)
    yield victim
    await victim.close()


@pytest.mark.parametrize(("what", "api", "body"), REFUSED, ids=[what for what, _, _ in REFUSED])
async def test_refused(victim: Victim, what: str, api: Api, body: bytes, complaints: list[str]) -> None:
    for path in api.paths:
        answer = await victim.ask(api, path, body)
        assert answer.status == 400
        check(api, answer)
    assert not complaints


@pytest.mark.parametrize(("what", "api", "body"), SERVED, ids=[what for what, _, _ in SERVED])
async def test_served(victim: Victim, what: str, api: Api, body: bytes, complaints: list[str]) -> None:
    answer = await victim.ask(api, api.paths[0], body)
    assert answer.status == 200 and payloads(answer)
    assert not complaints
    victim.check_what_is_left()


@pytest.mark.parametrize("header", ["Idempotency-Key", "User-Agent", "x-session-id", "anthropic-beta", "X-Other"])
async def test_a_header_that_is_not_utf8(victim: Victim, header: str, complaints: list[str]) -> None:
    answer = await victim.ask(ANTHROPIC, "/v1/messages", MESSAGES, {header: "caf\udce9"})
    assert answer.status == 200 and not complaints
    victim.check_what_is_left()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
async def test_a_body_in_another_encoding_than_it_says(victim: Victim, encoding: str, complaints: list[str]) -> None:
    answer = await victim.ask(ANTHROPIC, "/v1/messages", MESSAGES, {"Content-Encoding": encoding})
    assert answer.status == 400
    assert not complaints


ADMIN: list[tuple[str, bytes, int]] = [
    ("a number that the journal cannot hold", b'{"policy":{"max_turns":' + str(2**70).encode() + b"}}", 400),
    ("a seed that it cannot hold", b'{"policy":{"seed":' + str(-(2**64)).encode() + b"}}", 400),
    ("a body over the limit", b" " * (1 << 20) + b"{}", 413),
    ("lists in each other", b'{"policy":{"knobs":' + b"[" * 100_000, 400),
    ("text that is not UTF-8", b'{"labels":{"a":"\xff"}}', 400),
]


async def test_bodies_of_the_admin_surface(complaints: list[str]) -> None:
    """They are refused before a gateway is asked for anything, so that none is needed."""
    gateway: Any = SimpleNamespace(model="m", fence=None)
    surface = await Surface(admin_app(gateway, AdminKeys("a" * 40))).open()
    for what, body, status in ADMIN:
        answer = await surface.ask("POST", "/admin/sessions", body, {"x-api-key": "a" * 40})
        assert answer.status == status, what
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not complaints
    await surface.close()


async def test_bytes_are_read_anew_where_they_mean_something_else(victim: Victim) -> None:
    """What a slice of JSON was read as is remembered; to another API, or as a system prompt, it is another."""
    user = b'{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}'
    body = b'{"model":"m","max_tokens":9,"messages":[' + user + b"]"
    count = "/v1/messages/count_tokens"
    counted = await victim.ask(ANTHROPIC, count, body + b"}")
    as_system = await victim.ask(ANTHROPIC, count, body + b',"system":' + user + b"}")
    assert (counted.status, as_system.status) == (200, 400)
    chat = await victim.ask(CHAT, "/v1/chat/completions", body + b"}")
    assert counted.json()["input_tokens"] > chat.json()["usage"]["prompt_tokens"]  # text blocks: lines there, one here
