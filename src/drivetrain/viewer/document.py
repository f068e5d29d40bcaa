"""What the page shows of one rollout, as data: read from a run folder, written into the page as JSON.

Every token is stored once. A turn holds what its prompt adds to an earlier turn (``source``, ``keep``) and what was
sampled, so that a document grows with the new tokens and not with the length of the history; the page puts a prompt
together as :class:`drivetrain.trace.graph.TraceGraph` does.
"""

from __future__ import annotations

from typing import Any

import msgspec

from drivetrain.messages import Message, ToolSpec
from drivetrain.trace.findings import Finding
from drivetrain.trace.turn import ForkReason, Label, Link
from drivetrain.trace.why import Drift

VIEW_VERSION = 1
"""Version of :class:`ViewDocument`. A page holds its document and its program, so both are always of one version."""


class TokenTable(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Every distinct token of a document; elsewhere a token is its index in ``ids``.

    ``texts`` spells them; where a token's bytes are no UTF-8 by themselves its text shows them as ``\\xff`` and
    ``raw`` holds them as hex, by index, so that a search sees the character that neighbours make together. ``special``
    are the indices of special tokens. ``spelled`` is false where no tokenizer was found: texts are then the ids.
    """

    ids: list[int] = []
    texts: list[str] = []
    raw: dict[int, str] = {}
    special: list[int] = []
    spelled: bool = True


class TrainedSpan(msgspec.Struct, frozen=True, array_like=True):
    """Sampled tokens ``start`` up to ``stop`` of a turn are trained in row ``row``."""

    start: int
    stop: int
    row: int


class ViewTurn(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One turn.

    The prompt is the first ``keep`` of the prompt and sampled tokens of turn ``source`` and then ``delta``; the request
    is the first ``keep_messages`` of that turn's request and reply and then ``messages``. ``start`` is how many tokens
    of the prompt are the parent's, verbatim. ``logprobs`` are natural logarithms, rounded, None where not finite.
    ``trained`` says which sampled tokens some row trains; for the others ``masked`` says why not. ``times`` holds the
    moments that were recorded, in seconds since the rollout's first call. ``toolset`` is an index into
    :attr:`ViewDocument.toolsets` and ``provenance`` a 1-based one into its records (0 = none).
    """

    id: int
    parent: int | None = None
    link: Link
    fork_reason: ForkReason = ""
    fork_detail: str = ""
    source: int | None = None
    keep: int = 0
    keep_messages: int = 0
    start: int = 0
    prompt_len: int
    delta: list[int] = []
    sampled: list[int] = []
    logprobs: list[float | None] = []
    trained: list[TrainedSpan] = []
    masked: str = ""
    messages: list[Message] = []
    reply: Message
    toolset: int | None = None
    label: Label = "agent"
    label_reason: str = ""
    parent_call: int | None = None
    continues: int | None = None
    finish_reason: str = ""
    notes: list[str] = []
    soft_mismatches: int = 0
    delivered: bool = False
    times: dict[str, float] = {}
    dialect: str = ""
    engine: str = ""
    requested: dict[str, Any] = {}
    effective: dict[str, Any] = {}
    policy_versions: list[int | None] = []
    policy_spans: list[list[int]] = []
    origin: dict[str, str] = {}
    provenance: int = 0


class ViewFork(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a turn left the nearest stored chain (:class:`drivetrain.trace.why.Fork`); the page spells the tokens."""

    turn: int
    reason: ForkReason
    detail: str = ""
    nearest: int
    drift: Drift = ""
    shared_messages: int = 0
    messages_before: int = 0
    messages_now: int = 0
    message: int | None = None
    role_before: str = ""
    role_now: str = ""
    message_diff: list[str] = []
    tools: list[str] = []
    shared_tokens: int = 0
    stored_tokens: int = 0
    prompt_tokens: int = 0


class ViewRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One exported training row: its turns, and how many of its tokens are prompt, response and trained."""

    turns: list[int]
    trained_turns: list[int] = []
    label: str = ""
    prompt_tokens: int = 0
    response_tokens: int = 0
    trained_tokens: int = 0
    masked: dict[str, int] = {}
    policy_spans: list[list[int]] = []


class ViewFinding(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Something to know: ``source`` is trace, note, log, grading or journal; ``turn`` where it is about one."""

    source: str
    code: str
    where: str = ""
    detail: str = ""
    turn: int | None = None
    at: float | None = None

    @classmethod
    def of(cls, finding: Finding) -> ViewFinding:
        """A finding about the trace."""
        return cls(
            source="trace", code=finding.code, where=finding.where, detail=finding.detail, turn=turn_in(finding.where)
        )


def turn_in(where: str) -> int | None:
    """The turn that ``where`` of a finding names (``turn N``)."""
    number = where.removeprefix("turn ")
    return int(number) if number != where and number.isdecimal() else None


class ViewGrade(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The verdict. ``tests`` lists (test, verdict) by ``FAIL_TO_PASS`` and ``PASS_TO_PASS`` where it was recorded."""

    summary: dict[str, Any] = {}
    tests: dict[str, list[tuple[str, str]]] = {}


class ViewDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One rollout. ``status`` is empty while it has not finished; ``reward`` None = ungraded, never 0.0.

    ``files`` are texts the run kept beside the journal: the patch, the end of the test log, what the agent printed.
    ``run`` is ``run.json``. ``started_at`` (seconds since the epoch) is where ``times`` count from.
    """

    version: int = VIEW_VERSION
    rollout_id: str
    session_id: str = ""
    task_id: str = ""
    agent: str = ""
    group: int | None = None
    status: str = ""
    reward: float | None = None
    error: str = ""
    started_at: float = 0.0
    trained_tokens: int = 0
    sampled_tokens: int = 0
    masked: dict[str, int] = {}
    tokens: TokenTable = msgspec.field(default_factory=TokenTable)
    turns: list[ViewTurn] = []
    toolsets: list[list[ToolSpec]] = []
    forks: list[ViewFork] = []
    rows: list[ViewRow] = []
    grade: ViewGrade = msgspec.field(default_factory=ViewGrade)
    findings: list[ViewFinding] = []
    provenance: list[dict[str, Any]] = []
    config_sha256: dict[str, str] = {}
    timings: dict[str, float] = {}
    harness: dict[str, Any] = {}
    run: dict[str, Any] = {}
    files: dict[str, str] = {}
