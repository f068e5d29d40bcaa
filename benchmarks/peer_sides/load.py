"""The harness of every side: replays what the server said, adds the tool's answer, asks again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import msgspec
from benchmarks.peer_sides.conversation import MODEL, Script
from benchmarks.peer_sides.sides import Server

CALL_S = 300.0
_REPLAYED = ("role", "content", "reasoning_content", "reasoning", "tool_calls")


class CallCost(msgspec.Struct):
    """One model call: its turn (from 1), bytes of its body, milliseconds until the reply and of the server's CPU."""

    turn: int
    body: int
    wall_ms: float
    cpu_ms: float


async def converse(server: Server, key: str, script: Script, http: aiohttp.ClientSession) -> list[CallCost]:
    """Play a conversation, one call after the other.

    What a server does after a reply counts for the call during which it happens; over a conversation nothing is lost
    but what the last reply leaves.

    Raises:
        SystemExit: a call failed, or the answer is not the scripted one.
    """
    messages = script.start()
    costs: list[CallCost] = []
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    cpu = server.cpu_s()
    for number, turn in enumerate(script.turns, 1):
        body = msgspec.json.encode(
            {"model": MODEL, "messages": messages, "tools": script.tools, "max_tokens": 1024, "stream": False}
        )
        begun = time.perf_counter()
        message = await _ask(server, body, headers, http)
        wall = time.perf_counter() - begun
        now = server.cpu_s()
        costs.append(CallCost(turn=number, body=len(body), wall_ms=1000 * wall, cpu_ms=1000 * (now - cpu)))
        cpu = now
        calls = message.get("tool_calls") or []
        if [call["function"]["name"] for call in calls] != [turn.call]:
            raise SystemExit(f"error: {server.name} answered turn {number} with {str(message)[:500]}")
        messages.append({name: message[name] for name in _REPLAYED if message.get(name) is not None})
        messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": turn.result})
    return costs


async def _ask(server: Server, body: bytes, headers: dict[str, str], http: aiohttp.ClientSession) -> dict[str, Any]:
    url = f"{server.url}/v1/chat/completions"
    async with http.post(url, data=body, headers=headers) as reply:
        raw = await reply.read()
        if reply.status != 200:
            raise SystemExit(f"error: {server.name} answered {reply.status}: {raw[:500]!r}")
    message: dict[str, Any] = msgspec.json.decode(raw)["choices"][0]["message"]
    return message


async def floor_of(server: Server, bodies: list[bytes], repetitions: int, http: aiohttp.ClientSession) -> list[float]:
    """Milliseconds of CPU that each body costs the server that only reads; smallest of ``repetitions``."""
    found = [float("inf")] * len(bodies)
    for _ in range(repetitions):
        for place, body in enumerate(bodies):
            before = server.cpu_s()
            await _ask(server, body, {"Content-Type": "application/json"}, http)
            found[place] = min(found[place], 1000 * (server.cpu_s() - before))
            await asyncio.sleep(0)
    return found


def final_bodies(script: Script, turns: list[int]) -> list[bytes]:
    """Bodies as long as those of these turns (from 1)."""
    messages, bodies = script.start(), []
    for number, turn in enumerate(script.turns, 1):
        if number in turns:
            bodies.append(msgspec.json.encode({"model": MODEL, "messages": messages, "tools": script.tools}))
        call = {"id": "call_1", "type": "function", "function": {"name": turn.call, "arguments": turn.arguments}}
        said = {"role": "assistant", "content": None, "reasoning_content": turn.reasoning, "tool_calls": [call]}
        messages += [said, {"role": "tool", "tool_call_id": "call_1", "content": turn.result}]
    return bodies
