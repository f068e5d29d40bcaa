"""One recorded model call."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from drivetrain.messages import FinishReason, Message, Reply, RequestedSampling, ToolSpec
from drivetrain.trace.keys import Key

Ids = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]

Link = Literal[
    "root",  # the first prompt of the session
    "linear",  # prompt = parent's prompt + parent's sampled ids + delta, and the parent had no child yet
    "fork",  # shares the beginning of a stored conversation and goes another way, or rewrites what follows
    "new_root",  # a conversation of its own: no message is shared, or system text only and no answer is sent again
]

ForkReason = Literal[
    "",
    "same_prompt",  # the very same messages were sent again: a sibling sample
    "branch",  # a second continuation of a turn, history intact
    "tools_changed",  # the tool list differs
    "system_changed",  # the first system message differs
    "message_changed",  # a message in the middle differs
    "message_removed",  # a stored message is missing
    "assistant_removed",  # an assistant turn that we served was dropped from the history
    "assistant_rewritten",  # an assistant message that we did not serve stands where ours was
    "new_conversation",  # no stored message is shared, or system text only
    "template_not_append_only",  # messages continue, but the template rewrites what came before
]

Label = Literal["agent", "subagent", "title", "summary", "compaction", "probe", "retry", "control"]


class Turn(msgspec.Struct, kw_only=True):
    """A node of the turn graph.

    ``parent`` is the turn whose prompt and sampled ids this prompt continues, verbatim; None where there is none: the
    first prompt, a fork inside a stored prompt, a conversation of its own. ``base`` says where the stored beginning of
    the prompt is kept when that is not the end of the parent: the prompt is the first ``keep`` ids of the base's
    *prompt* and then ``delta_ids``, the request the first ``keep_messages`` of the base's request and then
    ``messages``. A base is a matter of storage (:mod:`drivetrain.trace.sharing`): the shared ids are found by comparing
    tokens, what was sent to the engine is the same with and without it, sampled ids among them are context of this
    turn, and it makes nobody the base's child: not for labels, not for delivery, not for rows. Forks
    (``link == "fork"``) share the messages before the one that differs; a ``new_root`` may still share template, tools
    and system text.
    ``delta_ids`` (int32) are the ids of the prompt behind what base or parent hold
    (:meth:`drivetrain.trace.graph.TraceGraph.delta_ids` gives those behind the parent). ``sampled_ids`` (int32) and
    ``logprobs`` (float32, natural log, full post-temperature distribution) have equal length. ``tail_keys`` are the
    tolerant keys of ``messages``, ``prompt_chain`` the digest of the whole request, ``reply_key`` the key of what was
    served and ``reply_chain`` the digest of both. ``prompt_sha256`` and ``prompt_len`` describe the ids that were
    really sent to the engine, so that a rebuilt prompt can be checked against them. ``messages`` are those that neither
    the parent's request and reply nor the base hold, for people; ``tools`` are kept where neither holds them.
    ``origin`` holds the identity headers of the request; ``label`` is what was known when it was served, and
    :func:`drivetrain.trace.labels.infer_labels` says what the whole session shows.
    Policy versions (case row E1): ``policy_version_dispatched`` is what the engine served when the call was let
    through the gate (None: not recorded), ``policy_version_start`` and ``_end`` are those of the first sampled token
    and after the last. Where a weight update fell between, ``policy_spans`` holds runs of (tokens, version) over
    ``sampled_ids`` if the engine told; otherwise it is empty.
    Times are seconds since the epoch, 0.0 = not known: ``started_at`` request received, ``gate_entered_at`` ready for
    the engine, ``dispatched_at`` let through, ``first_token_at``, ``completed_at``, ``committed_at`` given to the
    journal, ``delivered_at`` last byte handed over. ``provenance`` is the 1-based number of the session's record of
    what does not change from turn to turn (:class:`drivetrain.trace.provenance.Provenance`); 0 = none.
    ``delivered`` is whether the reply reached the harness; an undelivered turn is kept and never trained (design
    invariant 5).
    """

    id: int
    parent: int | None
    base: int | None = None
    keep: int = 0
    keep_messages: int = 0
    link: Link
    fork_reason: ForkReason = ""
    fork_detail: str = ""
    delta_ids: Ids
    sampled_ids: Ids
    logprobs: Logprobs
    prompt_len: int
    prompt_sha256: bytes
    tail_keys: tuple[Key, ...]
    prompt_chain: Key
    reply_key: Key
    reply_chain: Key
    n_tools: int = 0
    label: Label = "agent"
    finish_reason: FinishReason
    notes: tuple[str, ...] = ()
    soft_mismatches: int = 0
    policy_version_dispatched: int | None = None
    policy_version_start: int
    policy_version_end: int
    policy_spans: tuple[tuple[int, int], ...] = ()
    dialect: str
    requested: RequestedSampling
    effective: dict[str, Any]
    engine: str
    body_sha256: bytes = b""
    reply: Reply
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] | None = None
    origin: dict[str, str] = {}
    provenance: int = 0
    started_at: float
    gate_entered_at: float = 0.0
    dispatched_at: float
    first_token_at: float = 0.0
    completed_at: float
    committed_at: float = 0.0
    delivered_at: float = 0.0
    delivered: bool = False


def pack_ids(ids: Any) -> Ids:
    """Token ids as a read-only int32 array."""
    array = np.asarray(ids, dtype=np.int32)
    array.flags.writeable = False
    return array


def pack_logprobs(values: Any) -> Logprobs:
    """Log-probs as a read-only float32 array."""
    array = np.asarray(values, dtype=np.float32)
    array.flags.writeable = False
    return array
