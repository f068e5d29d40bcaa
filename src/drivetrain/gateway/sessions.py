"""Sessions: one rollout's key, policy, budget and turn graph."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.gateway.budgets import Budget, BudgetName
from drivetrain.gateway.delivery import Delivery
from drivetrain.gateway.keys import digest_key, mint_key, same_key
from drivetrain.gateway.limits import CallLine, RateLimit, retained_bytes
from drivetrain.gateway.mcp import ToolHost
from drivetrain.gateway.memo import MessageMemo
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.refusal import Refusal
from drivetrain.gateway.volatile import compile_patterns
from drivetrain.journal.errors import JournalDamaged
from drivetrain.journal.reader import JournalReader, StoredSession
from drivetrain.journal.writer import Journal
from drivetrain.messages import Message, RequestedSampling
from drivetrain.trace.conversation import request_of
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.hashes import PromptHashes
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
        self.hashes = PromptHashes()
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
        self.retained_bytes = 0
        """Of its turns (:func:`drivetrain.gateway.limits.retained_bytes`)."""
        for turn in self.graph:
            self.budget.recover(turn)
            self.retained_bytes += retained_bytes(turn)

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

    def check_size(self) -> None:
        """Refuse a call of a session that holds as much as it may (policy ``max_session_bytes``).

        Raises:
            Refusal: ``session_too_large``.
        """
        limit = self.policy.max_session_bytes
        if limit is not None and self.retained_bytes >= limit:
            raise Refusal(
                "session_too_large",
                f"this session holds {self.retained_bytes} bytes of turns; it may hold {limit}.",
                fix="Open another session, or one with a larger max_session_bytes.",
            )

    def count(self, kind: str) -> None:
        """Count an event of this process's life of the session, for summaries."""
        self.events[kind] = self.events.get(kind, 0) + 1


class SealedSession(msgspec.Struct, frozen=True):
    """What is kept in memory of a session that has ended; the rest is read from the journal when somebody asks.

    ``summary`` is :func:`summary_of` it as JSON; empty until it is asked for, of a session that had ended when this
    process began.
    """

    key_digest: bytes
    summary: bytes = b""


class SessionStore:
    """All sessions of a gateway, found by id or by key.

    A session is in memory while it is open. When it is sealed the store lets go of it: what remains is a few hundred
    bytes, and the journal.

    Args:
        journal: where sessions and turns are committed.
        paused_s: seconds so far during which no call could be served; they count against no session's wall clock.
        most_open: sessions that may be open at once; None = no limit.
        most_retained: bytes of turns of open sessions from which on no other is opened; None = no limit.
    """

    def __init__(
        self,
        journal: Journal,
        paused_s: Callable[[], float] = lambda: 0.0,
        *,
        most_open: int | None = None,
        most_retained: int | None = None,
    ) -> None:
        self._journal = journal
        self._paused_s = paused_s
        self._most_open = most_open
        self._most_retained = most_retained
        self._open: dict[str, Session] = {}
        self._by_digest: dict[bytes, Session] = {}
        self._sealed: dict[str, SealedSession] = {}
        self._sealed_digests: set[bytes] = set()
        self._in_use: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
        self.on_sealed: list[Callable[[Session], None]] = []
        """Who is told of a session at its end, while its turns are still in memory; must not raise."""

    def __iter__(self) -> Iterator[Session]:
        """The open ones, then those that are sealed, each read from the journal unless somebody still uses it."""
        yield from self.open_sessions()
        for session_id in list(self._sealed):
            yield self.get(session_id)

    def open_sessions(self) -> list[Session]:
        """Those that are not sealed."""
        return list(self._open.values())

    def by_state(self) -> dict[str, int]:
        """How many sessions there are."""
        return {"open": len(self._open), "sealed": len(self._sealed)}

    @property
    def retained_bytes(self) -> int:
        """Of the turns of all open sessions. A sum over them, so that a turn pays for its own session's only."""
        return sum(session.retained_bytes for session in self._open.values())

    def recover(self) -> int:
        """Load what the journal holds, so that the same keys continue after a crash; returns the number of sessions.

        Raises:
            JournalDamaged: a record of a session that is open is not what was written.
        """
        reader = JournalReader(self._journal.path)
        stored = reader.sessions()
        for record in stored:
            if record.state == "sealed":
                self._keep_sealed(record.id, SealedSession(record.key_digest))
            else:
                self._remember(_restore(record, reader, self._clock()))
        return len(stored)

    def summary(self, session_id: str) -> msgspec.Raw:
        """:func:`summary_of` a session, as JSON.

        Raises:
            Refusal: no such session.
        """
        sealed = self._sealed.get(session_id)
        if sealed is not None and sealed.summary:
            return msgspec.Raw(sealed.summary)
        text = msgspec.json.encode(summary_of(self.get(session_id)))
        if sealed is not None:
            self._sealed[session_id] = msgspec.structs.replace(sealed, summary=text)
        return msgspec.Raw(text)

    def summaries(self) -> list[msgspec.Raw]:
        """:meth:`summary` of every session. May read the journal: not for the event loop."""
        found = []
        for session_id in [*self._open, *self._sealed]:
            try:
                found.append(self.summary(session_id))
            except JournalDamaged as error:
                said = {"session_id": session_id, "state": "sealed", "error": str(error)}
                found.append(msgspec.Raw(msgspec.json.encode(said)))
            except Refusal:
                continue  # forgotten meanwhile
        return found

    async def open(
        self, policy: SessionPolicy, *, labels: Mapping[str, str] | None = None, session_id: str | None = None
    ) -> tuple[Session, str]:
        """Open a session and return it with its secret key, which is not kept.

        Raises:
            ConfigError: ``session_id`` is taken.
            Refusal: as many sessions are open as may be, or they hold as much as they may.
            JournalError: it could not be recorded.
        """
        if self._most_open is not None and len(self._open) >= self._most_open:
            raise Refusal(
                "too_many_sessions",
                f"{len(self._open)} sessions are open.",
                fix="Seal sessions whose rollout has ended, or allow more.",
                retry_after_s=10,
            )
        if self._most_retained is not None and (held := self.retained_bytes) >= self._most_retained:
            raise Refusal(
                "overloaded",
                f"the turns of open sessions take {held} bytes; from {self._most_retained} on no session is opened.",
                fix="Seal sessions whose rollout has ended, or allow more.",
                retry_after_s=10,
            )
        session_id = session_id or f"s-{secrets.token_hex(8)}"
        if session_id in self._open or session_id in self._sealed:
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
            self._let_go(session)
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
            self._let_go(session)
            self._keep_sealed(session_id, SealedSession(session.key_digest, msgspec.json.encode(summary_of(session))))
            for tell in self.on_sealed:
                tell(session)
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
        before, session.key_digest, session.key_issued_at = session.key_digest, digest, time.time()
        session.count(kind)
        if session.state == "open":
            self._by_digest.pop(before, None)
            self._by_digest[digest] = session
        else:
            self._sealed_digests.discard(before)
            self._keep_sealed(session_id, SealedSession(digest))
        return session

    def get(self, session_id: str) -> Session:
        """Session by public id. One that is sealed and that nobody holds any more is read from the journal.

        Raises:
            Refusal: no such session.
            JournalDamaged: what the journal holds of it is not what was written.
        """
        session = self._open.get(session_id) or self._in_use.get(session_id)
        if session is None and session_id in self._sealed:
            reader = JournalReader(self._journal.path)
            record = reader.session(session_id)
            if record is not None:
                session = _restore(record, reader, self._clock(), state="sealed")
                self._in_use[session_id] = session
        if session is None:
            raise Refusal("not_found", f"no session {session_id!r}.")
        return session

    def forget(self, session_id: str) -> None:
        """Know nothing any more of a sealed session; the journal keeps it. Its key is unknown from now on.

        Raises:
            Refusal: no such session.
            ConfigError: it is open.
        """
        if session_id in self._open:
            raise ConfigError(f"session {session_id!r} is open.", fix="Seal it first.")
        sealed = self._sealed.pop(session_id, None)
        if sealed is None:
            raise Refusal("not_found", f"no session {session_id!r}.")
        self._sealed_digests.discard(sealed.key_digest)
        self._in_use.pop(session_id, None)

    def authenticate(self, key: str) -> Session:
        """Session of a key.

        Raises:
            Refusal: the key is unknown, revoked or expired (401), or its session is sealed (409).
        """
        digest = digest_key(key) if key else b""
        session = self._by_digest.get(digest)
        if session is None and digest in self._sealed_digests:
            raise _sealed()
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
        self._open[session.id] = self._in_use[session.id] = session
        self._by_digest[session.key_digest] = session

    def _let_go(self, session: Session) -> None:
        self._open.pop(session.id, None)
        self._by_digest.pop(session.key_digest, None)

    def _keep_sealed(self, session_id: str, sealed: SealedSession) -> None:
        self._sealed[session_id] = sealed
        self._sealed_digests.add(sealed.key_digest)


def summary_of(session: Session) -> dict[str, Any]:
    """What the admin surface says of a session."""
    return {
        "session_id": session.id,
        "state": session.state,
        "labels": session.labels,
        "policy": session.policy,
        "turns": len(session.graph),
        "prompt_tokens": session.budget.prompt_tokens,
        "completion_tokens": session.budget.completion_tokens,
        "stop_condition": session.stop_condition,
        "in_flight": session.delivery.in_flight,
        "retained_bytes": session.retained_bytes,
        "events": session.events,
        "created_at": session.created_at,
    }


def _sealed() -> Refusal:
    return Refusal("session_sealed", "this session is sealed; its rollout has ended.")


def _restore(
    record: StoredSession, reader: JournalReader, clock: Callable[[], float], *, state: SessionState = "open"
) -> Session:
    session = Session(
        record.id,
        key_digest=record.key_digest,
        policy=msgspec.msgpack.decode(record.policy, type=SessionPolicy),
        labels=record.labels,
        created_at=record.created_at,
        graph=reader.graph(record.id, session_tag(record.id)),
        state=state,
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
