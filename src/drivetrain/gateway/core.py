"""The gateway without HTTP: one engine, one model, one journal, many sessions."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from drivetrain.engines.protocol import Engine
from drivetrain.gateway.delivery import Flight, Served
from drivetrain.gateway.fence import Fence
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.sessions import Session, SessionStore
from drivetrain.gateway.turn import TurnRunner
from drivetrain.journal.writer import Journal
from drivetrain.messages import Call
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.turn import Turn


class Ticket:
    """A call being served. Its reply's id is known at once, so that a stream can be opened before it is there."""

    def __init__(self, reply_id: str, served: Callable[[], Awaitable[Served]]) -> None:
        self.reply_id = reply_id
        self.served = served
        """Wait for the reply. Raises Refusal: see :class:`~drivetrain.gateway.turn.TurnRunner`; also when the session
        is sealed meanwhile."""


class Gateway:
    """Opens sessions and serves their calls.

    Args:
        engine: started engine that samples.
        codec: token side of the engine's model.
        journal_path: SQLite file; sessions found in it are open again under their old keys.
        model: served model name.

    Raises:
        ConfigError: the journal is in use or unreadable.
    """

    def __init__(self, engine: Engine, codec: TokenCodec, journal_path: Path, *, model: str) -> None:
        self.engine = engine
        self.codec = codec
        self.model = model
        self.journal = Journal(journal_path)
        self.sessions = SessionStore(self.journal)
        self.recovered = self.sessions.recover()
        self.fence = Fence(engine)
        self._runner = TurnRunner(engine, codec, self.journal, self.fence)

    async def open_session(
        self,
        policy: SessionPolicy | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        session_id: str | None = None,
    ) -> tuple[Session, str]:
        """A new session and its secret key; the key is returned once and only its digest is kept."""
        return await self.sessions.open(policy or SessionPolicy(model=self.model), labels=labels, session_id=session_id)

    async def seal_session(self, session_id: str) -> Session:
        """End a session: late calls get 409."""
        return await self.sessions.seal(session_id)

    async def serve(self, session: Session, call: Call, body: bytes) -> Served:
        """:meth:`begin` and wait."""
        return await self.begin(session, call, body).served()

    def begin(self, session: Session, call: Call, body: bytes) -> Ticket:
        """Serve a call exactly once: join an equal one in flight, replay an undelivered reply, or run a new turn."""
        digest = _request_digest(call, body)
        replayed = session.delivery.replay(digest)
        if replayed is not None:
            session.count("replayed")
            return Ticket(replayed.reply.id, lambda: self._replay(session, replayed))
        flight, joined = session.delivery.join_or_start(
            digest, lambda reply_id: self._runner.run(session, call, digest, reply_id)
        )
        if joined:
            session.count("joined")
        return Ticket(flight.reply_id, lambda: self._land(session, flight))

    def count(self, session: Session, call: Call) -> int:
        """Prompt tokens of a call, exactly as it would be sent to the engine; nothing is recorded.

        Raises:
            Refusal: the template does not render it.
        """
        return self._runner.count(session, call)

    async def _replay(self, session: Session, served: Served) -> Served:
        await self.journal.add_event(session.id, "replayed", turn=served.turn.id if served.turn else None)
        return served

    async def _land(self, session: Session, flight: Flight) -> Served:
        try:
            served = await flight.wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # this client went away
            if session.state == "sealed":
                raise Refusal("session_sealed", "the session was sealed while this call was running.") from None
            raise Refusal("cancelled", "the call was cancelled.") from None
        await self._note_progress(session, served)
        return served

    async def delivered(self, session: Session, served: Served) -> None:
        """The reply of a call was handed over completely."""
        if served.turn is not None:
            await self._mark_delivered(session, served.turn)

    async def aclose(self) -> None:
        """Cancel running calls and close the journal. Sessions stay open in the journal."""
        for session in self.sessions:
            await session.delivery.cancel_all()
        self.journal.close()

    async def _note_progress(self, session: Session, served: Served) -> None:
        """A request that continues a turn proves that the turn's reply arrived."""
        if served.turn is not None and served.turn.parent is not None:
            await self._mark_delivered(session, session.graph[served.turn.parent])

    async def _mark_delivered(self, session: Session, turn: Turn) -> None:
        if session.delivery.delivered(turn):
            await self.journal.mark_delivered(session.id, turn.id)


def _request_digest(call: Call, body: bytes) -> bytes:
    """What makes two requests the same: the body, and who asks (twin sub-agents send equal bodies, case row C3)."""
    origin = "".join(f"{name}={value}\n" for name, value in sorted(call.origin.items()))
    return hashlib.sha256(origin.encode() + b"\0" + body).digest()
