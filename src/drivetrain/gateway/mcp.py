"""Tools of an environment, offered to a harness over MCP: streamable HTTP, stateless, behind the session key.

One POST is one JSON-RPC message and is answered with one JSON body; there is no stream from server to client (GET is
405, which clients take for "none"), so nothing has to be kept between requests and a lost connection loses nothing.
The protocol is https://modelcontextprotocol.io/specification/2025-06-18/basic/transports; what is offered is
``initialize``, ``ping``, ``tools/list`` and ``tools/call`` (RFC 005: a ``ResourceSession``'s tools reach the harness
over MCP).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

PATH = "/mcp"
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Protocol versions answered as asked; any other is answered with the second, as the specification wants."""

_PARSE, _REQUEST, _METHOD, _PARAMS, _INTERNAL = -32700, -32600, -32601, -32602, -32603


class HostedTool(msgspec.Struct, frozen=True):
    """A tool as MCP describes it; ``input_schema`` is a JSON schema of type object."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


class ToolOutcome(msgspec.Struct, frozen=True):
    """What the model reads. ``is_error`` is a failure of the call that the model may act on."""

    text: str
    is_error: bool = False


class ToolHost(Protocol):
    """Whoever runs the tools of one session."""

    def tools(self) -> Sequence[HostedTool]:
        """The manifest; names are unique."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Run one tool. Calls of one session may overlap.

        Raises:
            KeyError: no such tool.
        """


class _Message(msgspec.Struct):
    jsonrpc: str = ""
    method: str = ""
    id: int | str | None = None
    params: dict[str, Any] = {}


async def answer(host: ToolHost, body: bytes) -> bytes | None:
    """The reply to one JSON-RPC message; None for a notification (HTTP 202, no body).

    A failing tool is an error *result*, so that the model reads it; a call that cannot be made is a protocol error.
    """
    try:
        message = msgspec.json.decode(body, type=_Message)
    except msgspec.ValidationError as error:
        return _error(None, _REQUEST, f"not a JSON-RPC request: {error}")
    except msgspec.DecodeError as error:
        return _error(None, _PARSE, f"not JSON: {error}")
    if message.jsonrpc != "2.0" or not message.method:
        return _error(message.id, _REQUEST, 'a JSON-RPC 2.0 request has "jsonrpc": "2.0" and a method')
    if message.id is None:
        return None
    if message.method == "initialize":
        return _result(message.id, _hello(message.params))
    if message.method == "ping":
        return _result(message.id, {})
    if message.method == "tools/list":
        return _result(message.id, {"tools": [_described(tool) for tool in host.tools()]})
    if message.method == "tools/call":
        return await _call(host, message.id, message.params)
    return _error(message.id, _METHOD, f"there is no method {message.method!r} here")


def _hello(params: Mapping[str, Any]) -> dict[str, Any]:
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in VERSIONS else VERSIONS[1],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "drivetrain", "version": "1"},
    }


def _described(tool: HostedTool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}


async def _call(host: ToolHost, request_id: int | str, params: Mapping[str, Any]) -> bytes:
    name, arguments = params.get("name"), params.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return _error(request_id, _PARAMS, "tools/call needs a name and an object of arguments")
    try:
        outcome = await host.call(name, arguments)
    except KeyError:
        return _error(request_id, _PARAMS, f"there is no tool {name!r}")
    content = [{"type": "text", "text": outcome.text}]
    return _result(request_id, {"content": content, "isError": outcome.is_error})


def _result(request_id: int | str, result: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def _error(request_id: int | str | None, code: int, text: str) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}})
