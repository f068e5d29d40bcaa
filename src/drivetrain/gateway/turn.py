"""The life of one call: match -> render -> reserve -> generate -> parse -> commit."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from drivetrain.engines.protocol import Completion, ContextOverflow, Engine, EngineError, Sampling
from drivetrain.gateway.budgets import BudgetStop, Reservation
from drivetrain.gateway.delivery import Served
from drivetrain.gateway.refusal import Refusal, RefusalCode
from drivetrain.gateway.sessions import Session
from drivetrain.gateway.volatile import strip_volatile
from drivetrain.journal.writer import Journal, JournalError
from drivetrain.messages import Call, FinishReason, Message, Reply, ToolCall, ToolSpec, Usage
from drivetrain.tokens.codec import PROMPT_END, TokenCodec, ToolsDropped
from drivetrain.tokens.parse import Parsed
from drivetrain.tokens.template import TemplateRefused
from drivetrain.trace.graph import Match, prompt_digest
from drivetrain.trace.keys import Key, extend, message_key
from drivetrain.trace.turn import ForkReason, Ids, Link, Turn, pack_ids, pack_logprobs
from drivetrain.trace.validate import check_turn
from drivetrain.trace.watermark import mint_call_id


class _Prompt(msgspec.Struct, frozen=True):
    """Ids for the engine and how they hang in the graph."""

    ids: Ids
    delta: Ids
    parent: Turn | None
    match: Match
    tail: tuple[Message, ...]
    tail_keys: tuple[Key, ...]
    rerendered: bool


class TurnRunner:
    """Serves decoded calls of any session against one engine and one model.

    Args:
        engine: where tokens come from.
        codec: the model's template, tokenizer, boundary and parser.
        journal: where a turn is committed before its reply is returned.
    """

    def __init__(self, engine: Engine, codec: TokenCodec, journal: Journal) -> None:
        self._engine = engine
        self._codec = codec
        self._journal = journal

    async def run(self, session: Session, call: Call, body_sha256: bytes) -> Served:
        """Serve one call. When this returns, the turn is durable.

        Raises:
            Refusal: the call cannot be served; the reason is recorded as an event.
        """
        started = time.time()
        call = strip_volatile(call, session.volatile)
        try:
            reservation = session.budget.reserve(call.requested.max_tokens)
        except BudgetStop as stop:
            return await self._stop(session, stop)
        try:
            prompt = self._prompt(session, call)
            self._fit(prompt, reservation)
            turn_id = session.graph.reserve_id()
            sampling = self._sampling(session, turn_id, reservation)
            dispatched = time.time()
            completion = await self._generate(session, prompt, sampling, turn_id)
            turn = self._turn(
                session, call, prompt, completion, sampling, turn_id, (started, dispatched, time.time()), body_sha256
            )
            await self._commit(session, turn)
            reservation.settle(len(turn.sampled_ids))
            return Served(turn.reply, turn)
        except Refusal as refusal:
            await self._note(session, "refused", code=refusal.code, reason=str(refusal))
            raise
        except asyncio.CancelledError:
            await self._note(session, "abandoned", body=body_sha256.hex()[:16])
            raise
        finally:
            reservation.release()

    def _prompt(self, session: Session, call: Call) -> _Prompt:
        """Stored ids + delta where the request continues a stored turn, a fresh rendering elsewhere."""
        graph = session.graph
        match = graph.match(call.messages, call.tools, call.keys)
        try:
            if match.parent is not None:
                parent = match.parent
                delta = self._codec.continuation(
                    parent.sampled_ids.tolist(), match.tail, graph.tools_of(parent), parent.reply.tool_calls
                )
                if delta is not None:
                    packed = pack_ids(delta)
                    ids = np.concatenate([graph.ids_through(match.parent), packed])
                    return _Prompt(ids, packed, match.parent, match, match.tail, match.tail_keys, False)
            ids = pack_ids(self._codec.first_prompt(call.messages, call.tools))
        except ToolsDropped as error:
            raise Refusal("tools_dropped", error.what, fix=error.fix, param="tools") from error
        except TemplateRefused as error:
            raise Refusal("invalid_request", error.what, fix=error.fix, param="messages") from error
        keys = match.tail_keys
        if match.parent is not None:
            keys = (*(key for key, _ in graph.stored_messages(match.parent)), *keys)
        return _Prompt(ids, ids, None, match, call.messages, keys, match.parent is not None)

    def _fit(self, prompt: _Prompt, reservation: Reservation) -> None:
        room = self._engine.context_length - len(prompt.ids)
        if room <= 0:
            raise _overflow(len(prompt.ids), self._engine.context_length)
        if room < reservation.max_tokens:
            reservation.shrink(room)

    def _sampling(self, session: Session, turn_id: int, reservation: Reservation) -> Sampling:
        policy = session.policy
        seed = secrets.randbits(62) if policy.seed is None else _derive_seed(policy.seed, session.id, turn_id)
        return Sampling(
            max_tokens=reservation.max_tokens,
            temperature=policy.temperature,
            seed=seed,
            stop_token_ids=self._codec.stop_ids,
        )

    async def _generate(self, session: Session, prompt: _Prompt, sampling: Sampling, turn_id: int) -> Completion:
        try:
            completion = await self._engine.generate(
                prompt.ids.tolist(), sampling, request_id=f"{session.id}:{turn_id}", session_id=session.id
            )
        except ContextOverflow as error:
            raise _overflow(error.prompt_tokens, error.context_length) from error
        except EngineError as error:
            code: RefusalCode = "engine_unavailable" if error.retryable else "engine_refused"
            raise Refusal(code, f"the engine failed: {error.what}", fix=error.fix) from error
        if completion.finish_reason == "abort":
            raise Refusal("engine_unavailable", "the engine aborted the generation.")
        if len(completion.token_ids) == 0:
            raise Refusal("engine_unavailable", "the engine returned no token.")
        return completion

    def _turn(
        self,
        session: Session,
        call: Call,
        prompt: _Prompt,
        completion: Completion,
        sampling: Sampling,
        turn_id: int,
        times: tuple[float, float, float],
        body_sha256: bytes,
    ) -> Turn:
        prompt_end = prompt.ids[-PROMPT_END:].tolist()
        parsed = self._codec.parse(completion.token_ids, tools=call.tools, prompt=prompt_end)
        usage = Usage(len(prompt.ids), len(completion.token_ids))
        reply = _reply(session, turn_id, parsed, completion, usage, int(times[2]))
        spoken = message_key(reply.as_message())
        turn = Turn(
            id=turn_id,
            parent=prompt.parent.id if prompt.parent is not None else None,
            link="root",
            delta_ids=prompt.delta,
            sampled_ids=pack_ids(completion.token_ids),
            logprobs=pack_logprobs(completion.logprobs),
            prompt_len=len(prompt.ids),
            prompt_sha256=prompt_digest(prompt.ids),
            tail_keys=prompt.tail_keys,
            prompt_chain=prompt.match.chain,
            reply_key=spoken,
            reply_chain=extend(prompt.match.chain, spoken),
            n_tools=len(call.tools),
            finish_reason=reply.finish_reason,
            soft_mismatches=prompt.match.soft,
            policy_version_start=completion.policy_version_start,
            policy_version_end=completion.policy_version_end,
            dialect=call.dialect,
            requested=call.requested,
            effective=msgspec.structs.asdict(sampling) | {"top_p": 1.0, "top_k": 0, "min_p": 0.0},
            engine=self._engine.name,
            body_sha256=body_sha256,
            reply=reply,
            messages=prompt.tail,
            tools=call.tools if prompt.parent is None else None,
            origin=call.origin,
            started_at=times[0],
            dispatched_at=times[1],
            completed_at=times[2],
        )
        turn.link, turn.fork_reason, turn.fork_detail = self._link(session, prompt, call.messages, call.tools)
        findings = check_turn(turn, vocab_size=self._codec.tokenizer.vocab_size)
        dropped = ("template_dropped_message",) if prompt.parent and self._codec.drops(prompt.tail) else ()
        turn.notes = (*dropped, *parsed.notes, *(finding.code for finding in findings))
        return turn

    def _link(
        self, session: Session, prompt: _Prompt, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[Link, ForkReason, str]:
        if prompt.rerendered:
            return "new_root", "template_not_append_only", "the template rewrites earlier messages for this shape"
        reason, detail = session.graph.explain(prompt.match, messages, tools)
        if prompt.parent is None:
            return ("new_root" if len(session.graph) else "root"), reason, detail
        return ("fork" if reason else "linear"), reason, detail

    async def _commit(self, session: Session, turn: Turn) -> None:
        if session.state != "open":
            raise Refusal("session_sealed", "the session was sealed while this call was running.")
        try:
            await self._journal.add_turn(session.id, turn)
        except JournalError as error:
            raise Refusal("journal_unavailable", error.what, fix=error.fix) from error
        session.graph.add(turn)
        session.delivery.committed(turn)

    async def _stop(self, session: Session, stop: BudgetStop) -> Served:
        """A non-empty terminal assistant message: an empty one is asked again for ever (case row D14)."""
        await self._note(session, "budget_stop", budget=stop.budget, limit=stop.limit)
        reply = Reply(
            id=f"stop-{secrets.token_hex(6)}",
            model=session.policy.model,
            created=int(time.time()),
            content=f"Stopping here: the budget of this session ({stop.budget}) is used up.",
            reasoning="",
            tool_calls=(),
            finish_reason="stop",
            usage=Usage(0, 0),
        )
        return Served(reply, None)

    async def _note(self, session: Session, kind: str, **detail: object) -> None:
        session.count(kind)
        await self._journal.add_event(session.id, kind, **detail)


def _reply(session: Session, turn_id: int, parsed: Parsed, completion: Completion, usage: Usage, created: int) -> Reply:
    tag = session.graph.session_tag
    calls = tuple(
        ToolCall(mint_call_id(tag, turn_id, index), call.name, call.arguments)
        for index, call in enumerate(parsed.calls)
    )
    finish: FinishReason = "stop"
    if completion.finish_reason == "length":
        finish = "length"
    elif calls:
        finish = "tool_calls"
    return Reply(
        id=f"chatcmpl-{tag}t{turn_id:04x}",
        model=session.policy.model,
        created=created,
        content=parsed.content,
        reasoning=parsed.reasoning,
        tool_calls=calls,
        finish_reason=finish,
        usage=usage,
    )


def _overflow(prompt_tokens: int, context_length: int) -> Refusal:
    return Refusal(
        "context_length_exceeded",
        f"This model's maximum context length is {context_length} tokens. However, your messages resulted in "
        f"{prompt_tokens} tokens.",
        fix="Please reduce the length of the messages.",
        param="messages",
    )


def _derive_seed(seed: int, session_id: str, turn_id: int) -> int:
    text = f"{seed}:{session_id}:{turn_id}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 2
