"""A hostile program in a real sandbox, with the harness's own key: what it reaches, and what that costs whom."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.keys import mint_key
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.server import GatewayServer
from drivetrain.gateway.sessions import Session
from drivetrain.sandboxes import SandboxHandle
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.labels import infer_labels
from tests.conformance.sandbox.kits.local import LocalKit

CLIENT = """
import http.client, json, os, socket, sys, urllib.parse
url, admin_port, admin_key = urllib.parse.urlsplit(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
key = os.environ["OPENAI_API_KEY"]
def ask(method, target, body=None, key=key, host=None):
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    headers = {"Authorization": "Bearer " + key, "User-Agent": "stolen/1"}
    if host:
        headers["Host"] = host
    connection.request(method, target, json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()
def chat(text, **more):
    return ask("POST", "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": text}], **more})
"""
ADMIN = """
seen = []
targets = ["/admin/sessions", "/admin/health", "/admin/fence", "/admin/sessions/x/rows", "//admin/sessions",
           "/v1/../admin/sessions", "/%61dmin/sessions", "http://127.0.0.1:%d/admin/sessions" % admin_port]
for target in targets:
    for method in ("GET", "POST", "DELETE"):
        for who in (key, admin_key):
            seen.append(ask(method, target, key=who)[0])
        seen.append(ask(method, target, host="127.0.0.1:%d" % admin_port)[0])
seen += [ask("POST", "/admin/pause", {"mode": "hold"})[0], ask("POST", "/admin/resume", {"policy_version": 9})[0]]
reached = []
hosts = ["127.0.0.1", "::1", "localhost", "10.0.2.2", "172.17.0.1", "169.254.169.254", socket.gethostname()]
for host in hosts:
    try:
        socket.create_connection((host, admin_port), timeout=3).close()
        reached.append(host)
    except OSError:
        pass
print(json.dumps({"statuses": sorted(set(seen)), "reached": reached}))
"""
EXTRA = """
tool = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
first = chat("the task", tools=tool)
calls = [chat("say something nice %d" % number) for number in range(5)]
print(json.dumps({"statuses": [status for status, _ in [first, *calls]], "said": [text for _, text in calls]}))
"""


class Inside:
    """A sandbox that reaches a gateway by its socket, with a session's key in the environment."""

    def __init__(self, box: SandboxHandle, kit: LocalKit, session: Session, admin: tuple[int, str]) -> None:
        self._box, self._kit, self.session, self._admin = box, kit, session, admin

    async def run(self, script: str) -> Any:
        python = [self._kit.client().python, "-I", "-c", CLIENT + script]
        port, key = self._admin
        done = await self._box.exec([*python, self._box.gateway_url(), str(port), key], timeout_s=120)
        assert done.exit_code == 0, done.stderr.decode()
        return json.loads(done.stdout)


@pytest.fixture
async def inside(tmp_path: Path, tiny_model: ModelDir, codec: TokenCodec) -> AsyncIterator[Inside]:
    gateway = Gateway(ScriptedEngine(tiny_model, lambda *_: "done"), codec, tmp_path / "j.sqlite", model="m")
    server = GatewayServer(gateway)
    kit = LocalKit()
    backend = kit.make(tmp_path / "sandboxes")
    try:
        (tmp_path / "gw").mkdir()
        await server.listen_unix(tmp_path / "gw" / "g.sock")
        admin_key = mint_key("admin")
        port = await server.listen_admin(0, admin_key)
        session, key = await gateway.open_session(SessionPolicy(model="m", max_turns=3))
        spec = kit.spec(
            network="gateway",
            gateway_socket=tmp_path / "gw" / "g.sock",
            mounts=kit.client().mounts,
            env={"OPENAI_API_KEY": key},
        )
        yield Inside(await backend.create(spec), kit, session, (port, admin_key))
    finally:
        await backend.aclose()
        await server.aclose()


async def test_the_admin_surface_is_not_there(inside: Inside) -> None:
    """Neither by its path on the harness's socket, with the session's key or the true admin key, nor by its port."""
    seen = await inside.run(ADMIN)
    assert set(seen["statuses"]) <= {400, 401, 404, 405}
    assert 404 in seen["statuses"]
    assert seen["reached"] == []
    assert inside.session.state == "open" and len(inside.session.graph) == 0


async def test_extra_calls_with_the_harness_key_are_paid_for_and_told_apart(inside: Inside) -> None:
    """The key is in the agent's environment, so a program it starts may use it: the session's budget pays, and what
    does not look like the harness is recorded as another conversation, which is not trained by default."""
    seen = await inside.run(EXTRA)
    assert seen["statuses"] == [200] * 6
    graph = inside.session.graph
    assert len(graph) == 3  # max_turns; beyond it the answer says that the budget is used up
    assert sum("is used up" in text for text in seen["said"]) == 3
    labels = [info.label for _, info in sorted(infer_labels(graph).items())]
    assert labels == ["agent", "title", "title"]
    records = inside.session.provenance.records
    assert {records[turn.provenance - 1].user_agent for turn in graph} == {"stolen/1"}
