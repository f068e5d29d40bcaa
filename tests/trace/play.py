"""A session played straight on the graph, with a clock and byte tokens: what the gateway does without HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from drivetrain.messages import Message, Reply, RequestedSampling, ToolCall, ToolSpec, Usage
from drivetrain.trace.forks import link_of
from drivetrain.trace.graph import TraceGraph, reply_message
from drivetrain.trace.hashes import prompt_digest
from drivetrain.trace.keys import extend, message_key
from drivetrain.trace.sharing import share_prompt
from drivetrain.trace.turn import Turn, pack_ids, pack_logprobs
from drivetrain.trace.watermark import mint_call_id

START, END = 256, 257
SPECIAL = frozenset({START, END})
BASH = ToolSpec("bash", "run a command")
TASK = ToolSpec("task", "start an agent")


class Bytes:
    """Token i is byte i; 256 opens a message, 257 closes it."""

    def decode(self, ids: Sequence[int]) -> str:
        out = b"".join({START: b"<|start|>", END: b"<|end|>"}.get(i) or bytes([i]) for i in ids)
        return out.decode(errors="replace")


def system(text: str) -> Message:
    return Message("system", text)


def user(text: str) -> Message:
    return Message("user", text)


def results(turn: Turn, text: str = "ok") -> list[Message]:
    """The reply of a turn and a result of each of its calls."""
    answers = [Message("tool", text, tool_call_id=call.id) for call in turn.reply.tool_calls]
    return [reply_message(turn), *answers]


class Play:
    """``ask`` commits a turn; the clock goes one second per call unless ``start`` and ``end`` are given."""

    def __init__(self) -> None:
        self.graph = TraceGraph("0123abcd")
        self.clock = 0.0

    def ask(
        self,
        messages: Sequence[Message],
        text: str = "",
        calls: Sequence[tuple[str, Mapping[str, Any]]] = (),
        *,
        tools: Sequence[ToolSpec] = (BASH,),
        start: float | None = None,
        end: float | None = None,
        **fields: Any,
    ) -> Turn:
        graph = self.graph
        match = graph.match(messages, tools)
        turn_id = graph.reserve_id()
        start = self.clock if start is None else start
        end = start + 1 if end is None else end
        self.clock = max(self.clock, end)
        made = tuple(
            ToolCall(mint_call_id(graph.session_tag, turn_id, i), name, json.dumps(arguments))
            for i, (name, arguments) in enumerate(calls)
        )
        parent = fields.pop("root", False) or match.parent is None
        above = None if parent else match.parent
        tail = tuple(messages) if parent else match.tail
        delta = [token for message in tail for token in render(message)] + [START, *b"assistant\n"]
        before = graph.ids_through(above).tolist() if above else []
        sampled = [*(text + "".join(f"{c.name}{c.arguments}" for c in made)).encode(), END]
        reply = Reply("r", "m", 0, text, "", made, "tool_calls" if made else "stop", Usage(0, len(sampled)))
        spoken = message_key(Message("assistant", text, "", made))
        link, reason, detail = link_of(graph, match, messages, tools)
        kept = [key for key, _ in graph.stored_messages(match.parent)] if parent and match.parent else []
        values: dict[str, Any] = {
            "logprobs": pack_logprobs([-0.5] * len(sampled)),
            "notes": (),
            "delivered": True,
            "requested": RequestedSampling(max_tokens=fields.pop("max_tokens", None)),
            "policy_version_start": 0,
            "policy_version_end": 0,
            **fields,
        }
        turn = Turn(
            id=turn_id,
            parent=above.id if above else None,
            link=link,
            fork_reason=reason,
            fork_detail=detail,
            delta_ids=pack_ids(delta),
            sampled_ids=pack_ids(sampled),
            prompt_len=len(before) + len(delta),
            prompt_sha256=prompt_digest(pack_ids([*before, *delta])),
            tail_keys=(*kept, *match.tail_keys),
            prompt_chain=match.chain,
            reply_key=spoken,
            reply_chain=extend(match.chain, spoken),
            n_tools=len(tools),
            finish_reason=reply.finish_reason,
            dialect="test",
            effective={},
            engine="test",
            reply=reply,
            messages=tail,
            tools=tuple(tools) if above is None else None,
            started_at=start,
            dispatched_at=start,
            completed_at=end,
            **values,
        )
        share_prompt(graph, turn)
        graph.add(turn)
        return turn

    def work(self, opening: Sequence[Message], turns: int = 3, **options: Any) -> tuple[list[Message], list[Turn]]:
        """An agent that calls bash ``turns`` times: its history and its turns."""
        history, done = list(opening), []
        for number in range(turns):
            turn = self.ask(
                history, f"I look at part {number} of it.", [("bash", {"command": f"ls {number}"})], **options
            )
            done.append(turn)
            history += results(turn, f"file {number}")
        return history, done


def render(message: Message) -> list[int]:
    text = message.content + "".join(f"{call.name}{call.arguments}" for call in message.tool_calls)
    return [START, *f"{message.role}\n".encode(), *text.encode(), END]
