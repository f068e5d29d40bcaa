"""Turns of the graph as the page shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from drivetrain.messages import ToolSpec
from drivetrain.trace.graph import TraceGraph, reply_message
from drivetrain.trace.labels import LabelInfo
from drivetrain.trace.sample import untrained_reason
from drivetrain.trace.turn import Ids, Label, Logprobs, Turn
from drivetrain.viewer.document import TrainedSpan, ViewTurn

NOT_IN_A_ROW = "not_in_a_row"
"""Masked although nothing speaks against training: the rows on disk lack the turn (a finding says so too)."""

_DIGITS = 4
_MOMENTS = {
    "received": "started_at",
    "gate": "gate_entered_at",
    "dispatched": "dispatched_at",
    "first_token": "first_token_at",
    "completed": "completed_at",
    "committed": "committed_at",
    "delivered": "delivered_at",
}


class TurnViews:
    """Makes the turns of one document; equal tool lists are stored once, in ``toolsets``.

    Args:
        graph: the session.
        labels: label of every turn.
        spans: which sampled tokens are trained (:func:`drivetrain.viewer.masks.trained_spans`).
        trained_labels: the labels that the run trains.
        ids: every distinct token id of the session, ascending.
        origin: seconds since the epoch that times count from.
    """

    def __init__(
        self,
        graph: TraceGraph,
        labels: Mapping[int, LabelInfo],
        spans: Mapping[int, Sequence[TrainedSpan]],
        *,
        trained_labels: frozenset[Label],
        ids: Sequence[int],
        origin: float,
    ) -> None:
        self._graph = graph
        self._labels = labels
        self._spans = spans
        self._trained_labels = trained_labels
        self._ids = np.asarray(ids, dtype=np.int32)
        self._origin = origin
        self.toolsets: list[list[ToolSpec]] = []

    def view(self, turn: Turn) -> ViewTurn:
        """One turn."""
        info = self._labels[turn.id]
        source, keep, keep_messages = self._source(turn)
        return ViewTurn(
            id=turn.id,
            parent=turn.parent,
            link=turn.link,
            fork_reason=turn.fork_reason,
            fork_detail=turn.fork_detail,
            source=source,
            keep=keep,
            keep_messages=keep_messages,
            start=self._graph.start(turn),
            prompt_len=self._graph.prompt_length(turn),
            delta=self._indices(turn.delta_ids),
            sampled=self._indices(turn.sampled_ids),
            logprobs=_rounded(turn.logprobs),
            trained=list(self._spans.get(turn.id, ())),
            masked=self._masked(turn, info.label),
            messages=list(turn.messages),
            reply=reply_message(turn),
            toolset=self._toolset(turn),
            label=info.label,
            label_reason=info.reason,
            parent_call=info.parent_call,
            continues=info.continues,
            finish_reason=turn.finish_reason,
            notes=list(turn.notes),
            soft_mismatches=turn.soft_mismatches,
            delivered=turn.delivered,
            times=moments(turn, self._origin),
            dialect=turn.dialect,
            engine=turn.engine,
            requested=msgspec.to_builtins(turn.requested),
            effective=turn.effective,
            policy_versions=[turn.policy_version_dispatched, turn.policy_version_start, turn.policy_version_end],
            policy_spans=[list(span) for span in turn.policy_spans],
            origin=turn.origin,
            provenance=turn.provenance,
        )

    def _source(self, turn: Turn) -> tuple[int | None, int, int]:
        """What a turn's own ids and messages follow on; one rule for bases and parents."""
        if turn.base is not None:
            return turn.base, turn.keep, turn.keep_messages
        if turn.parent is not None:
            return turn.parent, *self._graph.length_through(self._graph[turn.parent])
        return None, 0, 0

    def _masked(self, turn: Turn, label: Label) -> str:
        trained = sum(span.stop - span.start for span in self._spans.get(turn.id, ()))
        if trained >= len(turn.sampled_ids) > 0:
            return ""
        return untrained_reason(turn, self._trained_labels, label) or NOT_IN_A_ROW

    def _indices(self, ids: Ids) -> list[int]:
        return [int(index) for index in np.searchsorted(self._ids, ids)]

    def _toolset(self, turn: Turn) -> int | None:
        tools = list(self._graph.tools_of(turn))
        if not tools:
            return None
        if tools not in self.toolsets:
            self.toolsets.append(tools)
        return self.toolsets.index(tools)


def moments(turn: Turn, origin: float) -> dict[str, float]:
    """The times that were recorded, in seconds since ``origin``; what is not known is left out."""
    found = {name: getattr(turn, field) for name, field in _MOMENTS.items()}
    return {name: round(at - origin, _DIGITS) for name, at in found.items() if at > 0}


def _rounded(logprobs: Logprobs) -> list[float | None]:
    return [round(value, _DIGITS) if math.isfinite(value) else None for value in logprobs.tolist()]
