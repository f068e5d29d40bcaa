"""The tools over MCP (``/mcp`` of OpenEnv's server, RFC 003): what an agent may do, without reset, step and reward."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastmcp import Client, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools.base import Tool, ToolResult
from pydantic import PrivateAttr

from swe_rl_env.models import SWEAction
from swe_rl_env.server.errors import EpisodeError
from swe_rl_env.server.toolbox import TOOLS, action_of

Call = Callable[[SWEAction], Awaitable[str]]
"""Carries an action out; returns what the model reads of it."""


class _Action(Tool):
    """One tool of :data:`~swe_rl_env.server.toolbox.TOOLS`."""

    _call: Call = PrivateAttr()

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Carry it out; what the model did wrong is an error it can read."""
        try:
            return ToolResult(content=await self._call(action_of(self.name, arguments)))
        except EpisodeError as error:
            raise ToolError(str(error)) from error


def client_for(call: Call) -> Client[Any]:
    """An MCP client, in this process, of a server with the tools."""
    server: FastMCP[Any] = FastMCP("swe_rl_env")
    for tool in TOOLS:
        made = _Action(name=tool.name, description=tool.description, parameters=tool.input_schema)
        made._call = call
        server.add_tool(made)
    return Client(server)
