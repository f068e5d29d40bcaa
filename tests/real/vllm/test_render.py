"""Our first render is the server's own, token by token, for every shape of :data:`drivetrain.tokens.shapes.SHAPES`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from drivetrain.messages import Message, ToolSpec
from drivetrain.tokens.codec import TokenCodec
from drivetrain.tokens.shapes import PROBE_TOOLS, SHAPES
from tests.real.vllm.support import Watched
from tests.real.vllm_server import LiveServer


def as_openai(message: Message) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        said["reasoning"] = message.reasoning
    if message.tool_calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        said["tool_call_id"] = message.tool_call_id
    return said


def tool_of(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


@pytest.mark.parametrize("tools", [(), PROBE_TOOLS], ids=["no tools", "tools"])
async def test_our_first_render_is_the_servers(
    engine: Watched, server: LiveServer, codec: TokenCodec, tools: Sequence[ToolSpec]
) -> None:
    other: dict[str, Any] = {}
    async with aiohttp.ClientSession() as http:
        for shape in SHAPES:
            messages = [*shape.history, *shape.tail]
            body: dict[str, Any] = {"model": "policy", "messages": [as_openai(message) for message in messages]}
            if tools:
                body["tools"] = [tool_of(spec) for spec in tools]
            async with http.post(f"{server.url}/v1/chat/completions/render", json=body) as answer:
                said = await answer.json()
            ours = codec.first_prompt(messages, tools)
            if answer.status != 200 or said["token_ids"] != ours:
                theirs = codec.tokenizer.decode(said["token_ids"]) if answer.status == 200 else said
                other[shape.name] = (theirs, codec.tokenizer.decode(ours))
    print(f"\n{len(SHAPES) - len(other)} of {len(SHAPES)} shapes are equal; not: {', '.join(other)}")
    # vLLM empties arguments that are no JSON object; we show the model what it said
    assert list(other) == ["tool_odd_args"], other
