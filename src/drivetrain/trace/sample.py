"""Rows: what a trainer eats (design section 4, "Rows")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.labels import LabelHint, LabelInfo, infer_labels
from drivetrain.trace.turn import Label, Turn

TRAINED_LABELS: frozenset[Label] = frozenset({"agent", "subagent", "compaction"})
"""Default selection of labels to train (design section 4, "Label")."""


SAMPLING_NOT_PINNED = "sampling_not_pinned"
EVAL_SESSION = "eval_session"
PROMPT_MISMATCH = "prompt_mismatch"
UNTRAINABLE_NOTES = (EVAL_SESSION, SAMPLING_NOT_PINNED, PROMPT_MISMATCH)
"""Notes of a turn that is never trained: its session is an evaluation, a knob took the sample off the distribution
that is trained (design section 4, "Generate"), or the engine sampled behind another prompt than the row holds."""


class HarnessTrace(msgspec.Struct, kw_only=True):
    """One training row: one chain of a rollout's turn graph that has something to train.

    ``response_ids``, ``loss_mask`` and ``response_logprobs`` have equal length. ``loss_mask[i]`` is 1 exactly where
    ``response_ids[i]`` was sampled by the policy *and* is trained in this row; environment and template tokens and
    sampled tokens that another row of the rollout trains are 0. ``response_logprobs[i]`` is the sampler's log-prob of
    the full post-temperature distribution where the mask is 1 and exactly 0.0 elsewhere. ``reward`` is None when the
    rollout is ungraded (never 0.0 for an infrastructure failure). ``metadata`` holds ``session_id``, ``chain``
    (index of the row in its rollout, parents first), ``turns`` (turn ids), ``trained_turns``, ``policy_versions``
    (start and end per turn), ``policy_spans`` (``[from, to, start, end]``: positions in the response sampled under one
    pair of versions), ``masked`` (reason -> number of sampled tokens left out), ``label`` of its conversation,
    ``parent_call`` (turn that started it as a sub-agent, or None) and ``continues`` (root of the conversation whose
    summary it opens with, or None).
    """

    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    response_logprobs: list[float]
    reward: float | None = None
    metadata: dict[str, Any] = {}


def rows_of(
    graph: TraceGraph,
    *,
    labels: frozenset[Label] = TRAINED_LABELS,
    hints: Sequence[LabelHint] = (),
    reward: float | None = None,
    session_id: str = "",
) -> list[HarnessTrace]:
    """Rows of one rollout: one per root-to-leaf chain that has something to train, parents first.

    A sampled token is trained in the first chain that holds it and is context in every later one (design invariant
    3). Turns are left out with a reason: ``undelivered``, ``label:<label>``, ``eval_session``,
    ``sampling_not_pinned``, ``prompt_mismatch``, ``no_logprob``, ``empty``. Tokens after
    the last trained one are cut.

    Args:
        labels: which turns are trained, by inferred label (:func:`drivetrain.trace.labels.infer_labels`).
        hints: label rules of the preset.
    """
    infos = infer_labels(graph, hints=hints)
    claimed: set[int] = set()
    rows: list[HarnessTrace] = []
    for chain in _chains(graph):
        row = _row(graph, chain, claimed, labels, infos)
        if row is None:
            continue
        row.reward = reward
        row.metadata |= {"session_id": session_id, "chain": len(rows)}
        rows.append(row)
    return rows


def untrained_reason(turn: Turn, labels: frozenset[Label] = TRAINED_LABELS, label: Label | None = None) -> str:
    """Why a turn's tokens are not trained; empty when they are. ``label`` is the inferred one, else the recorded."""
    label = label or turn.label
    if len(turn.sampled_ids) == 0:
        return "empty"
    if not turn.delivered:
        return "undelivered"
    if label not in labels:
        return f"label:{label}"
    for note in UNTRAINABLE_NOTES:
        if note in turn.notes:
            return note
    if len(turn.logprobs) != len(turn.sampled_ids) or not np.all(np.isfinite(turn.logprobs) & (turn.logprobs <= 0)):
        return "no_logprob"
    return ""


def _chains(graph: TraceGraph) -> list[list[Turn]]:
    """Root-to-leaf paths, branch by branch, older branches first."""
    chains: list[list[Turn]] = []
    stack: list[list[Turn]] = [[root] for root in reversed(graph.children(None))]
    while stack:
        path = stack.pop()
        children = graph.children(path[-1].id)
        if not children:
            chains.append(path)
        stack += [[*path, child] for child in sorted(children, key=lambda turn: -turn.id)]
    return chains


def _row(
    graph: TraceGraph,
    chain: list[Turn],
    claimed: set[int],
    labels: frozenset[Label],
    infos: Mapping[int, LabelInfo],
) -> HarnessTrace | None:
    response: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    masked: dict[str, int] = {}
    trained: list[int] = []
    end = 0
    for turn in chain:
        if turn is not chain[0]:
            delta = graph.delta_ids(turn).tolist()
            response += delta
            mask += [0] * len(delta)
            logprobs += [0.0] * len(delta)
        count = len(turn.sampled_ids)
        reason = (
            "trained_in_earlier_row" if turn.id in claimed else untrained_reason(turn, labels, infos[turn.id].label)
        )
        response += turn.sampled_ids.tolist()
        if reason:
            masked[reason] = masked.get(reason, 0) + count
            mask += [0] * count
            logprobs += [0.0] * count
            continue
        claimed.add(turn.id)
        trained.append(turn.id)
        mask += [1] * count
        logprobs += turn.logprobs.tolist()
        end = len(response)
    if not trained:
        return None
    last = next(i for i, turn in enumerate(chain) if turn.id == trained[-1])
    kept = chain[: last + 1]
    return HarnessTrace(
        prompt_ids=graph.prompt_ids(chain[0]).tolist(),
        response_ids=response[:end],
        loss_mask=mask[:end],
        response_logprobs=logprobs[:end],
        metadata={
            "turns": [turn.id for turn in kept],
            "trained_turns": trained,
            "policy_versions": [[turn.policy_version_start, turn.policy_version_end] for turn in kept],
            "policy_spans": _policy_spans(graph, kept),
            "masked": masked,
            "label": infos[chain[0].id].label,
            "parent_call": infos[chain[0].id].parent_call,
            "continues": infos[chain[0].id].continues,
        },
    )


def _policy_spans(graph: TraceGraph, turns: Sequence[Turn]) -> list[list[int]]:
    """``[from, to, start, end]``: response positions, first to last sampled, under one pair of policy versions.

    A turn that straddles a weight update gives one span per version where the engine said which token is whose.
    """
    spans: list[list[int]] = []
    prompt = graph.prompt_length(turns[0])
    for turn in turns:
        at = graph.prompt_length(turn) - prompt
        whole = (len(turn.sampled_ids), turn.policy_version_start, turn.policy_version_end)
        for count, *versions in [(count, version, version) for count, version in turn.policy_spans] or [whole]:
            if spans and spans[-1][2:] == versions:
                spans[-1][1] = at + count
            else:
                spans.append([at, at + count, *versions])
            at += count
    return spans


def sampled_by_reason(
    graph: TraceGraph, *, labels: frozenset[Label] = TRAINED_LABELS, hints: Sequence[LabelHint] = ()
) -> dict[str, int]:
    """Number of sampled tokens of a session by the reason why they are not trained; ``""`` counts the trained."""
    infos = infer_labels(graph, hints=hints)
    counts: dict[str, int] = {}
    for turn in graph:
        reason = untrained_reason(turn, labels, infos[turn.id].label)
        counts[reason] = counts.get(reason, 0) + len(turn.sampled_ids)
    return counts
