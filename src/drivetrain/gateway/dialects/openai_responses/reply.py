"""The ``response`` object: what was asked, echoed, and a reply as output items."""

from __future__ import annotations

from typing import Any, Literal

from drivetrain.gateway.dialects.openai_responses.ids import item_id, response_id, seal
from drivetrain.gateway.dialects.openai_responses.tools import WireTool, custom_input
from drivetrain.messages import Call, Reply, ToolCall

Status = Literal["in_progress", "completed", "incomplete", "failed"]


def response_object(reply: Reply, call: Call) -> dict[str, Any]:
    """A finished response: ``completed``, or ``incomplete`` when the reply was cut at its token limit."""
    cut = reply.finish_reason == "length"
    return {
        **_blank(reply.id, call, "incomplete" if cut else "completed"),
        "created_at": reply.created,
        "completed_at": None if cut else reply.created,
        "model": reply.model,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output_items(reply, call),
        "usage": _usage(reply),
    }


def pending_object(reply_id: str, call: Call) -> dict[str, Any]:
    """A response whose reply is not there yet; ``created_at`` is 0 because nobody knows it."""
    return _blank(reply_id, call, "in_progress")


def failed_object(reply_id: str, call: Call, code: str, message: str) -> dict[str, Any]:
    """A response that ended without a reply."""
    return {**_blank(reply_id, call, "failed"), "error": {"code": code, "message": message}}


def output_items(reply: Reply, call: Call) -> list[dict[str, Any]]:
    """Reasoning, message, calls, as the policy says them. Only a reply of no words at all has an empty message.

    Reasoning goes out as the summary and not as ``reasoning_text``: Codex takes the latter out of the items it sends
    back and returns a summary verbatim.
    """
    items: list[dict[str, Any]] = []
    cut = reply.finish_reason == "length" and not reply.tool_calls
    status = "incomplete" if cut else "completed"
    speaks = bool(reply.content) or not (reply.reasoning or reply.tool_calls)
    if reply.reasoning:
        items.append(_reasoning(reply, call, "completed" if speaks else status))
    if speaks:
        items.append(
            {
                "id": item_id("msg", reply.id),
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": [text_part(reply.content)],
            }
        )
    names: dict[str, WireTool] = call.wire.get("tools", {})
    items += [_call(reply.id, index, made, names.get(made.name)) for index, made in enumerate(reply.tool_calls)]
    return items


def text_part(text: str) -> dict[str, Any]:
    """A content part without citations; log-probs stay with the trainer."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _reasoning(reply: Reply, call: Call, status: str) -> dict[str, Any]:
    item: dict[str, Any] = {
        "id": item_id("rs", reply.id),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": reply.reasoning}],
        "status": status,
    }
    if call.wire.get("sealed"):
        item["encrypted_content"] = seal(reply.id)
    return item


def _call(reply_id: str, index: int, made: ToolCall, tool: WireTool | None) -> dict[str, Any]:
    """A call of a tool the request offered, in its kind; the policy may also name one that it did not."""
    tool = tool or WireTool("function", made.name)
    head = {"name": tool.name, "call_id": made.id, "status": "completed"}
    if tool.namespace:
        head["namespace"] = tool.namespace
    if tool.kind == "custom":
        text = custom_input(made.arguments)
        return {"id": item_id("ctc", reply_id, index), "type": "custom_tool_call", **head, "input": text}
    return {"id": item_id("fc", reply_id, index), "type": "function_call", **head, "arguments": made.arguments}


def _blank(reply_id: str, call: Call, status: Status) -> dict[str, Any]:
    """Every field of a response; the request's own values over the API's defaults."""
    return {
        "id": response_id(reply_id),
        "object": "response",
        "created_at": 0,
        "status": status,
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": call.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": {},
        **call.wire.get("echo", {}),
    }


def _usage(reply: Reply) -> dict[str, Any]:
    prompt, completion = reply.usage.prompt_tokens, reply.usage.completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
