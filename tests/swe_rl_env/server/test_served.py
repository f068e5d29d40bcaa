"""Whole episodes over the wire, with OpenEnv's client and with plain HTTP, in real sandboxes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from openenv.core.env_server.types import WSErrorCode
from websockets.sync.client import connect

from swe_rl_env import BuiltTask
from swe_rl_env.client import SWEEnv
from swe_rl_env.models import SWEAction
from swe_rl_env.server.errors import EpisodeError
from tests.swe_rl_env.server.kit import TASK, Served, serve, wait_until

pytestmark = pytest.mark.real

CHEAT = """
rm tests/*.py
printf 'import pytest\\n@pytest.fixture\\ndef x(): ...\\n' > conftest.py
printf 'def test_nothing(): pass\\n' > tests/test_xmltodict.py
printf '1.0' > reward.txt
d="$(printf 'd\\377')"; mkdir "$d"; cp conftest.py "$d"
"""


@pytest.fixture(autouse=True)
def leaves_nothing(served: Served) -> Iterator[None]:
    """After each test: no sandbox, whatever became of its clients."""
    yield
    wait_until(lambda: not served.backend.open)
    assert served.host.live == 0


def test_gold_patch_over_the_websocket(served: Served, xmltodict: BuiltTask) -> None:
    with SWEEnv(base_url=served.url).sync() as env:
        first = env.reset(task=TASK, episode_id="gold")
        assert (first.reward, first.done, first.observation.status) == (None, False, "running")
        assert "/work/xmltodict" in first.observation.prompt
        assert first.observation.workdir == "/work/xmltodict"
        log = env.step(SWEAction.bash("git log --oneline | wc -l; pwd")).observation
        assert (log.stdout.split(), log.exit_code) == (["1", "/work/xmltodict"], 0)
        seen = env.step(SWEAction.apply_patch(xmltodict.gold_patch.decode()))
        assert (seen.observation.exit_code, seen.reward, seen.done) == (0, None, False)
        last = env.step(SWEAction.submit())
        assert (last.reward, last.done, last.observation.status) == (1.0, True, "ok")
        assert last.metadata is not None
        assert (last.metadata["reason"], last.metadata["findings"]) == ("resolved", [])
        assert not served.backend.open, "both sandboxes are gone with the verdict"
        state = env.state()
        assert (state.episode_id, state.step_count, state.task) == ("gold", 3, TASK)
        assert (state.reward, state.status) == (1.0, "ok")
        with pytest.raises(EpisodeError) as over:
            env.step(SWEAction.submit())
        assert over.value.code == "episode_over"


@pytest.mark.case("G2", "G3", "G9")
def test_nothing_and_cheating_are_zero(served: Served, xmltodict: BuiltTask) -> None:
    with SWEEnv(base_url=served.url).sync() as env:
        env.reset(task=TASK)
        nothing = env.step(SWEAction.submit())
        assert (nothing.reward, nothing.observation.status) == (0.0, "ok")
        assert nothing.metadata is not None
        assert nothing.metadata["reason"] == "empty_patch"
        env.reset(task=TASK)
        env.step(SWEAction.bash(CHEAT))
        cheat = env.step(SWEAction.submit())
        assert (cheat.reward, cheat.observation.status) == (0.0, "ok")
        assert cheat.metadata is not None
        assert cheat.metadata["reason"] == "tests_failed"
        assert {"conftest.py", "tests/test_xmltodict.py"} <= set(cheat.metadata["dropped_paths"])
        assert {"test_edit", "runner_config_edit"} <= {finding["kind"] for finding in cheat.metadata["findings"]}
        assert "d\\xff/conftest.py" in cheat.metadata["dropped_paths"], "a name that is no text is told, not fatal"
        said = json.dumps(cheat.observation.model_dump())
        added = [line[1:] for line in xmltodict.gold_patch.decode().splitlines() if line.startswith("+ ")]
        hidden = [test.rpartition("::")[2] for test in xmltodict.task.private.expected]
        added = [line for line in added if len(line.strip()) > 12]
        assert added and hidden
        assert not [secret for secret in (*added, *hidden, TASK, str(xmltodict.git_dir)) if secret.strip() in said]


def test_an_episode_over_http(served: Served, xmltodict: BuiltTask) -> None:
    """OpenEnv makes an environment for each HTTP request: the episode's id ties them together."""

    def post(path: str, body: Any) -> requests.Response:
        return requests.post(f"{served.url}{path}", json=body, timeout=60)

    first = post("/reset", {"task": TASK}).json()
    assert (first["reward"], first["done"]) == (None, False)
    episode = first["metadata"]["episode_id"]
    patch = {"type": "apply_patch", "patch": xmltodict.gold_patch.decode()}
    assert post("/step", {"episode_id": episode, "action": patch}).json()["observation"]["exit_code"] == 0
    slow = post("/step", {"episode_id": episode, "action": {"type": "bash", "command": "sleep 9"}, "timeout_s": 0.2})
    assert slow.json()["observation"]["timed_out"] is True
    last = post("/step", {"episode_id": episode, "action": {"type": "submit"}}).json()
    assert (last["reward"], last["done"], last["observation"]["status"]) == (1.0, True, "ok")
    again = post("/step", {"episode_id": episode, "action": {"type": "submit"}})
    assert (again.status_code, again.json()["code"]) == (409, "episode_over")
    for path, body, status, code in (
        ("/step", {"action": {"type": "submit"}}, 409, "no_episode"),
        ("/step", {"action": {"type": "submit"}, "episode_id": "other"}, 409, "no_episode"),
        ("/reset", {"task": "pypi__xmltodict-0.14"}, 404, "unknown_task"),
        ("/reset", {"colour": "red"}, 422, "bad_request"),
        ("/reset", {"task": TASK, "instance_id": "pypi__parse-1.20.1"}, 422, "bad_request"),
        ("/reset", {"split": "all", "index": 10**6}, 404, "unknown_task"),
    ):
        refused = post(path, body)
        assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
    assert "Did you mean: pypi__xmltodict-0.14.2" in post("/reset", {"task": "pypi__xmltodict-0.14"}).json()["detail"]
    for action in ({}, {"type": "bash"}, {"type": "submit", "path": "x"}, {"type": "bash", "command": "\0"}):
        garbage = post("/step", {"action": action, "episode_id": episode})
        assert garbage.status_code == 422, garbage.text
        assert garbage.json()["detail"]
    assert not served.backend.open


async def test_sessions_at_once_do_not_meet(served: Served) -> None:
    async def one(number: int) -> list[str]:
        async with SWEEnv(base_url=served.url) as env:
            await env.reset(task=TASK)
            await env.step(SWEAction.write("mine.txt", f"{number}\n"))
            listed = await env.step(SWEAction.bash("sleep 0.5; ls *.txt; cat mine.txt"))
            return listed.observation.stdout.split()

    results = await asyncio.gather(*(one(number) for number in range(4)))
    assert results == [["mine.txt", str(number)] for number in range(4)]
    await asyncio.to_thread(wait_until, lambda: not served.backend.open)
    assert served.host.live == 0


def test_a_client_that_dies_leaves_no_sandbox(served: Served) -> None:
    """Also in the middle of a step, long before that would end (OpenEnv reads the socket only between steps)."""
    for busy in (False, True):
        with connect(served.url.replace("http", "ws") + "/ws") as socket:
            socket.send(json.dumps({"type": "reset", "data": {"task": TASK}}))
            assert json.loads(socket.recv())["type"] == "observation"
            assert len(served.backend.agents()) == 1
            if busy:
                socket.send(json.dumps({"type": "step", "data": {"type": "bash", "command": "sleep 250"}}))
                wait_until(lambda: any(episode.users for episode in served.host._live))
            socket.socket.shutdown(2)  # no close frame: the process is gone
            wait_until(lambda: not served.backend.open)
            assert served.host.live == 0


def test_a_session_survives_what_its_client_does_wrong(served: Served) -> None:
    url = served.url.replace("http", "ws") + "/ws"
    with connect(url) as socket:

        def ask(message: Any) -> dict[str, Any]:
            socket.send(message if isinstance(message, str) else json.dumps(message))
            reply: dict[str, Any] = json.loads(socket.recv())
            return reply

        step = {"type": "step", "data": {"type": "bash", "command": "echo hi"}}
        assert ask(step)["data"]["message"].startswith("no_episode: ")
        assert ask("{nonsense")["data"]["code"] == WSErrorCode.INVALID_JSON
        assert ask({"type": "dance"})["data"]["code"] == WSErrorCode.UNKNOWN_TYPE
        for wrong in (
            {"type": "fly"},
            {"type": "bash"},
            {"type": "submit", "command": "x"},
            {"type": "read", "path": ""},
        ):
            refused = ask({"type": "step", "data": wrong})
            assert (refused["type"], refused["data"]["code"]) == ("error", WSErrorCode.VALIDATION_ERROR), refused
            assert refused["data"]["errors"]
        for options, code in (
            ({"seed": "x"}, "bad_request"),
            ({"episode_id": "\ud800"}, "bad_request"),
            ({"task": "?"}, "unknown_task"),
            ({"a": 1}, "bad_request"),
        ):
            assert ask({"type": "reset", "data": options})["data"]["message"].startswith(f"{code}: ")
        for _ in range(2):  # a second reset takes the place of the first
            assert ask({"type": "reset", "data": {"task": TASK}})["type"] == "observation"
            assert len(served.backend.agents()) == 1
        assert ask(step)["data"]["observation"]["stdout"] == "hi\n"
    for end in ("[1]", b"\xff\xfe", '{"type": "step", "data": {"type": "bash", "command": "\\ud800"}}'):
        with connect(url) as socket:  # OpenEnv ends the session; the server lives
            socket.send(end)
            assert json.loads(socket.recv())["type"] == "error"
    assert requests.get(f"{served.url}/health", timeout=10).json() == {"status": "healthy"}
    wait_until(lambda: not served.backend.open)


@pytest.mark.case("G6")
def test_machinery_that_fails_is_no_zero(served: Served, xmltodict: BuiltTask) -> None:
    with SWEEnv(base_url=served.url).sync() as env:
        env.reset(task=TASK)
        env.step(SWEAction.apply_patch(xmltodict.gold_patch.decode()))
        served.backend.refuse = "grader"
        try:
            last = env.step(SWEAction.submit())
        finally:
            served.backend.refuse = ""
        assert (last.reward, last.done, last.observation.status) == (None, True, "unscorable")
        assert last.metadata is not None
        assert last.metadata["reason"] == "sandbox_start_failed"
        assert "/secret/place" not in json.dumps(last.observation.model_dump())
        env.reset(task=TASK)
        (box,) = served.backend.agents()
        served.host.run(box.close)
        lost = env.step(SWEAction.bash("true"))
        assert (lost.reward, lost.done, lost.observation.status) == (None, True, "infra_error")
        served.backend.refuse = "agent"
        try:
            with pytest.raises(EpisodeError, match="no room") as refused:
                env.reset(task=TASK)
        finally:
            served.backend.refuse = ""
        assert refused.value.code == "unavailable"
        assert env.reset(task=TASK).observation.status == "running", "and it can be tried again"
        assert env.state().reward is None


def test_more_than_may_be_is_refused_and_the_server_ends_what_runs() -> None:
    with serve(max_concurrent_envs=1) as server:
        reset = {"task": TASK}
        held = requests.post(f"{server.url}/reset", json=reset, timeout=60)
        assert held.status_code == 200
        full = requests.post(f"{server.url}/reset", json=reset, timeout=60)
        assert (full.status_code, full.json()["code"]) == (503, "capacity_reached")
        with SWEEnv(base_url=server.url).sync() as env:
            with pytest.raises(EpisodeError) as refused:
                env.reset(**reset)
            assert refused.value.code == "capacity_reached"
        episode = held.json()["metadata"]["episode_id"]
        asleep = {"action": {"type": "bash", "command": "sleep 200"}, "episode_id": episode}

        def hang() -> None:
            requests.post(f"{server.url}/step", json=asleep, timeout=60)

        threading.Thread(target=hang, daemon=True).start()
        wait_until(lambda: any(running.users for running in server.host._live))


def test_tools_over_mcp_beside_the_orchestrators_socket(served: Served) -> None:
    """RFC 003: the agent has the tools, whoever runs the episode has reset and the verdict."""

    def rpc(method: str, **params: Any) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        reply: dict[str, Any] = requests.post(f"{served.url}/mcp", json=body, timeout=60).json()
        return reply

    tools = rpc("tools/list")["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["bash", "read", "write", "apply_patch", "submit"]
    session = rpc("openenv/session/create")["result"]["session_id"]
    early = rpc("tools/call", session_id=session, name="bash", arguments={"command": "ls"})
    assert "no_episode" in early["error"]["message"]
    with connect(f"{served.url.replace('http', 'ws')}/ws?session_id={session}") as socket:
        socket.send(json.dumps({"type": "reset", "data": {"task": TASK}}))
        assert json.loads(socket.recv())["type"] == "observation"
        call = rpc("tools/call", session_id=session, name="bash", arguments={"command": "echo $((40 + 2)); exit 3"})
        assert call["result"]["content"][0]["text"] == "42\n[exit code 3]"
        wrong = rpc("tools/call", session_id=session, name="bash", arguments={"cmd": "ls"})
        assert "bash was called wrongly" in wrong["error"]["message"]
        done = json.dumps(rpc("tools/call", session_id=session, name="submit", arguments={}))
        assert "The episode is over" in done
        assert "reward" not in done
        socket.send(json.dumps({"type": "state"}))
        assert json.loads(socket.recv())["data"]["reward"] == 0.0
    assert rpc("openenv/session/close", session_id=session)["result"]["closed"] is True
    wait_until(lambda: not served.backend.open)


def test_the_tasks_are_listed_without_what_grades(served: Served, xmltodict: BuiltTask) -> None:
    def post(what: str, **body: Any) -> Any:
        return requests.post(f"{served.url}/swe_rl_env/{what}", json=body, timeout=30).json()

    names = [split["name"] for split in requests.get(f"{served.url}/swe_rl_env/splits", timeout=30).json()]
    assert names[0] == "all"
    total = post("num_tasks", split="all")["num_tasks"]
    assert total == sum(post("num_tasks", split=name)["num_tasks"] for name in names[1:]) > 20
    listed = post("tasks", split="all")["tasks"]
    assert len(listed) == total
    assert post("task", split="all", index=3)["task"] == listed[3]
    assert post("task_range", split="all", start=-2)["tasks"] == listed[-2:]
    assert set(listed[0]) == {"id", "index", "repo", "language", "difficulty", "split"}
    assert (
        requests.post(f"{served.url}/swe_rl_env/task", json={"split": "all", "index": -1}, timeout=30).status_code
        == 400
    )
    wrong = requests.post(f"{served.url}/swe_rl_env/tasks", json={"split": "none"}, timeout=30)
    assert (wrong.status_code, wrong.json()["code"]) == (422, "bad_request")
