"""The engine of every side: says what the script says, at once. A process of its own, whose time is nobody's.

    python engine.py SCRIPTS.json       prints {"port": N} when it listens

``POST /inference/v1/generate`` takes token ids (drivetrain, verifiers). ``POST /v1/chat/completions`` takes messages
and tells the ids of prompt and completion (OpenEnv). Which turn it is shows in the request: one tool answer per turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.peer_sides.conversation import CONTEXT, MODEL, EngineScript

_LIMIT = 256 << 20


class Request(msgspec.Struct):
    """Of ``/inference/v1/generate``."""

    token_ids: list[int]


class Message(msgspec.Struct):
    """Of ``/v1/chat/completions``: just what tells which turn it is."""

    role: str
    content: Any = None


class ChatRequest(msgspec.Struct):
    """Of ``/v1/chat/completions``."""

    messages: list[Message]


class Engine:
    """Answers, made before the first request."""

    def __init__(self, scripts: list[EngineScript], marker: int) -> None:
        self._marker = marker
        self._scripts = {script.number: script for script in scripts}
        self._by_first = {tuple(script.first[:64]): script for script in scripts}
        self._generate = {
            (script.number, turn): self._generated(script, turn)
            for script in scripts
            for turn in range(len(script.turns))
        }
        self._calls = 0

    async def generate(self, request: web.Request) -> web.Response:
        """Token ids in, token ids and log-probs out."""
        try:
            asked = msgspec.json.decode(await request.read(), type=Request)
        except msgspec.ValidationError as error:
            return web.json_response({"error": str(error)}, status=400)
        ids = asked.token_ids
        script = self._by_first[tuple(ids[:64])]
        turn = ids.count(self._marker) - script.first.count(self._marker)
        body = self._generate[script.number, turn]
        return web.Response(
            body=body % (self._number(), len(ids), len(script.sampled[turn])), content_type="application/json"
        )

    async def chat(self, request: web.Request) -> web.Response:
        """Messages in, text, ids and log-probs out."""
        asked = msgspec.json.decode(await request.read(), type=ChatRequest)
        number = int(str(asked.messages[0].content).partition(".")[0].removeprefix("Conversation "))
        turn = sum(message.role == "tool" for message in asked.messages)
        return web.Response(body=self._chatted(self._scripts[number], turn), content_type="application/json")

    def _number(self) -> bytes:
        self._calls += 1
        return b"%d" % self._calls

    def _generated(self, script: EngineScript, turn: int) -> bytes:
        ids = script.sampled[turn]
        entries = [
            {"token": f"token_id:{token}", "logprob": _logprob(place), "bytes": None, "top_logprobs": []}
            for place, token in enumerate(ids)
        ]
        choice = {"index": 0, "token_ids": ids, "logprobs": {"content": entries}, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice], "prompt_logprobs": None}).encode().replace(b"%", b"%%")
        return b'{"request_id": "gen-%s", "usage": {"prompt_tokens": %d, "completion_tokens": %d}, ' + body[1:]

    def _chatted(self, script: EngineScript, turn: int) -> bytes:
        said, ids = script.turns[turn], script.sampled[turn]
        prompt = list(script.first)
        for earlier in range(turn):
            prompt += script.sampled[earlier]
            prompt += script.appended[earlier]
        call = {
            "id": f"call_{script.number}_{turn}",
            "type": "function",
            "function": {"name": said.call, "arguments": said.arguments},
        }
        message = {"role": "assistant", "content": None, "reasoning_content": said.reasoning, "tool_calls": [call]}
        entries = [
            {"token": f"token_id:{token}", "logprob": _logprob(place), "bytes": None, "top_logprobs": []}
            for place, token in enumerate(ids)
        ]
        reply = {
            "id": f"chatcmpl-{self._number().decode()}",
            "object": "chat.completion",
            "created": 1,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "logprobs": {"content": entries},
                    "finish_reason": "tool_calls",
                    "token_ids": ids,
                }
            ],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(ids),
                "total_tokens": len(prompt) + len(ids),
            },
            "prompt_token_ids": prompt,
        }
        return msgspec.json.encode(reply)


def _logprob(place: int) -> float:
    return -round(0.0137 + 0.7391 * ((place * 7919) % 97) / 97, 6)


async def _models(_request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": CONTEXT}]})


async def _ok(_request: web.Request) -> web.Response:
    return web.json_response({"version": "0.31.0"})


async def main() -> None:
    """Serve until the parent goes."""
    given = msgspec.json.decode(Path(sys.argv[1]).read_bytes())
    engine = Engine(msgspec.convert(given["scripts"], list[EngineScript]), given["marker"])
    app = web.Application(client_max_size=_LIMIT)
    app.router.add_post("/inference/v1/generate", engine.generate)
    app.router.add_post("/v1/chat/completions", engine.chat)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/health", _ok)
    app.router.add_get("/version", _ok)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.5)


if __name__ == "__main__":
    import gc

    gc.freeze()
    asyncio.run(main())
