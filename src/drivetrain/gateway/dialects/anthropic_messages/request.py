"""An Anthropic request to a :class:`Call` (public API reference, "Create a Message" and "Count tokens")."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from drivetrain.gateway.dialects.anthropic_messages.blocks import read_message, read_system
from drivetrain.gateway.dialects.base import Memory
from drivetrain.gateway.dialects.surrogates import replace_lone_surrogates_in
from drivetrain.gateway.memo import KnownMessage
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, RequestedSampling, ToolSpec

_REFERENCE = re.compile(rb'"tool_name"\s*:\s*("(?:[^"\\]|\\.)*")')
_NOTHING = msgspec.Raw(b"null")
_SYSTEM, _MESSAGE = "anthropic system", "anthropic message"


class _Tool(msgspec.Struct):
    name: str = ""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    defer_loading: bool | None = None

    @property
    def custom(self) -> bool:
        """Whether the harness runs it and says how it is called; every other type is Anthropic's own."""
        return self.type in (None, "custom")


class _Request(msgspec.Struct):
    """What is read of a body; unknown fields are ignored. Fields of type ``Any`` are recorded only."""

    model: str
    messages: list[msgspec.Raw]
    max_tokens: int | None = None
    system: msgspec.Raw = _NOTHING
    tools: list[_Tool] | None = None
    tool_choice: dict[str, Any] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] | None = None
    thinking: Any = None
    context_management: Any = None
    metadata: Any = None
    service_tier: Any = None
    container: Any = None
    betas: Any = None
    speed: Any = None


_decoder = msgspec.json.Decoder(_Request)


def read_request(body: bytes, memory: Memory, *, dialect: str, headers: Mapping[str, str], counting: bool) -> Call:
    """Read a body.

    Args:
        body: JSON.
        memory: of the session; messages it knows are not decoded again.
        dialect: recorded.
        headers: of the request.
        counting: a token count needs no ``max_tokens``.

    Raises:
        Refusal: malformed, or holds what cannot be shown to the policy.
    """
    try:
        request = _decode(body)
        known = _known(request, memory)
    except msgspec.ValidationError as error:
        raise Refusal("invalid_request", f"the request body is not a Messages request: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal("invalid_request", f"the request body is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise Refusal("invalid_request", "the request body is nested too deeply.") from error
    if not request.messages:
        raise Refusal("invalid_request", "messages: at least one message is required.", param="messages")
    if not counting:
        _check_max_tokens(request.max_tokens)
    offered, left_out = _tools(request)
    return Call(
        dialect=dialect,
        model=request.model,
        messages=tuple(one.message for one in known),
        keys=tuple(one.key for one in known),
        tools=offered,
        stream=bool(request.stream),
        requested=_requested(request, left_out, headers),
    )


def _decode(body: bytes) -> _Request:
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        mended = replace_lone_surrogates_in(body)
        if mended == body:
            raise
        return _decoder.decode(mended)


def _known(request: _Request, memory: Memory) -> list[KnownMessage]:
    memo, images = memory.memo, memory.images
    raw = bytes(request.system)
    system = memo.get(_SYSTEM, raw)
    known = list(memo.put(_SYSTEM, raw, read_system(raw, images)) if system is None else system)
    for index, raw in enumerate(map(bytes, request.messages)):
        known += memo.get(_MESSAGE, raw) or memo.put(_MESSAGE, raw, read_message(raw, index, images))
    return known


def _check_max_tokens(value: int | None) -> None:
    if value is None:
        raise Refusal("invalid_request", "max_tokens: field required.", param="max_tokens")
    if value < 1:
        raise Refusal("invalid_request", f"max_tokens is {value}; it must be positive.", param="max_tokens")


def _tools(request: _Request) -> tuple[tuple[ToolSpec, ...], dict[str, list[str]]]:
    """The tools the policy is offered, and the names of those it is not, by reason.

    Anthropic's own tools (web search, bash, text editor, MCP tool sets) have no schema here: ``dropped_tools``. A tool
    with ``defer_loading`` is offered once a ``tool_reference`` names it, as the API does: ``deferred_tools`` until then
    (harnesses.md section 4.3).
    """
    offered: list[ToolSpec] = []
    left_out: dict[str, list[str]] = {}
    referenced = _referenced(request)
    for index, tool in enumerate(request.tools or ()):
        if not tool.custom:
            left_out.setdefault("dropped_tools", []).append(f"{tool.type}:{tool.name}" if tool.name else str(tool.type))
        elif not tool.name:
            raise Refusal("invalid_request", f"tools[{index}].name: field required.", param="tools")
        elif tool.defer_loading and tool.name not in referenced:
            left_out.setdefault("deferred_tools", []).append(tool.name)
        else:
            offered.append(ToolSpec(tool.name, tool.description or "", tool.input_schema or {}))
    return tuple(offered), left_out


def _referenced(request: _Request) -> set[str]:
    """Tools that a ``tool_reference`` block names; looked up only when there are deferred ones."""
    if not any(tool.defer_loading for tool in request.tools or ()):
        return set()
    slices: Sequence[bytes] = [raw for raw in map(bytes, request.messages) if b'"tool_reference"' in raw]
    return {msgspec.json.decode(name, type=str) for raw in slices for name in _REFERENCE.findall(raw)}


def _requested(request: _Request, left_out: dict[str, list[str]], headers: Mapping[str, str]) -> RequestedSampling:
    """What was asked for, under the names of :data:`drivetrain.gateway.knobs.KnobName` where it is one of those.

    Of MCP servers the names only: their entries hold tokens.
    """
    output = request.output_config or {}
    betas = [beta.strip() for beta in headers.get("anthropic-beta", "").split(",") if beta.strip()]
    extra = {
        "top_k": request.top_k,
        "tool_choice": request.tool_choice,
        "response_format": output.get("format") or request.output_format,
        "reasoning_effort": output.get("effort"),
        "thinking": request.thinking,
        "context_management": request.context_management,
        "metadata": request.metadata,
        "service_tier": request.service_tier,
        "container": request.container,
        "speed": request.speed,
        "mcp_servers": [str(server.get("name", "")) for server in request.mcp_servers or ()] or None,
        "betas": request.betas or betas or None,
    }
    return RequestedSampling(
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=request.max_tokens,
        stop=tuple(request.stop_sequences or ()),
        extra={name: value for name, value in extra.items() if value is not None} | left_out,
    )
