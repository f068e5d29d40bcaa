"""The gate over the admin surface: every route needs the admin key, errors say what is the matter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from tests.gateway.conftest import Rig, StartRig

KEY = "an-admin-key-of-a-test"


class Admin:
    """A client of the admin surface."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def ask(self, method: str, route: str, body: Any = None, key: str = KEY) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"}
        async with self._http.request(method, self._url + route, json=body, headers=headers) as response:
            return response.status, await response.json()


@pytest.fixture
async def rig(start_rig: StartRig, tiny_model: ModelDir) -> Rig:
    return await start_rig(engine=ScriptedEngine(tiny_model, lambda *_: "a few words", per_token_s=0.02))


@pytest.fixture
async def admin(rig: Rig) -> AsyncIterator[Admin]:
    port = await rig.server.listen_admin(0, KEY)
    async with aiohttp.ClientSession() as http:
        yield Admin(http, f"http://127.0.0.1:{port}/admin/")


@pytest.mark.parametrize(("method", "route"), [("POST", "pause"), ("POST", "resume"), ("GET", "fence")])
async def test_every_route_needs_the_admin_key(rig: Rig, admin: Admin, method: str, route: str) -> None:
    _, agent_key = await rig.gateway.open_session()
    for key in (agent_key, "", "x" * 40):
        status, body = await admin.ask(method, route, {"policy_version": 1}, key)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    assert rig.gateway.fence.status().state == "open"


async def test_pause_look_and_resume(rig: Rig, admin: Admin) -> None:
    _, client = await rig.session()
    status, paused = await admin.ask("POST", "pause", {"mode": "drain", "deadline_s": 5})
    assert (status, paused["state"], paused["owner"], paused["mode"]) == (200, "closed", "admin", "drain")
    call = asyncio.create_task(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}]))
    while (seen := (await admin.ask("GET", "fence"))[1])["waiting"] == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert (seen["state"], seen["policy_version"], seen["in_flight"], seen["failed"]) == ("closed", 0, 0, "")
    assert seen["paused_for_s"] > 0
    assert (await admin.ask("POST", "pause"))[0] == 200  # the answer was lost; the same owner asks again
    status, opened = await admin.ask("POST", "resume", {"policy_version": 1})
    assert (status, opened["state"], opened["policy_version"]) == (200, "open", 1)
    assert (await call).choices[0].message.content == "a few words"
    counts = (await admin.ask("GET", "fence"))[1]["counts"]
    assert counts == {"pauses": 1, "passed": 1, "waited": 1, "aborted": 0, "timeouts": 0, "failed": 0}
    assert (await admin.ask("GET", "health"))[1]["fence"] == "open"


async def test_errors_are_typed(rig: Rig, admin: Admin) -> None:
    async def refused(route: str, body: Any) -> tuple[int, str]:
        status, answer = await admin.ask("POST", route, body)
        return status, answer["error"].get("type")

    assert (await refused("resume", {"policy_version": 1})) == (409, "fence_busy")
    assert (await admin.ask("POST", "resume", {}))[0] == 400
    assert (await admin.ask("POST", "pause", {"mode": "stop"}))[0] == 400
    assert (await admin.ask("POST", "pause", {"modus": "drain"}))[0] == 400
    assert (await refused("pause", {"deadline_s": -1})) == (400, "config_error")
    _, client = await rig.session()
    call = asyncio.create_task(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}]))
    while rig.gateway.fence.status().in_flight == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    status, answer = await admin.ask("POST", "pause", {"deadline_s": 0.01})
    assert (status, answer["error"]["type"], answer["error"]["in_flight"]) == (504, "fence_timeout", 1)
    assert answer["fence"]["state"] == "open"
    await call
    await admin.ask("POST", "pause", {"owner": "me"})
    assert (await refused("pause", {"owner": "you"})) == (409, "fence_busy")
    assert (await refused("resume", {"policy_version": 1, "owner": "you"})) == (409, "fence_busy")
    assert (await refused("resume", {"policy_version": -1, "owner": "me"})) == (400, "config_error")
    for logprobs in ([], [-1.0]):  # no fingerprint; one, for an engine without a server
        odd = {"token_ids": [1, 2], "logprobs": logprobs, "tolerance": 0.1}
        body = {"policy_version": 0, "owner": "me", "fingerprint": odd}
        assert (await refused("resume", body)) == (400, "config_error")
    assert (await admin.ask("POST", "resume", {"policy_version": 0, "owner": "me"}))[0] == 200


async def test_config_hashes_of_a_remote_runner(rig: Rig, admin: Admin) -> None:
    session, key = await rig.gateway.open_session()
    route = f"sessions/{session.id}/provenance"
    assert (await admin.ask("POST", f"{route}/config", {"a.json": "ab" * 32}, key))[0] == 401
    assert (await admin.ask("POST", f"{route}/config", {"a.json": "secret"}))[0] == 400
    assert (await admin.ask("POST", f"{route}/config", ["a"]))[0] == 400
    assert (await admin.ask("POST", "sessions/none/provenance/config", {}))[0] == 404
    assert (await admin.ask("POST", f"{route}/config", {"a.json": "ab" * 32}))[0] == 200
    assert await admin.ask("GET", route) == (200, {"records": [], "config_sha256": {"a.json": "ab" * 32}})


async def test_rows_by_label(rig: Rig, admin: Admin) -> None:
    session, client = await rig.session()
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    route = f"sessions/{session.id}/rows"
    for query, rows in (("", 1), ("?label=agent&label=title", 1), ("?label=title", 0)):
        status, body = await admin.ask("GET", route + query)
        assert (status, len(body["rows"])) == (200, rows)
    status, body = await admin.ask("GET", route + "?label=agents")
    assert (status, body["error"]["param"]) == (400, "label")


async def test_a_defect_of_ours_is_an_error_in_json(rig: Rig, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = await rig.session()
    monkeypatch.setattr("drivetrain.gateway.admin.rows_of", lambda *_, **__: 1 / 0)
    status, body = await admin.ask("GET", f"sessions/{session.id}/rows")
    assert (status, body["error"]["code"]) == (500, "internal_error")
    assert "zero" not in body["error"]["message"]
