"""The secret is nowhere: not in a log, an error, the journal or an export (design invariant 6)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine, ScriptedReply, texts
from drivetrain.gateway.keys import mint_key
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.redact import MASK, guarded_logger, redact, redact_body
from drivetrain.gateway.sessions import Session
from drivetrain.trace.export.atif import trajectories
from drivetrain.trace.export.info import RolloutInfo
from drivetrain.trace.export.openenv import trace_dict
from drivetrain.trace.export.sft import sft_lines
from drivetrain.trace.sample import rows_of
from tests.gateway.conftest import StartRig

_PLACES = ("{}", "a {} b", "GET /v1/models?alt=sse&key={}&x=1 HTTP/1.1", "Authorization: Bearer {}", '"{}"', "k={};")


@given(st.sampled_from(_PLACES), st.sampled_from(["agent", "trainer", "admin"]), st.text(max_size=20))
def test_minted_keys_vanish_wherever_they_stand(place: str, scope: Any, around: str) -> None:
    key = mint_key(scope)
    text = redact(around + "\n" + place.format(key) + "\n" + around)
    assert key not in text and key[-12:] not in text
    assert MASK in text


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer SECRET-of-mine",
        "{'authorization': 'Bearer SECRET-of-mine'}",
        "x-api-key: SECRET-of-mine",
        "X-Goog-Api-Key=SECRET-of-mine",
        "{'x-api-key': 'SECRET-of-mine'}",
        "(b'x-goog-api-key', b'SECRET-of-mine')",
        "https://127.0.0.1/v1beta/models?key=SECRET-of-mine",
        "/v1beta/models?alt=sse&key=SECRET-of-mine&pageSize=1",
    ],
)
def test_other_keys_vanish_where_keys_travel(text: str) -> None:
    assert "SECRET" not in redact(text)


@pytest.mark.parametrize("text", ["the key = value pair", "monkey=banana", "bear erects", "?keyboard=1", "dt-agents"])
def test_other_text_stays(text: str) -> None:
    assert redact(text) == text


def test_a_body_without_the_key_is_the_same_object() -> None:
    body = b'{"a": "dt-agent-short"}'
    assert redact_body(body, mint_key()) is body
    assert redact_body(b"a" * 50, "a") == b"a" * 50  # a key that is no secret


def test_the_filter_takes_keys_out_of_arguments_and_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    key = mint_key()
    log = guarded_logger("drivetrain.test.redact")
    assert guarded_logger("drivetrain.test.redact") is log and len(log.filters) == 1
    try:
        raise ValueError(f"cannot read ?key={key}")
    except ValueError:
        log.exception("failed in %s with %r", f"/v1?key={key}", {"x-api-key": key})
    assert "ValueError: cannot read" in caplog.text and MASK in caplog.text
    assert key not in caplog.text and key not in repr([vars(record) for record in caplog.records])


async def test_a_session_leaves_its_secret_nowhere(
    start_rig: StartRig, tiny_model: ModelDir, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = ScriptedEngine.from_lines(["one", ScriptedReply(error=RuntimeError("boom"))], tiny_model, then="more")
    rig = await start_rig(engine=engine)
    admin_key = mint_key("admin")
    admin = await rig.server.listen_admin(0, admin_key)
    session, key = await rig.gateway.open_session(SessionPolicy(model="policy"))
    asked = {"role": "user", "content": f"env says OPENAI_API_KEY={key} and ?key={key}"}
    chat: dict[str, Any] = {"model": "m", "messages": [asked]}
    answers: list[bytes] = []
    bearer, chat_path = {"Authorization": f"Bearer {key}"}, "/v1/chat/completions"
    async with aiohttp.ClientSession() as http:

        async def send(path: str, headers: dict[str, str], body: bytes, base: str = rig.url) -> None:
            async with http.post(base + path, headers=headers, data=body) as response:
                answers.append(await response.read() + repr(response.headers).encode())

        good = msgspec.json.encode(chat)
        await send(chat_path, bearer, good)
        await send(chat_path, {"x-api-key": key}, msgspec.json.encode({**chat, "seed": 2}))  # the engine fails
        await send(f"{chat_path}?key={key}", {}, msgspec.json.encode({**chat, "seed": 3, "stream": True}))
        identity = {"x-session-id": key, "session_id": f"of {key}"}
        await send(chat_path, {**bearer, **identity}, msgspec.json.encode({**chat, "seed": 4}))
        for body in (
            good[:-2],
            msgspec.json.encode({**chat, "model": 5, key: key}),
            msgspec.json.encode({**chat, "messages": [{"role": key}]}),
            msgspec.json.encode({**chat, "messages": [{**asked, "content": [{"type": key}]}]}),
            msgspec.json.encode({**chat, "response_format": {"type": key}}),
            msgspec.json.encode({**chat, "tools": [{"type": key, "function": {"name": key}}]}),
        ):
            await send(chat_path, bearer, body)
        await send(f"/nothing/{key}?key={key}", {}, b"")
        await send("/admin/sessions", {"Authorization": f"Bearer {key}"}, good, f"http://127.0.0.1:{admin}")
        await send("/admin/sessions", {"Authorization": f"Bearer {admin_key}"}, good, f"http://127.0.0.1:{admin}")
        await _malformed(rig.port, f"GET /v1/models?key={key} HTTP/9.9\r\nx-api-key: {key}\r\n\x00\r\n\r\n")
    assert len(session.graph) == 3
    assert any(MASK in text for text in texts(engine.calls, engine))
    assert not any(key in text for text in texts(engine.calls, engine))
    exported = _exports(session)
    assert MASK.encode() in exported
    for secret in (key.encode(), admin_key.encode()):
        for answer in answers:
            assert secret not in answer
        for file in rig.journal.parent.glob("journal*"):
            assert secret not in file.read_bytes(), file
        assert secret not in exported
        # Clients of this very process log what they send; only the gateway's own records count.
        own = [record for record in caplog.records if record.name.startswith(("drivetrain", "aiohttp.server"))]
        assert own
        assert secret not in repr([vars(record) for record in own]).encode()


async def _malformed(port: int, text: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.encode("latin-1"))
    await writer.drain()
    await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()


def _exports(session: Session) -> bytes:
    info, graph = RolloutInfo(rollout_id="r", session_id=session.id), session.graph
    everything = [rows_of(graph), trace_dict(graph), sft_lines(graph, info), trajectories(graph, info)]
    return msgspec.json.encode(everything) + repr([turn.origin for turn in graph]).encode()
