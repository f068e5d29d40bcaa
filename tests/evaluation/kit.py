"""Attempts without an agent, and a chat endpoint on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from drivetrain.evaluation.folder import Attempt, Status
from swe_rl_env import SweTask, get_task
from tests.swe_rl_agent.chat_server import ChatServer

TASKS = ("pypi__xmltodict-0.14.2", "pypi__xmltodict-0.13.0", "npm__shell-quote-1.8.3")


def tasks() -> list[SweTask]:
    return [get_task(name) for name in TASKS]


def attempt(task: str, index: int, status: Status = "resolved", **fields: Any) -> Attempt:
    reason = {"resolved": "resolved", "unresolved": "tests_failed", "infra_error": ""}[status]
    return Attempt(task_id=task, index=index, status=status, reason=reason, **fields)


@asynccontextmanager
async def chat_endpoint(turns: Sequence[Any], **options: Any) -> AsyncIterator[tuple[ChatServer, str]]:
    """An OpenAI-compatible server and its base URL; it answers by how much of a conversation it is shown."""
    server = ChatServer(Path("unused"), list(turns), **options)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield server, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
