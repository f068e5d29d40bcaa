"""What a served call leaves behind: its reply and its turn."""

from __future__ import annotations

import msgspec

from drivetrain.engines.protocol import Completion
from drivetrain.gateway.fence_types import Passage
from drivetrain.gateway.prompting import Prompt
from drivetrain.gateway.sampling import Effective
from drivetrain.gateway.upstream import prompt_difference
from drivetrain.messages import Call, FinishReason, Reply, ToolCall, Usage
from drivetrain.tokens.codec import PROMPT_END, TokenCodec
from drivetrain.tokens.parse import Parsed
from drivetrain.trace.keys import extend, message_key
from drivetrain.trace.sample import PROMPT_MISMATCH
from drivetrain.trace.turn import Turn, pack_ids, pack_logprobs
from drivetrain.trace.validate import check_turn
from drivetrain.trace.watermark import mint_call_id


class Times(msgspec.Struct, frozen=True):
    """Seconds since the epoch: request received, engine done; between them the way through the gate."""

    started: float
    completed: float
    passage: Passage


class Identity(msgspec.Struct, frozen=True):
    """What names a turn: its id in the graph, the id of its reply on the wire, the digest of its request."""

    turn_id: int
    reply_id: str
    body_sha256: bytes
    session_tag: str
    model: str


def record_turn(
    codec: TokenCodec,
    call: Call,
    prompt: Prompt,
    completion: Completion,
    effective: Effective,
    identity: Identity,
    prompt_sha256: bytes,
    times: Times,
    engine: str,
) -> Turn:
    """The turn of a completed call; ``link`` is set when it joins the graph. ``prompt_sha256`` is of ``prompt.ids``."""
    parsed = codec.parse(completion.token_ids, tools=call.tools, prompt=prompt.ids[-PROMPT_END:].tolist())
    reply = _reply(identity, parsed, completion, Usage(len(prompt.ids), len(completion.token_ids)), times)
    spoken = message_key(reply.as_message())
    turn = Turn(
        id=identity.turn_id,
        parent=prompt.parent.id if prompt.parent is not None else None,
        link="root",
        delta_ids=prompt.delta,
        sampled_ids=pack_ids(completion.token_ids),
        logprobs=pack_logprobs(completion.logprobs),
        prompt_len=len(prompt.ids),
        prompt_sha256=prompt_sha256,
        tail_keys=prompt.tail_keys,
        prompt_chain=prompt.match.chain,
        reply_key=spoken,
        reply_chain=extend(prompt.match.chain, spoken),
        n_tools=len(call.tools),
        finish_reason=reply.finish_reason,
        soft_mismatches=prompt.match.soft,
        policy_version_dispatched=times.passage.policy_version,
        policy_version_start=completion.policy_version_start,
        policy_version_end=completion.policy_version_end,
        policy_spans=policy_spans(completion),
        dialect=call.dialect,
        requested=call.requested,
        effective=effective.record,
        engine=engine,
        body_sha256=identity.body_sha256,
        reply=reply,
        messages=prompt.tail,
        tools=call.tools if prompt.parent is None else None,
        origin=call.origin,
        started_at=times.started,
        gate_entered_at=times.passage.entered_at,
        dispatched_at=times.passage.dispatched_at,
        first_token_at=completion.first_token_at,
        completed_at=times.completed,
    )
    findings = check_turn(turn, vocab_size=codec.tokenizer.vocab_size)
    dropped = ("template_dropped_message",) if prompt.parent and codec.drops(prompt.tail) else ()
    lost = ("usage_mismatch",) if completion.reported_tokens not in (None, len(turn.sampled_ids)) else ()
    other = (PROMPT_MISMATCH,) if prompt_difference(prompt.ids, completion) else ()
    turn.notes = (*dropped, *parsed.notes, *effective.notes, *lost, *other, *(finding.code for finding in findings))
    return turn


def policy_spans(completion: Completion) -> tuple[tuple[int, int], ...]:
    """Runs of (tokens, version) of a completion that straddles a weight update; empty when it does not, or when the
    engine's runs do not cover the sampled tokens."""
    if completion.policy_version_start == completion.policy_version_end:
        return ()
    spans = tuple((count, version) for count, version in completion.version_spans)
    return spans if sum(count for count, _ in spans) == len(completion.token_ids) else ()


def _reply(identity: Identity, parsed: Parsed, completion: Completion, usage: Usage, times: Times) -> Reply:
    calls = tuple(
        ToolCall(mint_call_id(identity.session_tag, identity.turn_id, index), call.name, call.arguments)
        for index, call in enumerate(parsed.calls)
    )
    finish: FinishReason = "stop"
    if completion.finish_reason == "length":
        finish = "length"
    elif calls:
        finish = "tool_calls"
    return Reply(
        id=identity.reply_id,
        model=identity.model,
        created=int(times.completed),
        content=parsed.content,
        reasoning=parsed.reasoning,
        tool_calls=calls,
        finish_reason=finish,
        usage=usage,
    )
