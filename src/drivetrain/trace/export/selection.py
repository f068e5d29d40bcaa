"""Which turns are trained: the rows of the rollout decide, so that no export has a second opinion.

Exports take a turn's label as the graph has it: give them :func:`drivetrain.trace.labels.relabelled` graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.sample import HarnessTrace, rows_of, untrained_reason
from drivetrain.trace.turn import Turn


def trained_turns(graph: TraceGraph, rows: Sequence[HarnessTrace] | None) -> frozenset[int]:
    """Ids of the turns that ``rows`` train; by default the rows of :func:`drivetrain.trace.sample.rows_of`."""
    chosen = rows_of(graph) if rows is None else rows
    return frozenset(turn for row in chosen for turn in row.metadata["trained_turns"])


def why_untrained(turn: Turn, trained: frozenset[int]) -> str:
    """Why a turn is context only; empty when it is trained. ``not_selected``: the rows leave out a sound turn."""
    return "" if turn.id in trained else untrained_reason(turn) or "not_selected"
