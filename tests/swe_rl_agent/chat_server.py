"""A scripted OpenAI chat server on a Unix socket: the model side of the agent tests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

KEY = "dt-test-0123456789abcdef0123456789abcdef"
MODEL = "test-model"

Turn = dict[str, Any]
"""An assistant message: ``content`` and perhaps ``tool_calls``."""


def call(turn: int, name: str, **arguments: Any) -> Turn:
    """An assistant turn with one tool call whose id encodes the turn."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    tool_call = {"id": f"call_dt_{turn}_a1b2c3", "type": "function", "function": function}
    return {"role": "assistant", "content": f"Step {turn}.", "tool_calls": [tool_call]}


def say(text: str) -> Turn:
    """An assistant turn of text only."""
    return {"role": "assistant", "content": text}


@dataclass
class ChatServer:
    """Serves ``turns`` in order; ``fault`` may answer a request instead of the script."""

    socket: Path
    turns: list[Turn]
    fault: Callable[[int], web.Response | None] = lambda _n: None
    hang: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    first_at: float = 0.0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.first_at = self.first_at or time.monotonic()
        self.paths.append(f"{request.method} {request.path}")
        self.keys.append(request.headers.get("Authorization", ""))
        self.sizes.append(len(raw))
        body = json.loads(raw)
        self.requests.append(body)
        self.arrived.set()
        if self.hang:
            await asyncio.sleep(3600)
        if (failure := self.fault(len(self.requests))) is not None:
            return failure
        answered = sum(message["role"] == "assistant" for message in body["messages"])
        message = self.turns[min(answered, len(self.turns) - 1)]
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        base = {"id": f"chat-{len(self.requests)}", "created": 1, "model": MODEL}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return web.json_response({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        delta = dict(message)
        if calls := delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": index, **item} for index, item in enumerate(calls)]
        for part, reason in ((delta, None), ({}, finish)):
            choice = {"index": 0, "delta": part, "finish_reason": reason}
            event = {**base, "object": "chat.completion.chunk", "choices": [choice]}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        event = {**base, "object": "chat.completion.chunk", "choices": [], "usage": usage}
        await response.write(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())
        return response

    def tool_results(self) -> list[dict[str, Any]]:
        """The tool messages of the last request."""
        return [message for message in self.requests[-1]["messages"] if message["role"] == "tool"]


@asynccontextmanager
async def serving(server: ChatServer) -> AsyncIterator[ChatServer]:
    """Run the server for the length of a block."""
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(server.socket)).start()
    try:
        yield server
    finally:
        await runner.cleanup()
