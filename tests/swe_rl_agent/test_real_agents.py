"""Both real agents, unmodified, in a real sandbox whose only way out is the scripted model."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from aiohttp import web

from swe_rl_agent.bundle_python import GLIBC

from .chat_server import KEY, ChatServer, call, say, serving
from .conftest import Agents, Boxes, key_is_nowhere, run

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

FINISH = {
    "pi": say("Done."),
    "mini-swe-agent": call(3, "bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
}


def script(name: str) -> list[dict[str, object]]:
    """Look, edit, finish."""
    look = call(1, "bash", command="cat answer.txt; ls /proc/net >/dev/null; cat /proc/net/tcp | wc -l")
    edit = call(2, "bash", command="sed -i s/wrong/right/ answer.txt && cat answer.txt")
    return [look, edit, FINISH[name]]


@pytest.mark.parametrize(("name", "variant"), [("pi", "small")])
async def test_three_turn_task(
    name: str, variant: str | None, agent_of: Agents, sandbox_for: Boxes, socket_path: Path
) -> None:
    agent = agent_of(name, variant)
    async with serving(ChatServer(socket_path, script(name))) as server, sandbox_for(agent, socket_path) as sandbox:
        await sandbox.write(f"{sandbox.workdir}/answer.txt", b"wrong\n")
        outcome = await run(agent, sandbox)
        content = await sandbox.read(f"{sandbox.workdir}/answer.txt")
        modes = await sandbox.exec(["sh", "-c", f"find {sandbox.home} -type f -exec stat -c '%a %n' {{}} +"])

    assert (outcome.stop, outcome.exit_code) == ("completed", 0), outcome
    assert content == b"right\n"
    assert server.paths == ["POST /v1/chat/completions"] * 3
    assert set(server.keys) == {f"Bearer {KEY}"}
    assert [result["tool_call_id"] for result in server.tool_results()] == ["call_dt_1_a1b2c3", "call_dt_2_a1b2c3"]
    assert [request.get("stream", False) for request in server.requests] == [agent.preset.stream] * 3
    assert [request["max_tokens"] for request in server.requests] == [512] * 3
    assert key_is_nowhere(outcome)
    assert outcome.versions["agent"].startswith(name)
    secret_files = [line for line in modes.stdout.decode().splitlines() if "models.json" in line or "mini.yaml" in line]
    assert secret_files and all(line.startswith("600 ") for line in secret_files)


@pytest.mark.parametrize(("name", "deadline_s"), [("pi", 6.0), ("mini-swe-agent", 12.0)])
async def test_deadline_kills_everything_and_the_key_is_not_in_sight(
    name: str, deadline_s: float, agent_of: Agents, sandbox_for: Boxes, socket_path: Path
) -> None:
    agent = agent_of(name)
    look = ["sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"]
    seen = b""
    async with serving(ChatServer(socket_path, [], hang=True)), sandbox_for(agent, socket_path) as sandbox:
        running = asyncio.create_task(run(agent, sandbox, deadline_s=deadline_s))
        while not running.done():
            seen += (await sandbox.exec(look)).stdout
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                seen += _content(path)
            await asyncio.sleep(0.5)
        outcome = await running
        left = await sandbox.exec(look)

    assert agent.bundle.target.encode() in seen
    assert KEY.encode() not in seen
    assert outcome.stop == "deadline"
    assert deadline_s <= outcome.duration_s < deadline_s + 5.0
    assert agent.bundle.target.encode() not in left.stdout
    assert key_is_nowhere(outcome)


@pytest.mark.parametrize(
    ("name", "status", "message", "stop"),
    [
        ("pi", 500, "engine died", "model_error"),
        ("mini-swe-agent", 500, "engine died", "model_error"),
        ("pi", 401, f"unknown key {KEY}", "model_error"),
        ("pi", 400, "This model's maximum context length is 8192 tokens.", "context_overflow"),
        ("mini-swe-agent", 400, "This model's maximum context length is 8192 tokens.", "context_overflow"),
    ],
)
async def test_server_errors_are_typed(
    name: str, status: int, message: str, stop: str, agent_of: Agents, sandbox_for: Boxes, socket_path: Path
) -> None:
    agent = agent_of(name)
    error = {
        "error": {"message": message, "type": "error", "code": "context_length_exceeded" if status == 400 else None}
    }
    server = ChatServer(socket_path, [], fault=lambda _n: web.json_response(error, status=status))
    async with serving(server), sandbox_for(agent, socket_path) as sandbox:
        outcome = await run(agent, sandbox)
    assert outcome.stop == stop, outcome
    assert outcome.infrastructure == (stop == "model_error")
    assert message.split(KEY)[0].strip() in outcome.detail
    assert len(server.requests) == (3 if status == 500 else 1)
    assert key_is_nowhere(outcome)


async def test_text_only_answers_end_mini_with_a_format_error(
    agent_of: Agents, sandbox_for: Boxes, socket_path: Path
) -> None:
    agent = agent_of("mini-swe-agent", "small")
    server = ChatServer(socket_path, [say("I would rather talk.")])
    async with serving(server), sandbox_for(agent, socket_path) as sandbox:
        outcome = await run(agent, sandbox)
    assert server.sizes[0] < 800
    assert (outcome.stop, outcome.exit_code) == ("format_error", 0)


async def test_a_harness_that_dies_is_crashed(agent_of: Agents, sandbox_for: Boxes, socket_path: Path) -> None:
    agent = agent_of("pi")
    kill = call(1, "bash", command="kill -9 $PPID")
    async with serving(ChatServer(socket_path, [kill])), sandbox_for(agent, socket_path) as sandbox:
        outcome = await run(agent, sandbox)
    assert (outcome.stop, outcome.word, outcome.exit_code) == ("crashed", "", 137)
    assert outcome.infrastructure


async def test_a_harness_that_cannot_start_is_crashed(agent_of: Agents, sandbox_for: Boxes, socket_path: Path) -> None:
    mounted, missing = agent_of("pi"), agent_of("mini-swe-agent")
    async with serving(ChatServer(socket_path, [])), sandbox_for(mounted, socket_path) as sandbox:
        outcome = await run(missing, sandbox)
    assert (outcome.stop, outcome.exit_code) == ("crashed", 127)
    assert "not found" in outcome.detail and "glibc" not in outcome.detail


def test_the_bundled_python_needs_glibc_only(agent_of: Agents) -> None:
    root = agent_of("mini-swe-agent").bundle.path
    code = (
        "import ssl, sqlite3, ctypes, lzma, bz2, tiktoken, pydantic_core, sys\n"
        "print(sys.prefix); print(*{line.split()[-1] for line in open('/proc/self/maps') if '.so' in line}, sep='\\n')"
    )
    env = {"PATH": "/usr/bin:/bin", "PYTHONHOME": "/nowhere", "PYTHONPATH": "/nowhere"}
    done = subprocess.run([root / "bin/python3", "-I", "-c", code], env=env, capture_output=True, text=True, check=True)
    prefix, *loaded = done.stdout.split()
    outside = [Path(path).name for path in loaded if not path.startswith(str(root.resolve()))]
    assert prefix == str(root)
    assert len(loaded) > 15
    assert [name for name in outside if not name.startswith(GLIBC)] == []


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
