"""Which sampled token does which exported row train? Read from the rows themselves, not derived a second time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.sample import HarnessTrace
from drivetrain.viewer.document import TrainedSpan, ViewRow


def trained_spans(graph: TraceGraph, rows: Sequence[HarnessTrace]) -> dict[int, list[TrainedSpan]]:
    """Trained runs of sampled tokens by turn. A token that two rows train is in two spans: a defect that shows."""
    found: dict[int, list[TrainedSpan]] = {}
    for number, row in enumerate(rows):
        mask = np.asarray(row.loss_mask, dtype=np.int8)
        for turn_id in row.metadata.get("turns", ()):
            if turn_id not in graph:
                continue
            turn = graph[turn_id]
            at = graph.prompt_length(turn) - len(row.prompt_ids)
            bits = mask[max(at, 0) : max(at, 0) + len(turn.sampled_ids)]
            found.setdefault(turn_id, []).extend(TrainedSpan(a, b, number) for a, b in runs_of_ones(bits))
    return found


def runs_of_ones(bits: Sequence[int] | np.ndarray) -> list[tuple[int, int]]:
    """Half-open ranges in which every bit is 1."""
    padded = np.concatenate([[0], np.asarray(bits, dtype=np.int8), [0]])
    edges = np.flatnonzero(np.diff(padded))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def view_row(row: HarnessTrace) -> ViewRow:
    """What the page says about a row."""
    said = row.metadata
    return ViewRow(
        turns=list(said.get("turns", ())),
        trained_turns=list(said.get("trained_turns", ())),
        label=str(said.get("label", "")),
        prompt_tokens=len(row.prompt_ids),
        response_tokens=len(row.response_ids),
        trained_tokens=sum(row.loss_mask),
        masked=dict(said.get("masked", {})),
        policy_spans=[list(span) for span in said.get("policy_spans", ())],
    )
