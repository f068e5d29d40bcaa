"""What the Responses tests share: the API's event grammar, its types, and requests as harnesses send them."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any, get_args

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

MODEL = "policy"
FUNCTION: dict[str, Any] = {
    "type": "function",
    "name": "bash",
    "description": "run a command",
    "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
}
CUSTOM: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "apply a patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
NAMESPACE: dict[str, Any] = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "helpers",
    "tools": [
        {"type": "function", "name": "spawn_agent", "parameters": {"type": "object"}},
        {"type": "function", "name": "wait_agent", "parameters": {"type": "object"}},
    ],
}
WEB_SEARCH: dict[str, Any] = {"type": "web_search", "external_web_access": True}


def say_call(name: str, arguments: Any) -> str:
    """Text in which the policy calls a tool."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def bash(command: str) -> str:
    return say_call("bash", {"command": command})


# Order table, from the API reference of OpenAI ("Streaming events"). Items one after another, terminal event last.
_SHORT = {
    "response.created": "created",
    "response.in_progress": "progress",
    "response.output_item.done": "done",
    "response.content_part.added": "part+",
    "response.output_text.delta": "text",
    "response.output_text.done": "text.",
    "response.content_part.done": "part.",
    "response.reasoning_summary_part.added": "sum+",
    "response.reasoning_summary_text.delta": "think",
    "response.reasoning_summary_text.done": "think.",
    "response.reasoning_summary_part.done": "sum.",
    "response.function_call_arguments.delta": "args",
    "response.function_call_arguments.done": "args.",
    "response.custom_tool_call_input.delta": "input",
    "response.custom_tool_call_input.done": "input.",
    "response.completed": "end",
    "response.incomplete": "end",
    "response.failed": "failed",
}
_ITEMS = (
    r"\+reasoning sum\+ (think )*think\. sum\. done ",
    r"\+message part\+ (text )*text\. part\. done ",
    r"\+function_call (args )*args\. done ",
    r"\+custom_tool_call (input )*input\. done ",
)
_STREAM = re.compile(rf"created (progress )+((({'|'.join(_ITEMS)})*end )|failed )")
_TYPES = {cls.model_fields["type"].annotation: cls for cls in get_args(get_args(ResponseStreamEvent)[0])}
_ADAPTERS = {get_args(kind)[0]: TypeAdapter(cls) for kind, cls in _TYPES.items()}


def read_frames(raw: bytes) -> list[dict[str, Any]]:
    """The events of a body; comments and bare newlines are skipped, and ``event:`` names the ``type``."""
    events = []
    for frame in raw.decode().split("\n\n"):
        lines = [line for line in frame.split("\n") if line and not line.startswith(":")]
        if lines:
            (name, data) = lines
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            events.append(event)
    return events


def order_of(events: list[dict[str, Any]]) -> str:
    """The event types as words of the order table."""
    words = []
    for event in events:
        kind = event["type"]
        words.append("+" + event["item"]["type"] if kind == "response.output_item.added" else _SHORT[kind])
    return "".join(word + " " for word in words)


def check_stream(events: list[dict[str, Any]]) -> None:
    """Every event is of its SDK type, the order is the API's, the numbers never step back and skip nothing."""
    for event in events:
        _ADAPTERS[event["type"]].validate_python(event)
    assert _STREAM.fullmatch(order_of(events)), order_of(events)
    numbers = [event["sequence_number"] for event in events]
    assert numbers[0] == 0
    assert all(after - before in (0, 1) for before, after in itertools.pairwise(numbers))
    again = [
        event["type"] for event, before in zip(events[1:], numbers, strict=False) if event["sequence_number"] == before
    ]
    assert set(again) <= {"response.in_progress"}  # keep-alives
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    assert [e["output_index"] for e in events if "item" in e] == sorted(
        e["output_index"] for e in events if "item" in e
    )


def check_response(body: dict[str, Any]) -> Response:
    """A response object that has every required field."""
    return TypeAdapter(Response).validate_python(body)


def codex_request(items: list[dict[str, Any]]) -> dict[str, Any]:
    """A body as Codex sends it (harnesses.md section 3): developer messages, no instructions, namespaces, extras."""
    opening = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are an agent."}]},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "<environment_context>/repo</environment_context>"},
                {"type": "input_text", "text": "fix the bug"},
            ],
        },
    ]
    return {
        "model": MODEL,
        "input": [*opening, *items],
        "tools": [FUNCTION, CUSTOM, NAMESPACE, WEB_SEARCH],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0197-thread",
        "client_metadata": {"x-codex-installation-id": "42"},
    }
