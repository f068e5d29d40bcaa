"""The tools of a ``ResourceSession`` as an MCP tool host, with what was called and answered kept for the result."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from openenv.core.harness import HarnessRunLimits, ResourceSession, ToolResult, ToolTraceEntry

from drivetrain.gateway.mcp import PATH, HostedTool, ToolHost, ToolOutcome, answer
from swe_rl_agent.plan import ToolsEndpoint

_RESERVED = frozenset({"reset", "step", "state", "close"})
"""OpenEnv's orchestration controls: never an agent's to call (RFC 005)."""


class SessionTools:
    """Implements :class:`drivetrain.gateway.mcp.ToolHost`.

    Calls run one at a time on a thread: a session is not thread-safe. When a limit of the run or the end of the episode
    stands against a call, the model is told so and the environment is not touched.

    Args:
        session: the environment's.
        limits: ``max_total_tool_calls`` is held here; a limit per model turn cannot be told apart over MCP.
        offer: without it, the manifest is empty.
    """

    def __init__(self, session: ResourceSession, limits: HarnessRunLimits, *, offer: bool = True) -> None:
        self._session = session
        self._limit = limits.max_total_tool_calls
        self._manifest = [tool for tool in session.list_tools() if offer and tool.name not in _RESERVED]
        self._turn = asyncio.Lock()
        self.trace: list[ToolTraceEntry] = []
        self.done = False
        self.refused = 0

    def __len__(self) -> int:
        return len(self._manifest)

    def tools(self) -> Sequence[HostedTool]:
        """The session's manifest without OpenEnv's reserved names."""
        return [HostedTool(tool.name, tool.description, tool.input_schema) for tool in self._manifest]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Run one tool.

        Raises:
            KeyError: no such tool.
        """
        if all(tool.name != name for tool in self._manifest):
            raise KeyError(name)
        async with self._turn:
            if self.done:
                return self._refuse("The episode is over; no tool can be called any more.")
            if self._limit is not None and len(self.trace) >= self._limit:
                return self._refuse(f"The limit of {self._limit} tool calls is reached.")
            try:
                result = await asyncio.to_thread(self._session.call_tool, name, dict(arguments))
            except Exception as error:
                # RFC 005: a tool's failure is the model's to read. The environment's verify() says what it was worth.
                result = ToolResult(error=f"{type(error).__name__}: {error}")
            self.trace.append(ToolTraceEntry(name, dict(arguments), result))
            self.done = result.done
        return ToolOutcome(_text(result), is_error=result.error is not None)

    def _refuse(self, why: str) -> ToolOutcome:
        self.refused += 1
        return ToolOutcome(why, is_error=True)


def _text(result: ToolResult) -> str:
    if result.error is not None:
        return str(result.error)
    if result.data is None:
        return ""
    return str(result.data) if isinstance(result.data, str) else json.dumps(result.data, sort_keys=True, default=str)


@asynccontextmanager
async def serve_tools(host: ToolHost) -> AsyncIterator[ToolsEndpoint]:
    """Tools on a loopback port of this machine, behind a key of their own: for runs without a gateway."""
    key = f"tk-{secrets.token_urlsafe(24)}"

    async def handle(request: web.Request) -> web.StreamResponse:
        if not secrets.compare_digest(request.headers.get("Authorization", "").encode(), f"Bearer {key}".encode()):
            return web.Response(status=401)
        if request.method != "POST":
            return web.Response(status=405, headers={"Allow": "POST"})
        reply = await answer(host, await request.read())
        return web.Response(status=202) if reply is None else web.Response(body=reply, content_type="application/json")

    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", PATH, handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield ToolsEndpoint(f"http://127.0.0.1:{port}{PATH}", key)
    finally:
        await runner.cleanup()
