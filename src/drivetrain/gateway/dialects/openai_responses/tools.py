"""Tools of the Responses API: what the policy is offered, and how its calls are spelled on the wire."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from drivetrain.gateway.dialects.surrogates import replace_lone_surrogates
from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import ToolSpec

_encode = msgspec.json.encode


class _Format(msgspec.Struct):
    type: str = "text"
    syntax: str = ""
    definition: str = ""


class _Tool(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    format: _Format | None = None
    tools: list[msgspec.Raw] | None = None


_decoder = msgspec.json.Decoder(_Tool)


class WireTool(msgspec.Struct, frozen=True):
    """How a tool is called on the wire."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str = ""


class Tools(msgspec.Struct):
    """The tools of a request.

    ``offered`` are those the policy sees, ``wire`` their spelling by offered name, ``echo`` their JSON as it came, on
    one line.
    ``dropped`` names those that only the API's own servers could run: the policy is not offered them, so that it cannot
    call them. ``unenforced`` names custom tools whose grammar is told to the policy and not enforced on its tokens.
    """

    offered: list[ToolSpec] = []
    wire: dict[str, WireTool] = {}
    echo: list[msgspec.Raw] = []
    dropped: list[str] = []
    unenforced: list[str] = []


def offered_name(name: str, namespace: str = "") -> str:
    """The one name the policy knows a tool by; made of both parts only, since old calls are read without the tools."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def read_tools(raw: list[msgspec.Raw] | None) -> Tools:
    """Decode a tool list: ``function``, ``custom`` and ``namespace`` tools are served, the others dropped by name.

    Raises:
        Refusal: a tool has no name, or two have the same.
    """
    tools = Tools()
    for index, slice_ in enumerate(raw or ()):
        tool = _read(slice_, f"tools[{index}]")
        if tool.type == "namespace":
            if _read_namespace(tools, tool, f"tools[{index}]"):
                tools.echo.append(_one_line(slice_))
        elif _add(tools, tool, f"tools[{index}]"):
            tools.echo.append(_one_line(slice_))
    return tools


def _one_line(raw: msgspec.Raw) -> msgspec.Raw:
    """The same JSON without line breaks: it becomes part of an event, which one would end."""
    text = bytes(raw)
    return msgspec.Raw(msgspec.json.format(text, indent=-1)) if b"\n" in text or b"\r" in text else raw


def _read(slice_: msgspec.Raw, place: str) -> _Tool:
    try:
        return _decoder.decode(slice_)
    except msgspec.ValidationError as error:
        raise Refusal("invalid_request", f"{place} is not a tool: {error}.", param="tools") from error


def _read_namespace(tools: Tools, namespace: _Tool, place: str) -> bool:
    """The tools of a namespace; its description is told once, with its first tool."""
    name = _named(namespace, place)
    said = namespace.description or ""
    added = False
    for index, slice_ in enumerate(namespace.tools or ()):
        inner = f"{place}.tools[{index}]"
        if _add(tools, _read(slice_, inner), inner, name, said):
            added, said = True, ""
    return added


def _add(tools: Tools, tool: _Tool, place: str, namespace: str = "", said: str = "") -> bool:
    if tool.type not in ("function", "custom"):
        tools.dropped.append(f"{namespace}/{tool.type}" if namespace else tool.type)
        return False
    name = _named(tool, place)
    offered = offered_name(name, namespace)
    if offered in tools.wire:
        raise Refusal("invalid_request", f"{place}: there is a tool {offered!r} already.", param="tools")
    description = "\n\n".join(text for text in (said, tool.description or "") if text)
    if tool.type == "function":
        tools.wire[offered] = WireTool("function", name, namespace)
        tools.offered.append(ToolSpec(offered, description, tool.parameters or {}))
        return True
    tools.wire[offered] = WireTool("custom", name, namespace)
    tools.offered.append(ToolSpec(offered, description, _one_string(tool.format)))
    if tool.format is not None and tool.format.type != "text":
        tools.unenforced.append(offered)
    return True


def _named(tool: _Tool, place: str) -> str:
    if not tool.name:
        raise Refusal("invalid_request", f"{place} has no name.", param="tools")
    return tool.name


def _one_string(format_: _Format | None) -> dict[str, Any]:
    """Schema of a custom tool's only parameter: free text, with its grammar in words."""
    text: dict[str, Any] = {"type": "string"}
    if format_ is not None and format_.definition:
        text["description"] = f"Text of this {format_.syntax} grammar:\n{format_.definition}"
    return {"type": "object", "properties": {"input": text}, "required": ["input"]}


def custom_arguments(text: str) -> str:
    """Arguments of a custom tool's call, as the policy writes them."""
    return _encode({"input": text}).decode()


def custom_input(arguments: str) -> str:
    """The free text of a custom tool's call; what is not ``{"input": text}`` is handed over as it was sampled."""
    try:
        value = json.loads(replace_lone_surrogates(arguments))  # half a pair has no spelling outside an escape
    except (ValueError, RecursionError):
        return arguments
    if isinstance(value, dict) and set(value) == {"input"} and isinstance(value["input"], str):
        return value["input"]
    return arguments
