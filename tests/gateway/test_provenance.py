"""Where turns come from: recorded once per session, joined by number, without a secret."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.provenance import read_user_agent
from drivetrain.gateway.sessions import Session
from drivetrain.journal.reader import JournalReader
from drivetrain.journal.records import delivery_mark
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.provenance import session_provenance, turn_provenance
from tests.gateway.conftest import Rig, StartRig

CONFIG = {"models.json": "ab" * 32}


async def say(rig: Rig, key: str, text: str, user_agent: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": f"Bearer {key}", "User-Agent": user_agent}
    async with (
        aiohttp.ClientSession(rig.url, headers=headers) as http,
        http.post("/v1/chat/completions", json=body) as response,
    ):
        assert response.status == 200
        await response.read()


async def open_session(rig: Rig, **labels: str) -> tuple[Session, str]:
    return await rig.gateway.open_session(SessionPolicy(model="policy"), labels=labels)


async def test_what_is_constant_is_recorded_once(start_rig: StartRig, codec: TokenCodec) -> None:
    rig = await start_rig()
    session, key = await open_session(rig)
    for index in range(5):
        await say(rig, key, f"hello {index}", "codex_cli_rs/0.44.0 (Linux; x86_64)")
    await say(rig, key, "a helper", "helper/2")
    assert [turn.provenance for turn in session.graph] == [1, 1, 1, 1, 1, 2]
    main, helper = session.provenance.records
    assert (main.harness, main.harness_version, helper.harness) == ("codex_cli_rs", "0.44.0", "helper")
    assert main.template_sha256 == codec.template.sha256
    assert main.tokenizer_sha256 == codec.tokenizer.sha256
    assert (main.engine, main.model) == ("scripted", "policy")
    events = JournalReader(rig.journal).events(session.id)
    assert [event.kind for event in events] == ["provenance", "provenance"]
    own = msgspec.to_builtins(session.graph[3].origin) | session.graph[3].effective
    assert not {"user_agent", "template_sha256", "engine_version"} & set(own)


async def test_the_runner_knows_the_harness_better(start_rig: StartRig) -> None:
    rig = await start_rig()
    session, key = await open_session(rig, agent="pi", agent_version="1.6.0")
    await say(rig, key, "hello", "OpenAI/JS 5.0.1")
    (record,) = session.provenance.records
    assert (record.harness, record.harness_version, record.user_agent) == ("pi", "1.6.0", "OpenAI/JS 5.0.1")


async def test_times_and_versions_of_a_turn(start_rig: StartRig) -> None:
    rig = await start_rig()
    session, key = await open_session(rig)
    await say(rig, key, "hello", "")
    said = turn_provenance(session.graph[0])
    order = ("received_at", "gate_entered_at", "dispatched_at", "completed_at", "committed_at")
    times = [said[name] for name in order]
    assert times == sorted(times)
    assert times[0] > 0
    assert said["delivered_at"] >= round(said["committed_at"], 3) - 0.001
    versions = ("policy_version_dispatched", "policy_version_start", "policy_version_end")
    assert [said[name] for name in versions] == [0, 0, 0]
    assert said["dialect"] == "openai_chat"
    msgspec.json.encode(said)


async def test_it_survives_the_journal(start_rig: StartRig, tiny_model: ModelDir, codec: TokenCodec) -> None:
    rig = await start_rig()
    session, key = await open_session(rig)
    await say(rig, key, "hello", "pi/1.6.0")
    await rig.gateway.note_config_hashes(session.id, CONFIG)
    await rig.gateway.seal_session(session.id)
    await rig.gateway.note_config_hashes(session.id, {"settings.json": "cd" * 32})
    await rig.server.aclose()
    again = Gateway(rig.gateway.engine, codec, rig.journal, model="policy")
    try:
        found = again.sessions.get(session.id)
        assert found.provenance == session.provenance
        assert found.provenance.config_sha256 == CONFIG | {"settings.json": "cd" * 32}
        assert turn_provenance(found.graph[0]) == turn_provenance(session.graph[0])
        said = session_provenance(found.provenance, list(found.graph))
        assert said["records"][0]["user_agent"] == "pi/1.6.0"
        assert JournalReader(rig.journal).provenance(session.id) == session.provenance
    finally:
        await again.aclose()


async def test_no_secret_is_recorded(start_rig: StartRig) -> None:
    rig = await start_rig()
    session, key = await open_session(rig)
    _, other = await open_session(rig)
    await say(rig, key, "one", f"agent/1 key={key}")
    await say(rig, key, "two", f"agent/1 {other}")
    await say(rig, key, "three", "agent/1 (Bearer abcdefghijklmnop)")
    assert [record.user_agent for record in session.provenance.records] == [""]
    with pytest.raises(ConfigError, match="no SHA-256"):
        await rig.gateway.note_config_hashes(session.id, {"auth.json": key})
    await rig.gateway.note_config_hashes(session.id, {f"{key}.json": "ab" * 32})
    await rig.server.aclose()
    stored = b"".join(path.read_bytes() for path in rig.journal.parent.glob("journal.sqlite*"))
    assert session.id.encode() in stored
    assert key.encode() not in stored
    assert other.encode() not in stored
    assert b"abcdefghijklmnop" not in stored


async def test_a_client_that_renames_itself_cannot_fill_the_journal(start_rig: StartRig) -> None:
    rig = await start_rig()
    session, key = await open_session(rig)
    for index in range(40):
        await say(rig, key, f"hello {index}", f"agent/{index}")
    assert len(session.provenance.records) == 32
    assert session.provenance.of(session.graph[39]) == msgspec.structs.replace(
        session.provenance.records[0], harness="", harness_version="", user_agent=""
    )


def test_delivery_marks_of_older_journals_stay_readable() -> None:
    assert [delivery_mark(*mark) for mark in ((False, 5.0), (True, 0.0), (True, 1.5))] == [0, 1, 1500]


@pytest.mark.parametrize(
    ("headers", "secret", "read"),
    [
        ({}, "", ""),
        ({"User-Agent": "a" * 300}, "", "a" * 200),
        ({"User-Agent": "a" * 199 + "secret-key"}, "secret-key", ""),
        ({"User-Agent": "x/1 ?key=topsecret"}, "", ""),
    ],
)
def test_read_user_agent(headers: dict[str, Any], secret: str, read: str) -> None:
    assert read_user_agent(headers, secret=secret) == read
