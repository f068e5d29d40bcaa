"""A real agent, real sandboxes, real grading; the model is a script behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from drivetrain.evaluation.config import EvalConfig, NetworkChoice
from drivetrain.evaluation.folder import Attempt, EvalFolder
from drivetrain.evaluation.run import evaluate
from swe_rl_env import build_task, get_task
from tests.swe_rl_agent.chat_server import MODEL, call, say

from .kit import chat_endpoint

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

TASK = "npm__shell-quote-1.8.3"
KEY = "sk-real-0123456789abcdef"


def fixing() -> list[dict[str, object]]:
    """The script of a model that finds the reference fix."""
    patch = build_task(get_task(TASK)).gold_patch.decode()
    return [call(1, "bash", command=f"git apply - <<'END'\n{patch}END\n"), say("Fixed.")]


async def go(folder: Path, base_url: str, *, network: NetworkChoice = "model_only", tries: int = 1) -> list[Attempt]:
    config = EvalConfig(
        agent="pi",
        variant="small",
        model=MODEL,
        base_url=base_url,
        network=network,
        deadline_s=120,
        max_tokens=512,
        infra_tries=tries,
    )
    opened = EvalFolder.open(folder, config)
    return await evaluate(config, [get_task(TASK)], opened, n=1, api_key=KEY, tell=lambda _: None)


@pytest.mark.parametrize("network", ["model_only", "open"])
async def test_an_agent_solves_a_task(tmp_path: Path, network: NetworkChoice) -> None:
    async with chat_endpoint(fixing()) as (server, base_url):
        (done,) = await go(tmp_path, base_url, network=network)
    assert (done.status, done.stop, done.tries) == ("resolved", "completed", 1), done
    assert set(server.keys) == {f"Bearer {KEY}"}, "the endpoint sees its own key"
    assert [request["model"] for request in server.requests] == [MODEL] * 2
    left = list((tmp_path / "attempts" / f"{TASK}.0").iterdir())
    assert {"work.patch", "tests.log", "stdout.log"} <= {path.name for path in left}
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


async def test_doing_nothing_fails_and_a_refused_key_counts_as_nothing(tmp_path: Path) -> None:
    async with chat_endpoint([say("I would rather not.")]) as (_, base_url):
        (idle,) = await go(tmp_path / "idle", base_url)
    assert (idle.status, idle.reason) == ("unresolved", "empty_patch")

    def refuse(_n: int) -> web.Response:
        return web.json_response({"error": {"message": "bad key", "type": "invalid_request_error"}}, status=401)

    async with chat_endpoint([], fault=refuse) as (server, base_url):
        (refused,) = await go(tmp_path / "refused", base_url, tries=2)
    assert (refused.status, refused.stop, refused.tries) == ("infra_error", "model_error", 2), refused
    assert len(server.requests) >= 2


async def test_the_key_is_not_in_the_sandbox_and_nothing_else_is_reachable(tmp_path: Path) -> None:
    look = (
        "(cat /proc/[0-9]*/environ; grep -rs . ~ --include='*.json' -h) | tr '\\0' '\\n' | head -c 20000; "
        "cat /proc/net/route | wc -l"
    )
    async with chat_endpoint([call(1, "bash", command=look), say("Seen.")]) as (server, base_url):
        await go(tmp_path, base_url)
    seen = str(server.tool_results())
    assert "dt-eval-" in seen, "the look went where the key would be"
    assert KEY not in seen
