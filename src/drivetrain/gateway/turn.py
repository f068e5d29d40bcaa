"""The life of one call: reserve -> match and render -> generate -> parse -> commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from drivetrain.engines.protocol import (
    Completion,
    Engine,
    EngineError,
    GeneratesFromMessages,
    GeneratesPacked,
    Sampling,
    honoured_knobs,
)
from drivetrain.gateway.budgets import BudgetStop, Reservation
from drivetrain.gateway.delivery import Served
from drivetrain.gateway.fence import Fence
from drivetrain.gateway.fence_types import Passage
from drivetrain.gateway.limits import call_clock, retained_bytes
from drivetrain.gateway.prompting import Prompt, conversation_of, prompt_of
from drivetrain.gateway.provenance import ProvenanceBook
from drivetrain.gateway.recording import Identity, Times, record_turn
from drivetrain.gateway.redact import guarded_logger
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.sampling import effective_sampling, refuse_untrainable, wanted_tokens
from drivetrain.gateway.sessions import Session
from drivetrain.gateway.unexpected import report
from drivetrain.gateway.upstream import journal_refusal, overflow, prompt_difference, refusal_of, sound
from drivetrain.gateway.volatile import strip_volatile
from drivetrain.journal.writer import Journal, JournalError
from drivetrain.messages import Call, Reply, Usage
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.forks import link_of
from drivetrain.trace.sample import PROMPT_MISMATCH
from drivetrain.trace.sharing import share_prompt
from drivetrain.trace.turn import Turn

_log = guarded_logger("drivetrain.gateway")

STOPPING = "Stopping here: the budget of this session"
"""How the answer to a call beyond a budget begins."""


class TurnRunner:
    """Serves decoded calls of any session against one engine and one model.

    Args:
        engine: where tokens come from.
        codec: the model's template, tokenizer, boundary and parser.
        journal: where a turn is committed before its reply is returned.
        fence: the gate every engine call passes.
        book: where it is recorded who and what a session's calls come from.
    """

    def __init__(self, engine: Engine, codec: TokenCodec, journal: Journal, fence: Fence, book: ProvenanceBook) -> None:
        self._engine = engine
        self._codec = codec
        self._journal = journal
        self._fence = fence
        self._book = book

    async def run(self, session: Session, call: Call, body_sha256: bytes, reply_id: str) -> Served:
        """Serve one call. When this returns, the turn is durable.

        Raises:
            Refusal: the call cannot be served; the reason is recorded as an event.
        """
        started = time.time()
        call = strip_volatile(call, session.volatile)
        try:
            session.check_size()
            refuse_untrainable(call.requested, session.policy, honoured_knobs(self._engine))
            async with session.line.place():
                reservation = await session.budget.reserve()
                try:
                    return await self._serve(session, call, body_sha256, reply_id, started, reservation)
                finally:
                    reservation.release()
        except BudgetStop as stop:
            return await self._stop(session, call, stop, reply_id)
        except Refusal as refusal:
            await self._note_refusal(session, refusal)
            raise
        except asyncio.CancelledError:
            await self._note(session, "abandoned", body=body_sha256.hex()[:16])
            raise
        except JournalError as error:
            await self._note(session, "refused", code="journal_unavailable", reason=str(error))
            raise journal_refusal(error) from error
        except Exception as error:
            defect = report(error, f"a call of session {session.id}")
            await self._note_refusal(session, defect)
            raise defect from error

    async def count(self, session: Session, call: Call) -> int:
        """Prompt tokens this call would have, exactly.

        Raises:
            Refusal: the template does not render it.
        """
        call = strip_volatile(call, session.volatile)
        return len((await prompt_of(session.graph, self._codec, call, reasoning=session.policy.reasoning)).ids)

    async def _serve(
        self,
        session: Session,
        call: Call,
        body_sha256: bytes,
        reply_id: str,
        started: float,
        reservation: Reservation,
    ) -> Served:
        prompt = await prompt_of(session.graph, self._codec, call, reasoning=session.policy.reasoning)
        if prompt.match.parent is not None:
            await self._note_progress(session, prompt.match.parent)
        room = self._engine.context_length - len(prompt.ids)
        if room <= 0:
            raise overflow(len(prompt.ids), self._engine.context_length)
        wanted = min(room, wanted_tokens(call.requested, session.policy))
        max_tokens = await reservation.claim(len(prompt.ids), wanted)
        turn_id = session.graph.reserve_id()
        request_id = f"{session.id}:{turn_id}"
        effective = effective_sampling(
            call, session.policy, max_tokens=max_tokens, stop_ids=self._codec.stop_ids, identity=request_id
        )
        completion, passage = await self._generate(session, call, prompt, effective.sampling, request_id)
        turn = record_turn(
            self._codec,
            call,
            prompt,
            completion,
            effective,
            Identity(turn_id, reply_id, body_sha256, session.graph.session_tag, session.policy.model),
            session.hashes.digest(turn_id, prompt.parent, prompt.ids, prompt.delta),
            Times(started, time.time(), passage),
            self._engine.name,
        )
        await self._commit(session, call, prompt, turn)
        reservation.settle(len(turn.sampled_ids))
        missing = [note for note in turn.notes if note.startswith("logprob_")]
        if missing:
            await self._note(session, "evidence_missing", turn=turn.id, findings=missing)
        if PROMPT_MISMATCH in turn.notes:
            await self._note(session, PROMPT_MISMATCH, turn=turn.id, **prompt_difference(prompt.ids, completion))
        return Served(turn.reply, turn)

    async def _generate(
        self, session: Session, call: Call, prompt: Prompt, sampling: Sampling, request_id: str
    ) -> tuple[Completion, Passage]:
        await self._journal.writable()  # what is sampled while nothing can be committed could not be sent
        try:
            async with (
                self._fence.passing() as passage,
                session.budget.in_time(self._fence.timeout),
                call_clock(session.policy.call_timeout_s, self._fence.timeout),
            ):
                completion = await self._ask(session, call, prompt, sampling, request_id)
        except EngineError as error:
            raise refusal_of(error) from error
        return sound(completion), passage

    async def _ask(
        self, session: Session, call: Call, prompt: Prompt, sampling: Sampling, request_id: str
    ) -> Completion:
        engine = self._engine
        if isinstance(engine, GeneratesPacked):
            return await engine.generate_packed(prompt.ids, sampling, request_id=request_id, session_id=session.id)
        ids = prompt.ids.tolist()
        if not isinstance(engine, GeneratesFromMessages):
            return await engine.generate(ids, sampling, request_id=request_id, session_id=session.id)
        messages, tools = conversation_of(session.graph, prompt, call)
        return await engine.generate_from_messages(
            ids, messages, tools, sampling, request_id=request_id, session_id=session.id
        )

    async def _note_progress(self, session: Session, turn: Turn) -> None:
        """A request that continues a turn proves that the turn's reply arrived."""
        if session.delivery.continued(turn):
            await self._journal.mark_delivered(session.id, turn.id, at=turn.delivered_at)

    async def _note_last_progress(self, session: Session, call: Call) -> None:
        """As :meth:`_note_progress`, of a request that is not rendered."""
        continued = session.graph.match(call.messages, call.tools, call.keys).parent
        if continued is not None:
            try:
                await self._note_progress(session, continued)
            except JournalError as error:
                _log.warning("session %s: a delivery is not in the journal: %s", session.id, error)

    async def _commit(self, session: Session, call: Call, prompt: Prompt, turn: Turn) -> None:
        """Make the turn durable and part of the graph: both or neither, also when the call is cancelled meanwhile."""
        session.delivery.committing(turn.body_sha256)
        await _unbroken(self._join(session, call, prompt, turn))

    async def _join(self, session: Session, call: Call, prompt: Prompt, turn: Turn) -> None:
        """Link, write, join, in one step per session: what a turn is called depends on those committed before it."""
        async with session.committing:
            if session.state != "open":
                raise Refusal("session_sealed", "the session was sealed while this call was running.")
            turn.link, turn.fork_reason, turn.fork_detail = link_of(
                session.graph, prompt.match, call.messages, call.tools, rerendered=prompt.rerendered
            )
            share_prompt(session.graph, turn)
            turn.provenance = await self._book.number(
                session.id,
                session.provenance,
                model=session.policy.model,
                labels=session.labels,
                user_agent=call.user_agent,
            )
            turn.committed_at = time.time()
            await self._journal.add_turn(session.id, turn)
            session.graph.add(turn)
            session.retained_bytes += retained_bytes(turn)
            session.delivery.committed(turn)

    async def _stop(self, session: Session, call: Call, stop: BudgetStop, reply_id: str) -> Served:
        """A non-empty terminal assistant message: an empty one is asked again for ever (case row D14).

        Raises:
            Refusal: the session's policy wants an error instead.
        """
        await self._note_last_progress(session, call)
        session.stop_condition = stop.budget
        on_budget = session.policy.on_budget
        await self._note(session, "budget_stop", budget=stop.budget, limit=stop.limit, reply=on_budget)
        if on_budget == "error":
            raise Refusal("budget_exhausted", f"the budget of this session ({stop.budget}) is used up.")
        reply = Reply(
            id=reply_id,
            model=session.policy.model,
            created=int(time.time()),
            content=f"{STOPPING} ({stop.budget}) is used up.",
            reasoning="",
            tool_calls=(),
            finish_reason="stop",
            usage=Usage(0, 0),
        )
        return Served(reply, None)

    async def _note_refusal(self, session: Session, refusal: Refusal) -> None:
        """Defects of the engine and of our own are counted apart, by their code."""
        if refusal.code in ("engine_malformed", "internal_error"):
            session.count(refusal.code)
        await self._note(session, "refused", code=refusal.code, reason=str(refusal))

    async def _note(self, session: Session, kind: str, **detail: object) -> None:
        session.count(kind)
        try:
            await self._journal.add_event(session.id, kind, **detail)
        except JournalError as error:
            _log.warning("session %s: event %s is not in the journal: %s", session.id, kind, error)


async def _unbroken(step: Coroutine[Any, Any, None]) -> None:
    """Run a step to its end, whoever cancels. A cancellation is dropped: what was asked for has happened already."""
    task = asyncio.ensure_future(step)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
    task.result()
