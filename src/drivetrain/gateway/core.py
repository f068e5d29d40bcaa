"""The gateway without HTTP: one engine, one model, one journal, many sessions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from drivetrain.engines.identity import check_identity
from drivetrain.engines.protocol import Engine, VersionSettable, honoured_knobs
from drivetrain.gateway.admission import Admission, GatewayLimits
from drivetrain.gateway.delivery import Attempt, Flight, Served, request_digest
from drivetrain.gateway.fence import Fence
from drivetrain.gateway.knobs import check_supported
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.provenance import ProvenanceBook
from drivetrain.gateway.redact import guarded_logger
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.sessions import Session, SessionStore
from drivetrain.gateway.turn import TurnRunner
from drivetrain.journal.writer import Journal, JournalError
from drivetrain.messages import Call
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.turn import Turn

_IN_PROCESS = Attempt()
_log = guarded_logger("drivetrain.gateway")


class Ticket:
    """A call being served. Its reply's id is known at once, so that a stream can be opened before it is there.

    Whoever holds it leaves it, once, when the client no longer waits: a generation that nobody waits for is cancelled.
    """

    def __init__(self, reply_id: str, served: Callable[[], Awaitable[Served]], leave: Callable[[], None]) -> None:
        self.reply_id = reply_id
        self.served = served
        """Wait for the reply. Raises Refusal: see :class:`~drivetrain.gateway.turn.TurnRunner`; also when the session
        is sealed meanwhile."""
        self.leave = leave


class Gateway:
    """Opens sessions and serves their calls.

    Args:
        engine: started engine that samples.
        codec: token side of the engine's model.
        journal_path: SQLite file; sessions found in it are open again under their old keys.
        model: served model name.
        max_pause_s: how long a weight update may take (:class:`~drivetrain.gateway.fence.Fence`).
        limits: how much of everything there may be.

    Attributes:
        fence: close it while weights change.
        admission: the requests that its servers are serving.
        refused: requests of harnesses that were refused since the start, by code.

    Raises:
        JournalDamaged: a record of the journal is not what was written to it.
        ConfigError: the journal is in use or unreadable; the engine serves another template or tokenizer.
    """

    def __init__(
        self,
        engine: Engine,
        codec: TokenCodec,
        journal_path: Path,
        *,
        model: str,
        max_pause_s: float = 600.0,
        limits: GatewayLimits | None = None,
    ) -> None:
        self.identity = check_identity(
            engine,
            name=engine.name,
            template_sha256=codec.template.sha256,
            tokenizer_sha256=codec.tokenizer.sha256,
        )
        self.engine = engine
        self.codec = codec
        self.model = model
        self.limits = limits or GatewayLimits()
        self.admission = Admission(self.limits)
        self.refused: Counter[str] = Counter()
        self.journal = Journal(
            journal_path, patience_s=self.limits.journal_patience_s, max_bytes=self.limits.max_journal_bytes
        )
        self.fence = Fence(engine, max_pause_s=max_pause_s)
        self.sessions = SessionStore(
            self.journal,
            lambda: self.fence.paused_s + self.journal.blocked_s,
            most_open=self.limits.max_sessions,
            most_retained=self.limits.max_retained_bytes,
        )
        try:
            self.recovered = self.sessions.recover()
        except BaseException:
            self.journal.close()
            raise
        self._losses: set[asyncio.Task[None]] = set()
        self._book = ProvenanceBook(
            self.journal,
            engine=engine.name,
            template_sha256=codec.template.sha256,
            tokenizer_sha256=codec.tokenizer.sha256 or "",
        )
        self._runner = TurnRunner(engine, codec, self.journal, self.fence, self._book)

    async def continue_version(self) -> int | None:
        """After a restart of the gateway alone: the engine goes on with the highest policy version that open sessions
        recorded, and turns until the next ``resume`` are not stamped with an older one (design invariant 7).

        Returns:
            that version; None if the engine counts by itself, or already reports as high a one.
        """
        engine = self.engine
        recorded = [turn.policy_version_end for each in self.sessions.open_sessions() for turn in each.graph]
        if not recorded or max(recorded) <= engine.policy_version or not isinstance(engine, VersionSettable):
            return None
        await engine.set_policy_version(max(recorded))
        return max(recorded)

    async def open_session(
        self,
        policy: SessionPolicy | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        session_id: str | None = None,
    ) -> tuple[Session, str]:
        """A new session and its secret key; the key is returned once and only its digest is kept.

        Raises:
            ConfigError: the policy honours what the engine cannot do, or the id is taken.
        """
        policy = policy or SessionPolicy(model=self.model)
        check_supported(policy.knobs, self.engine.name, honoured_knobs(self.engine))
        return await self.sessions.open(policy, labels=labels, session_id=session_id)

    async def note_config_hashes(self, session_id: str, hashes: Mapping[str, str]) -> None:
        """Record SHA-256 digests (hex) of the configuration files that a session's harness was started with, by name;
        also after the session was sealed.

        Raises:
            ConfigError: a value is no digest.
            Refusal: no such session.
            JournalError: they could not be committed.
        """
        await self._book.note_config(session_id, self.sessions.get(session_id).provenance, hashes)

    async def seal_session(self, session_id: str) -> Session:
        """End a session: late calls get 409, late replies are dropped. What was lost until now is in the journal."""
        session = await self.sessions.seal(session_id)
        await asyncio.gather(*self._losses)
        return session

    async def serve(self, session: Session, call: Call, body: bytes) -> Served:
        """:meth:`begin` and wait."""
        ticket = self.begin(session, call, body)
        try:
            return await ticket.served()
        finally:
            ticket.leave()

    def begin(self, session: Session, call: Call, body: bytes, attempt: Attempt = _IN_PROCESS) -> Ticket:
        """Serve a call exactly once: join an equal one in flight, replay a lost reply, or run a new turn.

        Raises:
            Refusal: its idempotency key was used for another request.
        """
        digest = request_digest(call, body, attempt.key)
        if attempt.key:
            session.delivery.claim(attempt.key, digest)
        replayed = session.delivery.replay(digest, explicit=attempt.explicit)
        if replayed is not None:
            session.count("replayed")
            return Ticket(replayed.reply.id, lambda: self._replay(session, replayed), lambda: None)
        flight, joined = session.delivery.join_or_start(
            digest, lambda reply_id: self._runner.run(session, call, digest, reply_id)
        )
        if joined:
            session.count("joined")
        return Ticket(flight.reply_id, lambda: self._land(session, flight), flight.leave)

    async def count(self, session: Session, call: Call) -> int:
        """Prompt tokens of a call, exactly as it would be sent to the engine; nothing is recorded.

        Raises:
            Refusal: the template does not render it.
        """
        return await self._runner.count(session, call)

    async def _replay(self, session: Session, served: Served) -> Served:
        try:
            await self.journal.add_event(session.id, "replayed", turn=served.turn.id if served.turn else None)
        except JournalError as error:
            _log.warning("session %s: a replay is not in the journal: %s", session.id, error)
        return served

    async def _land(self, session: Session, flight: Flight) -> Served:
        try:
            served = await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # this client went away
            if session.state == "open":
                raise Refusal("cancelled", "the call was cancelled.") from None
            served = None
        if served is None or session.state == "sealed":
            raise Refusal("session_sealed", "the session was sealed while this call was running.")
        return served

    async def delivered(self, session: Session, served: Served, attempt: Attempt = _IN_PROCESS) -> None:
        """The last byte of a call's reply was written; see :mod:`drivetrain.gateway.delivery` for what that proves."""
        turn = served.turn
        if turn is None or session.state == "sealed":
            return
        if session.delivery.sent(turn, attempt.connection, lambda lost: self._note_loss(session, lost)):
            await self._record_delivery(session, turn, True)

    def _note_loss(self, session: Session, turn: Turn) -> None:
        session.count("lost")
        task = asyncio.get_running_loop().create_task(self._record_delivery(session, turn, False))
        self._losses.add(task)
        task.add_done_callback(self._losses.discard)

    async def _record_delivery(self, session: Session, turn: Turn, delivered: bool) -> None:
        try:
            await self.journal.mark_delivered(session.id, turn.id, delivered, at=turn.delivered_at)
        except JournalError as error:
            session.count("journal_failed")
            _log.warning("session %s: the delivery of turn %d is not in the journal: %s", session.id, turn.id, error)

    async def aclose(self) -> None:
        """Cancel running calls and close the journal. Sessions stay open in the journal."""
        await asyncio.gather(*(session.delivery.cancel_all() for session in self.sessions.open_sessions()))
        await asyncio.gather(*self._losses)
        self.journal.close()
