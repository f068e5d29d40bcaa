"""From a session's graph and what is known about the rollout to the document of its page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from drivetrain.trace.findings import Finding
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.labels import LabelInfo
from drivetrain.trace.sample import HarnessTrace
from drivetrain.trace.turn import Label, Turn
from drivetrain.trace.why import Fork, explain_forks
from drivetrain.viewer.document import ViewDocument, ViewFinding, ViewFork, ViewTurn
from drivetrain.viewer.masks import trained_spans, view_row
from drivetrain.viewer.spelling import Speller, token_table
from drivetrain.viewer.turns import TurnViews

_FORK_FIELDS = ViewFork.__struct_fields__


def trace_document(
    graph: TraceGraph,
    rows: Sequence[HarnessTrace],
    *,
    labels: Mapping[int, LabelInfo],
    trained_labels: frozenset[Label],
    speller: Speller | None,
    findings: Iterable[Finding] = (),
    **about: Any,
) -> ViewDocument:
    """The document of one rollout.

    Args:
        graph: the session.
        rows: the rows that were exported for it; they decide what the page calls trained.
        labels: label of every turn.
        trained_labels: the labels that the run trains.
        speller: the model's tokenizer; without it tokens are shown as ids.
        findings: what a check of the trace found.
        about: other fields of :class:`ViewDocument`; ``findings`` of another source go into ``more_findings``.
    """
    table = token_table(_all_ids(graph), speller)
    origin = min((turn.started_at for turn in graph if turn.started_at > 0), default=0.0)
    views = TurnViews(
        graph,
        labels,
        trained_spans(graph, rows),
        trained_labels=trained_labels,
        ids=table.ids,
        origin=origin,
    )
    turns = [views.view(turn) for turn in graph]
    others: list[ViewFinding] = about.pop("more_findings", [])
    return ViewDocument(
        **about,
        started_at=origin,
        trained_tokens=sum(sum(row.loss_mask) for row in rows),
        sampled_tokens=sum(len(turn.sampled_ids) for turn in graph),
        masked=_masked(turns),
        tokens=table,
        turns=turns,
        toolsets=views.toolsets,
        forks=forks_of(graph, speller.special_tokens.values() if speller else ()),
        rows=[view_row(row) for row in rows],
        findings=[*map(ViewFinding.of, findings), *_notes(graph), *others],
    )


def forks_of(graph: TraceGraph, special: Collection[int]) -> list[ViewFork]:
    """Every fork of the session; the page cuts the tokens out of both prompts itself."""
    return [_fork(fork) for fork in explain_forks(graph, special=special, window=0)]


def _fork(fork: Fork) -> ViewFork:
    return msgspec.convert({name: getattr(fork, name) for name in _FORK_FIELDS}, ViewFork)


def _all_ids(graph: TraceGraph) -> list[int]:
    parts = [ids for turn in graph for ids in (turn.delta_ids, turn.sampled_ids)]
    return [int(token) for token in np.unique(np.concatenate([*parts, np.empty(0, dtype=np.int32)]))]


def _masked(turns: Iterable[ViewTurn]) -> dict[str, int]:
    """Sampled tokens by the reason why no row trains them."""
    counts: dict[str, int] = {}
    for turn in turns:
        left = len(turn.sampled) - sum(span.stop - span.start for span in turn.trained)
        if left > 0:
            counts[turn.masked] = counts.get(turn.masked, 0) + left
    return counts


def _notes(graph: TraceGraph) -> list[ViewFinding]:
    return [_note(turn, note) for turn in graph for note in turn.notes]


def _note(turn: Turn, note: str) -> ViewFinding:
    return ViewFinding(source="note", code=note, where=f"turn {turn.id}", turn=turn.id)
