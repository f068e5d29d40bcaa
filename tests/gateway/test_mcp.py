"""Tools of a session over MCP, with the protocol's official client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import McpError

from drivetrain.gateway.mcp import VERSIONS, HostedTool, ToolOutcome
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.sessions import Session

from .conftest import Rig, StartRig


class Adder:
    """One tool that works, one that fails."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []

    def tools(self) -> Sequence[HostedTool]:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
        return [HostedTool("add", "adds two numbers", schema), HostedTool("fail", "", {"type": "object"})]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        self.calls.append((name, arguments))
        if name == "add":
            return ToolOutcome(str(arguments["a"] + arguments["b"]))
        if name == "fail":
            return ToolOutcome("no disk", is_error=True)
        raise KeyError(name)


async def _open(rig: Rig) -> tuple[Session, str, Adder]:
    session, key = await rig.gateway.open_session(SessionPolicy(model="policy"))
    session.tool_host = host = Adder()
    return session, key, host


@asynccontextmanager
async def _client(rig: Rig, key: str) -> AsyncIterator[ClientSession]:
    async with (
        httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http,
        streamable_http_client(f"{rig.url}/mcp", http_client=http) as (reader, writer, _),
        ClientSession(reader, writer) as client,
    ):
        yield client


async def test_the_official_client_lists_and_calls_tools(start_rig: StartRig) -> None:
    rig = await start_rig([])
    _, key, host = await _open(rig)
    async with _client(rig, key) as client:
        hello = await client.initialize()
        assert hello.protocolVersion in VERSIONS
        await client.send_ping()
        listed = (await client.list_tools()).tools
        assert [(tool.name, tool.description) for tool in listed] == [("add", "adds two numbers"), ("fail", "")]
        assert listed[0].inputSchema["properties"]["a"] == {"type": "integer"}
        good = await client.call_tool("add", {"a": 2, "b": 40})
        assert (good.content[0].text, good.isError) == ("42", False)  # type: ignore[union-attr]
        bad = await client.call_tool("fail", {})
        assert (bad.content[0].text, bad.isError) == ("no disk", True)  # type: ignore[union-attr]
        with pytest.raises(McpError, match="there is no tool 'nope'"):
            await client.call_tool("nope", {})
    assert host.calls[0] == ("add", {"a": 2, "b": 40})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("{", -32700),
        ("[1]", -32600),
        ('{"id": 1, "method": "ping"}', -32600),
        ('{"jsonrpc": "2.0", "id": 1, "method": "resources/list"}', -32601),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 3}}', -32602),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": [1]}}', -32602),
    ],
)
async def test_bad_messages_are_protocol_errors(start_rig: StartRig, body: str, code: int) -> None:
    rig = await start_rig([])
    _, key, host = await _open(rig)
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as client,
        client.post(f"{rig.url}/mcp", data=body) as reply,
    ):
        assert (reply.status, (await reply.json())["error"]["code"]) == (200, code)
    assert host.calls == []


async def test_only_an_open_session_with_tools_has_them(start_rig: StartRig) -> None:
    rig = await start_rig([])
    session, key, host = await _open(rig)
    _, other = await rig.gateway.open_session(SessionPolicy(model="policy"))
    body = '{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'

    async def status(secret: str, method: str = "POST") -> int:
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {secret}"}) as client,
            client.request(method, f"{rig.url}/mcp", data=body) as reply,
        ):
            return reply.status

    assert await status(key) == 200
    assert await status(key, "GET") == 405
    assert await status(other) == 404
    assert await status("sk-unknown-key") == 401
    await rig.gateway.seal_session(session.id)
    assert await status(key) == 409
    assert host.calls == []
