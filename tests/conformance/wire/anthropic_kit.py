"""The official Anthropic SDK as a client of the gateway: every way to ask, and what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import anthropic
import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent

from drivetrain.engines.models import ModelDir
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.sessions import Session
from drivetrain.tokens.codec import TokenCodec
from tests.gateway.conftest import Rig

Block = dict[str, Any]
ASK: Any = {"model": "claude", "max_tokens": 512, "messages": [{"role": "user", "content": "fix the bug"}]}
BASH: Any = {
    "name": "bash",
    "description": "run a command",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def codec(tiny_model: ModelDir) -> TokenCodec:
    """The tiny model's, read as that of a model that reasons."""
    return load_codec(tiny_model, parser="think+hermes")


class Clients(msgspec.Struct):
    """One session and both SDK clients with its key; they retry ``retries`` times."""

    session: Session
    sync: anthropic.Anthropic
    asyn: anthropic.AsyncAnthropic

    @property
    def turns(self) -> list[Any]:
        return list(self.session.graph)


async def clients(rig: Rig, *, retries: int = 0, **policy: Any) -> Clients:
    session, key = await rig.gateway.open_session(SessionPolicy(model="policy", **policy))
    options: Any = {"base_url": rig.url, "api_key": key, "max_retries": retries, "timeout": 20}
    return Clients(session, anthropic.Anthropic(**options), anthropic.AsyncAnthropic(**options))


Way = Callable[[Clients, Any], Any]


def accumulate(events: Sequence[RawMessageStreamEvent]) -> Message:
    """The message that raw events make; the last of them ends it."""
    assert events[-1].type == "message_stop"
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert isinstance(snapshot, Message)
    return snapshot


async def async_json(c: Clients, body: Any) -> Message:
    return await c.asyn.messages.create(**body)


async def async_events(c: Clients, body: Any) -> Message:
    """Raw events, put together by the SDK's accumulator."""
    return accumulate([event async for event in await c.asyn.messages.create(**body, stream=True)])


async def async_stream(c: Clients, body: Any) -> Message:
    async with c.asyn.messages.stream(**body) as stream:
        return await stream.get_final_message()


async def sync_json(c: Clients, body: Any) -> Message:
    return await asyncio.to_thread(lambda: c.sync.messages.create(**body))


async def sync_stream(c: Clients, body: Any) -> Message:
    def run() -> Message:
        with c.sync.messages.stream(**body) as stream:
            return stream.get_final_message()

    return await asyncio.to_thread(run)


async def sync_events(c: Clients, body: Any) -> Message:
    return accumulate(await asyncio.to_thread(lambda: list(c.sync.messages.create(**body, stream=True))))


WAYS: dict[str, Way] = {
    "async-json": async_json,
    "async-stream": async_stream,
    "async-events": async_events,
    "sync-json": sync_json,
    "sync-stream": sync_stream,
    "sync-events": sync_events,
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def blocks(message: Message) -> list[Block]:
    """The content as a client sends it back."""
    return [block.model_dump(exclude_none=True) for block in message.content]


def one_call(index: int) -> str:
    """Text in which the policy thinks, speaks and calls the tool once."""
    arguments = json.dumps({"command": f"step {index}", "big": 2**60 + index, "timeout": 5000.0, "a": {"z": 1, "b": 2}})
    call = f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'
    return f"<think>step {index} is next</think>\nLet me look.\n{call}"


async def raw_stream(c: Clients) -> bytes:
    body = {**ASK, "stream": True, "system": "raw"}
    headers = {"x-api-key": str(c.asyn.api_key), "anthropic-version": "2023-06-01"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(str(c.asyn.base_url).rstrip("/") + "/v1/messages?beta=true", json=body, headers=headers) as response,
    ):
        return await response.read()
