"""Check a trace: what engines returned, what was sent, and the rows made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from drivetrain.trace.findings import Finding
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.hashes import prompt_digest
from drivetrain.trace.labels import LabelHint, infer_labels
from drivetrain.trace.row_check import check_row
from drivetrain.trace.sample import TRAINED_LABELS, HarnessTrace, untrained_reason
from drivetrain.trace.turn import Label, Turn


def check_turn(turn: Turn, *, vocab_size: int | None = None) -> list[Finding]:
    """What an engine returned for one turn: ids and log-probs, position by position."""
    where = f"turn {turn.id}"
    found: list[Finding] = []
    if len(turn.sampled_ids) == 0:
        found.append(Finding("empty_sample", where, "no token was sampled"))
    if len(turn.logprobs) != len(turn.sampled_ids):
        detail = f"{len(turn.logprobs)} log-probs for {len(turn.sampled_ids)} tokens"
        found.append(Finding("logprob_count", where, detail))
    elif not np.all(np.isfinite(turn.logprobs)):
        at = int(np.flatnonzero(~np.isfinite(turn.logprobs))[0])
        found.append(Finding("logprob_not_finite", where, f"position {at}"))
    elif np.any(turn.logprobs > 0):
        at = int(np.flatnonzero(turn.logprobs > 0)[0])
        found.append(Finding("logprob_positive", where, f"position {at}: {turn.logprobs[at]}"))
    ids = np.concatenate([turn.delta_ids, turn.sampled_ids])
    if len(ids) and (ids.min() < 0 or (vocab_size is not None and ids.max() >= vocab_size)):
        found.append(Finding("token_out_of_range", where, f"ids {ids.min()}..{ids.max()}, vocabulary {vocab_size}"))
    return found


def check_graph(graph: TraceGraph, *, vocab_size: int | None = None) -> list[Finding]:
    """Every turn, and that the prompt sent to the engine is stored ids + stored sampled ids + delta."""
    found: list[Finding] = []
    for turn in graph:
        found += check_turn(turn, vocab_size=vocab_size)
        rebuilt = graph.prompt_ids(turn)
        where = f"turn {turn.id}"
        if len(rebuilt) != turn.prompt_len:
            found.append(Finding("prompt_length", where, f"{len(rebuilt)} rebuilt, {turn.prompt_len} sent"))
        elif prompt_digest(rebuilt) != turn.prompt_sha256:
            found.append(Finding("prompt_mismatch", where, "the rebuilt prompt is not what was sent"))
    return found


def check_rows(
    graph: TraceGraph,
    rows: Sequence[HarnessTrace],
    *,
    labels: frozenset[Label] = TRAINED_LABELS,
    hints: Sequence[LabelHint] = (),
) -> list[Finding]:
    """All rows of a rollout against its graph: made of stored ids, and each trainable token trained exactly once.

    ``labels`` and ``hints`` are the selection that the rows were made with.
    """
    found: list[Finding] = []
    trained = {turn.id: np.zeros(len(turn.sampled_ids), dtype=np.int64) for turn in graph}
    for index, row in enumerate(rows):
        problems = [*check_row(row, f"row {index}")] or _check_against_graph(graph, row, index)
        found += problems
        if not problems:
            for turn, span in _sampled_spans(graph, row):
                bits = row.loss_mask[span]
                trained[turn.id][: len(bits)] += bits
    infos = infer_labels(graph, hints=hints)
    for turn in graph:
        expected = 0 if untrained_reason(turn, labels, infos[turn.id].label) else 1
        counts = trained[turn.id]
        if np.any(counts > expected):
            found.append(Finding("token_trained_twice", f"turn {turn.id}", f"a token is in {counts.max()} rows"))
        elif np.any(counts < expected):
            detail = f"{int(np.sum(counts < expected))} sampled, delivered, selected tokens are in no row"
            found.append(Finding("token_not_trained", f"turn {turn.id}", detail))
    return found


def _sampled_spans(graph: TraceGraph, row: HarnessTrace) -> Iterator[tuple[Turn, slice]]:
    """Where each turn's sampled ids stand in the response; the last may be cut by the row's end."""
    for turn in map(graph.__getitem__, row.metadata["turns"]):
        at = graph.prompt_length(turn) - len(row.prompt_ids)
        yield turn, slice(at, at + len(turn.sampled_ids))


def _check_against_graph(graph: TraceGraph, row: HarnessTrace, index: int) -> list[Finding]:
    where = f"row {index}"
    named = row.metadata["turns"]
    if not named or named[-1] not in graph or [turn.id for turn in graph.path(graph[named[-1]])] != named:
        return [Finding("row_not_from_stored_ids", where, f"turns {named} are no path of the graph")]
    if len(row.prompt_ids) != graph.prompt_length(graph[named[0]]):
        return [Finding("row_not_from_stored_ids", where, "prompt_ids is not the prompt of the first turn")]
    ids = graph.ids_through(graph[named[-1]])
    if not np.array_equal(ids, np.asarray([*row.prompt_ids, *row.response_ids], dtype=np.int32)):
        return [Finding("row_not_from_stored_ids", where, "ids differ from the stored path")]
    stored = np.full(len(row.response_ids), np.nan, dtype=np.float32)
    for turn, span in _sampled_spans(graph, row):
        if len(turn.logprobs) == len(turn.sampled_ids):  # evidence that is missing is nan: nothing to train
            stored[span] = turn.logprobs
    mask = np.asarray(row.loss_mask) == 1
    if np.any(np.isnan(stored[mask])):
        return [Finding("mask_on_unsampled_token", where, "the mask trains a token that was not sampled")]
    if not np.array_equal(stored[mask], np.asarray(row.response_logprobs, dtype=np.float32)[mask]):
        return [Finding("logprob_not_as_stored", where, "a log-prob differs from the stored one")]
    return []
