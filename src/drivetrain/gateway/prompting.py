"""The prompt of a call: stored ids and a delta where it continues a stored turn, a fresh rendering elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, Message, ToolSpec
from drivetrain.tokens.check import ReasoningPolicy
from drivetrain.tokens.codec import TokenCodec, ToolsDropped
from drivetrain.tokens.template import TemplateRefused
from drivetrain.trace.forks import canonical_keys
from drivetrain.trace.graph import Match, TraceGraph, reply_message
from drivetrain.trace.keys import Key
from drivetrain.trace.turn import Ids, Turn, pack_ids

_LONG_CHARS = 16_000
"""Text that is rendered and encoded in a thread: about 20 ms of work, during which every other session would wait."""
T = TypeVar("T")


class Prompt(msgspec.Struct, frozen=True):
    """Ids for the engine and how they hang in the graph.

    ``tail`` and ``tail_keys`` are the messages behind the parent's reply; without a parent, the whole request, where
    what was recognised as ours stands as it was served. ``rerendered``: ``match`` has a parent, but the template allows
    no continuation of it.
    """

    ids: Ids
    delta: Ids
    parent: Turn | None
    match: Match
    tail: tuple[Message, ...]
    tail_keys: tuple[Key, ...]
    rerendered: bool


async def prompt_of(
    graph: TraceGraph, codec: TokenCodec, call: Call, *, reasoning: ReasoningPolicy | None = None
) -> Prompt:
    """The prompt of a call. ``reasoning`` is the session's policy; None takes the codec's.

    Raises:
        Refusal: the template drops the tools or does not render these messages.
    """
    match = graph.match(call.messages, call.tools, call.keys)
    try:
        if match.parent is not None:
            parent = match.parent
            sampled, tools = parent.sampled_ids.tolist(), graph.tools_of(parent)
            delta = await _aside(
                match.tail,
                lambda: codec.continuation(sampled, match.tail, tools, parent.reply.tool_calls, reasoning=reasoning),
            )
            if delta is not None:
                packed = pack_ids(delta)
                ids = np.concatenate([graph.ids_through(match.parent), packed])
                return Prompt(ids, packed, match.parent, match, match.tail, match.tail_keys, False)
        ids = pack_ids(await _aside(call.messages, lambda: codec.first_prompt(call.messages, call.tools)))
    except ToolsDropped as error:
        raise Refusal("tools_dropped", error.what, fix=error.fix, param="tools") from error
    except TemplateRefused as error:
        raise Refusal("invalid_request", error.what, fix=error.fix, param="messages") from error
    if match.parent is None:
        return Prompt(ids, ids, None, match, call.messages, match.tail_keys, False)
    messages = (*graph.request(match.parent), reply_message(match.parent), *match.tail)
    return Prompt(ids, ids, None, match, messages, tuple(canonical_keys(graph, match)), True)


async def _aside(messages: Sequence[Message], work: Callable[[], T]) -> T:
    """Do the work for these messages: here when it is short, in a thread when it is long."""
    if sum(len(message.content) for message in messages) < _LONG_CHARS:
        return work()
    return await asyncio.to_thread(work)


def conversation_of(graph: TraceGraph, prompt: Prompt, call: Call) -> tuple[list[Message], tuple[ToolSpec, ...]]:
    """The messages and tools that a prompt's ids stand for, for engines that render them themselves."""
    if prompt.parent is None:
        return list(prompt.tail), call.tools
    parent = prompt.parent
    return [*graph.request(parent), reply_message(parent), *prompt.tail], graph.tools_of(parent)
