"""The prompt of a call: stored ids and a delta where it continues a stored turn, a fresh rendering elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from drivetrain.gateway.refusal import Refusal
from drivetrain.messages import Call, Message, ToolSpec
from drivetrain.tokens.check import ReasoningPolicy
from drivetrain.tokens.codec import TokenCodec, ToolsDropped
from drivetrain.tokens.template import TemplateRefused
from drivetrain.trace.graph import Match, TraceGraph
from drivetrain.trace.keys import Key
from drivetrain.trace.turn import ForkReason, Ids, Link, Turn, pack_ids


class Prompt(msgspec.Struct, frozen=True):
    """Ids for the engine and how they hang in the graph."""

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
    keys = match.tail_keys
    if match.parent is not None:
        keys = (*(key for key, _ in graph.stored_messages(match.parent)), *keys)
    return Prompt(ids, ids, None, match, call.messages, keys, match.parent is not None)


def link_of(
    graph: TraceGraph, prompt: Prompt, messages: Sequence[Message], tools: Sequence[ToolSpec]
) -> tuple[Link, ForkReason, str]:
    """How a turn joins the graph as it is now, and why it does not simply extend a chain."""
    if prompt.rerendered:
        return "new_root", "template_not_append_only", "the template rewrites earlier messages for this shape"
    reason, detail = graph.explain(prompt.match, messages, tools)
    if prompt.parent is None:
        return ("new_root" if len(graph) else "root"), reason, detail
    return ("fork" if reason else "linear"), reason, detail
