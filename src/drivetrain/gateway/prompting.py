"""The prompt of a call: stored ids and a delta where it continues a stored turn, a fresh rendering elsewhere."""

from __future__ import annotations

import msgspec
import numpy as np

from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, Message
from drivetrain.tokens.check import ReasoningPolicy
from drivetrain.tokens.codec import TokenCodec, ToolsDropped
from drivetrain.tokens.template import TemplateRefused
from drivetrain.trace.forks import canonical_keys
from drivetrain.trace.graph import Match, TraceGraph, reply_message
from drivetrain.trace.keys import Key
from drivetrain.trace.turn import Ids, Turn, pack_ids


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


def prompt_of(graph: TraceGraph, codec: TokenCodec, call: Call, *, reasoning: ReasoningPolicy | None = None) -> Prompt:
    """The prompt of a call. ``reasoning`` is the session's policy; None takes the codec's.

    Raises:
        Refusal: the template drops the tools or does not render these messages.
    """
    match = graph.match(call.messages, call.tools, call.keys)
    try:
        if match.parent is not None:
            parent = match.parent
            delta = codec.continuation(
                parent.sampled_ids.tolist(),
                match.tail,
                graph.tools_of(parent),
                parent.reply.tool_calls,
                reasoning=reasoning,
            )
            if delta is not None:
                packed = pack_ids(delta)
                ids = np.concatenate([graph.ids_through(match.parent), packed])
                return Prompt(ids, packed, match.parent, match, match.tail, match.tail_keys, False)
        ids = pack_ids(codec.first_prompt(call.messages, call.tools))
    except ToolsDropped as error:
        raise Refusal("tools_dropped", error.what, fix=error.fix, param="tools") from error
    except TemplateRefused as error:
        raise Refusal("invalid_request", error.what, fix=error.fix, param="messages") from error
    if match.parent is None:
        return Prompt(ids, ids, None, match, call.messages, match.tail_keys, False)
    messages = (*graph.request(match.parent), reply_message(match.parent), *match.tail)
    return Prompt(ids, ids, None, match, messages, tuple(canonical_keys(graph, match)), True)
