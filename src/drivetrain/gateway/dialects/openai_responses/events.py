"""A reply as events of the Responses API.

Order: ``response.created``, ``response.in_progress``, each output item from ``added`` over its deltas to ``done``, then
``response.completed`` or ``response.incomplete``. Numbers count from 0. A stream that was opened early had 0 and 1; its
keep-alives are the ``response.in_progress`` event again, number included, so that numbers never step back and the
reply goes on with 2 however long it took.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from drivetrain.gateway.dialects.openai_responses.reply import pending_object, response_object, text_part
from drivetrain.gateway.dialects.pieces import pieces
from drivetrain.messages import Call, Reply

_encode = msgspec.json.encode
_OPENING = 2

Fields = dict[str, Any]


def opening_events(reply_id: str, call: Call) -> list[bytes]:
    """``response.created`` and ``response.in_progress``, numbers 0 and 1."""
    kinds = ("response.created", "response.in_progress")
    pending = pending_object(reply_id, call)
    return [_frame(kind, number, {"response": pending}) for number, kind in enumerate(kinds)]


def keep_alive_event(reply_id: str, call: Call) -> bytes:
    """``response.in_progress`` again: a data event, which resets Codex's idle clock (harnesses.md section 1.5)."""
    return opening_events(reply_id, call)[-1]


def reply_events(reply: Reply, call: Call, *, opened: bool) -> list[bytes]:
    """Every event of a reply, or those behind the opening ones."""
    response = response_object(reply, call)
    frames = [] if opened else opening_events(reply.id, call)
    events: list[tuple[str, Fields]] = []
    for index, item in enumerate(response["output"]):
        events += _item_events(item, index)
    events.append((f"response.{response['status']}", {"response": response}))
    return frames + [_frame(kind, number, fields) for number, (kind, fields) in enumerate(events, _OPENING)]


def failed_event(failed: Fields) -> bytes:
    """``response.failed`` behind the opening events; ``failed`` is the response object."""
    return _frame("response.failed", _OPENING, {"response": failed})


def _frame(kind: str, number: int, fields: Fields) -> bytes:
    payload = _encode({"type": kind, "sequence_number": number, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + payload + b"\n\n"


def _item_events(item: Fields, index: int) -> list[tuple[str, Fields]]:
    """``added`` with an empty item, what fills it, ``done`` with the whole one."""
    empty, fill = _FILLERS[item["type"]]
    at = {"item_id": item["id"], "output_index": index}
    started = {**item, **empty}
    if "status" in item:
        started["status"] = "in_progress"
    started.pop("encrypted_content", None)
    return [
        ("response.output_item.added", {"output_index": index, "item": started}),
        *fill(item, at),
        ("response.output_item.done", {"output_index": index, "item": item}),
    ]


def _reasoning(item: Fields, at: Fields) -> list[tuple[str, Fields]]:
    text = item["summary"][0]["text"]
    at = {**at, "summary_index": 0}
    return [
        ("response.reasoning_summary_part.added", {**at, "part": {"type": "summary_text", "text": ""}}),
        *(("response.reasoning_summary_text.delta", {**at, "delta": piece}) for piece in pieces(text)),
        ("response.reasoning_summary_text.done", {**at, "text": text}),
        ("response.reasoning_summary_part.done", {**at, "part": item["summary"][0]}),
    ]


def _message(item: Fields, at: Fields) -> list[tuple[str, Fields]]:
    text = item["content"][0]["text"]
    at = {**at, "content_index": 0}
    return [
        ("response.content_part.added", {**at, "part": text_part("")}),
        *(("response.output_text.delta", {**at, "delta": piece, "logprobs": []}) for piece in pieces(text)),
        ("response.output_text.done", {**at, "text": text, "logprobs": []}),
        ("response.content_part.done", {**at, "part": item["content"][0]}),
    ]


def _function_call(item: Fields, at: Fields) -> list[tuple[str, Fields]]:
    text = item["arguments"]
    return [
        *(("response.function_call_arguments.delta", {**at, "delta": piece}) for piece in pieces(text)),
        ("response.function_call_arguments.done", {**at, "name": item["name"], "arguments": text}),
    ]


def _custom_call(item: Fields, at: Fields) -> list[tuple[str, Fields]]:
    text = item["input"]
    return [
        *(("response.custom_tool_call_input.delta", {**at, "delta": piece}) for piece in pieces(text)),
        ("response.custom_tool_call_input.done", {**at, "input": text}),
    ]


_FILLERS: dict[str, tuple[Fields, Callable[[Fields, Fields], list[tuple[str, Fields]]]]] = {
    "reasoning": ({"summary": []}, _reasoning),
    "message": ({"content": []}, _message),
    "function_call": ({"arguments": ""}, _function_call),
    "custom_tool_call": ({"input": ""}, _custom_call),
}
