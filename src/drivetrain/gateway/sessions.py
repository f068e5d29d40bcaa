"""Sessions: one rollout's key, policy, budget and turn graph."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.gateway.budgets import Budget, BudgetName
from drivetrain.gateway.delivery import Delivery
from drivetrain.gateway.keys import digest_key, mint_key, same_key
from drivetrain.gateway.limits import CallLine, RateLimit
from drivetrain.gateway.mcp import ToolHost
from drivetrain.gateway.memo import MessageMemo
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.volatile import compile_patterns
from drivetrain.journal.reader import JournalReader, StoredSession
from drivetrain.journal.writer import Journal
from drivetrain.messages import Message, RequestedSampling
from drivetrain.trace.conversation import request_of
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.provenance import SessionProvenance

SessionState = Literal["open", "sealed"]


def session_tag(session_id: str) -> str:
    """The 8 hex digits of a session inside its tool-call ids; derived from the public id, no secret."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:8]


class Session:
    """One open or sealed session. ``id`` is public; the key is known by its digest only."""

    def __init__(
        self,
        session_id: str,
        *,
        key_digest: bytes,
        policy: SessionPolicy,
        labels: Mapping[str, str],
        created_at: float,
        graph: TraceGraph | None = None,
        state: SessionState = "open",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.id = session_id
        self.key_digest = key_digest
        self.policy = policy
        self.labels = dict(labels)
        self.created_at = created_at
        self.state: SessionState = state
        self.graph = graph if graph is not None else TraceGraph(session_tag(session_id))
        self.budget = Budget(policy, created_at, clock)
        self.delivery = Delivery(self.graph)
        self.events: dict[str, int] = {}
        self.memo = MessageMemo()
        self.committing = asyncio.Lock()
        self.volatile = compile_patterns(policy.volatile_lines)
        self.line = CallLine(policy.max_concurrent_calls, policy.max_queued_calls)
        self.rate = RateLimit(policy.rate_per_s, policy.rate_burst)
        self.key_issued_at = created_at
        self.provenance = SessionProvenance()
        self.tool_host: ToolHost | None = None
        """Tools that this session's harness reaches over MCP; of this process's life, like what runs them."""
        self.stop_condition: BudgetName | None = None
        """The budget that was used up when a call came, the latest."""
        for turn in self.graph:
            self.budget.recover(turn)

    @property
    def images(self) -> Literal["refuse", "placeholder"]:
        """What becomes of a picture (dialects' ``Memory``)."""
        return self.policy.images

    def conversation(self, reply_id: str) -> tuple[Message, ...] | None:
        """The messages of the turn that was answered by this reply, and the reply (dialects' ``Memory``)."""
        turn = self.graph.by_reply_id(reply_id)
        return None if turn is None else (*request_of(self.graph, turn), turn.reply.as_message())

    def requested(self, reply_id: str) -> RequestedSampling | None:
        """What the request of the turn that was answered by this reply asked for (dialects' ``Memory``)."""
        turn = self.graph.by_reply_id(reply_id)
        return None if turn is None else turn.requested

    def count(self, kind: str) -> None:
        """Count an event of this process's life of the session, for summaries."""
        self.events[kind] = self.events.get(kind, 0) + 1


class SessionStore:
    """All sessions of a gateway, found by id or by key.

    Args:
        journal: where sessions and turns are committed.
        paused_s: seconds so far during which no call could be served; they count against no session's wall clock.
    """

    def __init__(self, journal: Journal, paused_s: Callable[[], float] = lambda: 0.0) -> None:
        self._journal = journal
        self._paused_s = paused_s
        self._by_id: dict[str, Session] = {}
        self._by_digest: dict[bytes, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    def recover(self) -> int:
        """Load what the journal holds, so that the same keys continue after a crash; returns the number of sessions."""
        reader = JournalReader(self._journal.path)
        stored = reader.sessions()
        for record in stored:
            self._remember(_restore(record, reader, self._clock()))
        return len(stored)

    async def open(
        self, policy: SessionPolicy, *, labels: Mapping[str, str] | None = None, session_id: str | None = None
    ) -> tuple[Session, str]:
        """Open a session and return it with its secret key, which is not kept.

        Raises:
            ConfigError: ``session_id`` is taken.
        """
        session_id = session_id or f"s-{secrets.token_hex(8)}"
        if session_id in self._by_id:
            raise ConfigError(f"session {session_id!r} exists already.", fix="Leave the id out to get a fresh one.")
        key = mint_key()
        session = Session(
            session_id,
            key_digest=digest_key(key),
            policy=policy,
            labels=labels or {},
            created_at=time.time(),
            clock=self._clock(),
        )
        self._remember(session)
        try:
            await self._journal.add_session(
                session_id,
                key_digest=session.key_digest,
                policy=msgspec.msgpack.encode(policy),
                labels=session.labels,
                created_at=session.created_at,
            )
        except BaseException:
            self._forget(session)
            raise
        return session, key

    async def seal(self, session_id: str) -> Session:
        """Refuse the session's key from now on; a call in flight is cancelled and not trained (case row C14).

        Raises:
            Refusal: no such session.
        """
        session = self.get(session_id)
        if session.state == "open":
            session.state = "sealed"
            cancelled = await session.delivery.seal()
            if cancelled:
                session.count("in_flight_at_seal")
                await self._journal.add_event(session_id, "in_flight_at_seal", calls=cancelled)
            session.memo.clear()
            await self._journal.seal_session(session_id)
        return session

    async def revoke(self, session_id: str) -> Session:
        """Refuse the session's key from now on and cancel its calls; the session stays open, without a key.

        Raises:
            Refusal: no such session.
        """
        session = await self._replace_key(session_id, secrets.token_bytes(32), "key_revoked")
        await session.delivery.cancel_all()
        return session

    async def rotate(self, session_id: str) -> tuple[Session, str]:
        """Give a session a new key and refuse the old one from now on; calls in flight go on.

        Raises:
            Refusal: no such session, or it is sealed.
        """
        if self.get(session_id).state == "sealed":
            raise _sealed()
        key = mint_key()
        session = await self._replace_key(session_id, digest_key(key), "key_rotated")
        return session, key

    async def _replace_key(self, session_id: str, digest: bytes, kind: str) -> Session:
        session = self.get(session_id)
        await self._journal.replace_key(session_id, digest)
        await self._journal.add_event(session_id, kind)
        self._by_digest.pop(session.key_digest, None)
        session.key_digest, session.key_issued_at = digest, time.time()
        self._by_digest[digest] = session
        session.count(kind)
        return session

    def get(self, session_id: str) -> Session:
        """Session by public id.

        Raises:
            Refusal: no such session.
        """
        try:
            return self._by_id[session_id]
        except KeyError:
            raise Refusal("not_found", f"no session {session_id!r}.") from None

    def forget(self, session_id: str) -> None:
        """Let go of a sealed session; the journal keeps it. Its key is unknown from now on.

        Raises:
            Refusal: no such session.
            ConfigError: it is open.
        """
        session = self.get(session_id)
        if session.state != "sealed":
            raise ConfigError(f"session {session_id!r} is open.", fix="Seal it first.")
        self._forget(session)

    def authenticate(self, key: str) -> Session:
        """Session of a key.

        Raises:
            Refusal: the key is unknown, revoked or expired (401), or its session is sealed (409).
        """
        session = self._by_digest.get(digest_key(key)) if key else None
        if session is None or not same_key(session.key_digest, key):
            raise Refusal(
                "invalid_api_key",
                "unknown or revoked API key.",
                fix="Use the key that was given when the session was opened.",
            )
        if session.state == "sealed":
            raise _sealed()
        lifetime = session.policy.key_ttl_s
        if lifetime is not None and time.time() >= session.key_issued_at + lifetime:
            raise Refusal(
                "api_key_expired",
                f"this API key has expired: it was valid for {lifetime:g} s.",
                fix="Open a session with a longer key_ttl_s, or issue a new key for this one.",
            )
        return session

    def _clock(self) -> Callable[[], float]:
        """Seconds since the epoch, less the pauses from now on."""
        before = self._paused_s()
        return lambda: time.time() - (self._paused_s() - before)

    def _remember(self, session: Session) -> None:
        self._by_id[session.id] = session
        self._by_digest[session.key_digest] = session

    def _forget(self, session: Session) -> None:
        self._by_id.pop(session.id, None)
        self._by_digest.pop(session.key_digest, None)


def _sealed() -> Refusal:
    return Refusal("session_sealed", "this session is sealed; its rollout has ended.")


def _restore(record: StoredSession, reader: JournalReader, clock: Callable[[], float]) -> Session:
    session = Session(
        record.id,
        key_digest=record.key_digest,
        policy=msgspec.msgpack.decode(record.policy, type=SessionPolicy),
        labels=record.labels,
        created_at=record.created_at,
        graph=reader.graph(record.id, session_tag(record.id)),
        state="sealed" if record.state == "sealed" else "open",
        clock=clock,
    )
    for event in reader.events(record.id):
        if event.kind == "budget_stop":
            session.stop_condition = event.detail["budget"]
        elif event.kind == "key_rotated":
            session.key_issued_at = event.at
        else:
            session.provenance.learn(event.kind, event.detail)
    return session
