"""How linear is a trace, and what do its forks cost?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from drivetrain.trace.conversation import request_of
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.labels import LabelInfo
from drivetrain.trace.sample import HarnessTrace
from drivetrain.trace.sharing import common_tokens
from drivetrain.trace.turn import Turn
from drivetrain.trace.why import REWRITES, explain_forks


class TraceStats(msgspec.Struct, kw_only=True):
    """Numbers of one rollout, or of many added up.

    A *transition* is a request that goes on from an earlier turn; it is *extended* when its prompt begins with that
    turn's prompt and sampled ids, verbatim. ``row_tokens`` is the length of all rows, ``unique_tokens`` what is left
    when beginnings that rows share are counted once; ``stored_tokens`` is what the graph keeps, a beginning that
    prompts share once, and ``prompt_tokens`` the length of all prompts that were sent. ``hard_drift`` and
    ``soft_drift`` count transitions (see :data:`drivetrain.trace.why.Drift`), ``soft_mismatches`` assistant messages
    that came back rewritten and were recognised. ``sampled`` counts sampled tokens by the reason why they are not
    trained, ``""`` the trained ones.
    """

    rollouts: int = 1
    turns: int = 0
    rows: int = 0
    transitions: int = 0
    extended: int = 0
    row_tokens: int = 0
    unique_tokens: int = 0
    stored_tokens: int = 0
    prompt_tokens: int = 0
    hard_drift: int = 0
    soft_drift: int = 0
    soft_mismatches: int = 0
    sampled: dict[str, int] = {}
    labels: dict[str, int] = {}
    forks: dict[str, int] = {}

    @property
    def rows_per_rollout(self) -> float:
        """Mean number of rows."""
        return self.rows / self.rollouts if self.rollouts else 0.0

    @property
    def prefix_match_rate(self) -> float | None:
        """Extended transitions of all; None when there is none."""
        return self.extended / self.transitions if self.transitions else None

    @property
    def duplicated_tokens(self) -> int:
        """Context tokens that rows repeat."""
        return self.row_tokens - self.unique_tokens

    @property
    def masked_fraction(self) -> dict[str, float]:
        """Share of the sampled tokens by the reason why they are not trained."""
        total = sum(self.sampled.values())
        return {reason: count / total for reason, count in self.sampled.items() if reason and count}

    def as_dict(self) -> dict[str, object]:
        """All numbers under their names, derived ones included."""
        plain = {name: getattr(self, name) for name in self.__struct_fields__ if name != "sampled"}
        return plain | {
            "rows_per_rollout": self.rows_per_rollout,
            "prefix_match_rate": self.prefix_match_rate,
            "duplicated_tokens": self.duplicated_tokens,
            "sampled_tokens": sum(self.sampled.values()),
            "trained_tokens": self.sampled.get("", 0),
            "masked_tokens": {reason: count for reason, count in self.sampled.items() if reason},
            "masked_fraction": self.masked_fraction,
        }


def stats_of(
    graph: TraceGraph,
    rows: Sequence[HarnessTrace],
    labels: dict[int, LabelInfo],
    sampled: dict[str, int],
    *,
    special: Collection[int] = (),
) -> TraceStats:
    """Numbers of one rollout.

    Args:
        graph: the session.
        rows: its rows.
        labels: see :func:`drivetrain.trace.labels.infer_labels`.
        sampled: see :func:`drivetrain.trace.sample.sampled_by_reason`.
        special: ids of special tokens.
    """
    goes_on = {turn.id for turn in graph if _goes_on(graph, turn, labels[turn.id])}
    drift = Counter(fork.drift for fork in explain_forks(graph, special=special) if fork.turn in goes_on)
    extended = sum(1 for turn in goes_on if graph[turn].parent is not None and graph[turn].fork_reason not in REWRITES)
    return TraceStats(
        turns=len(graph),
        rows=len(rows),
        transitions=len(goes_on),
        extended=extended,
        row_tokens=sum(len(row.prompt_ids) + len(row.response_ids) for row in rows),
        unique_tokens=unique_tokens([[*row.prompt_ids, *row.response_ids] for row in rows]),
        stored_tokens=sum(len(turn.delta_ids) + len(turn.sampled_ids) for turn in graph),
        prompt_tokens=sum(turn.prompt_len for turn in graph),
        hard_drift=drift["hard"],
        soft_drift=drift["soft"],
        soft_mismatches=sum(turn.soft_mismatches for turn in graph),
        sampled=sampled,
        labels=dict(Counter(labels[turn.id].label for turn in graph)),
        forks=dict(Counter(turn.fork_reason for turn in graph if turn.fork_reason)),
    )


def total(parts: Iterable[TraceStats]) -> TraceStats:
    """Numbers of several rollouts, added up."""
    result = TraceStats(rollouts=0)
    for part in parts:
        for name in part.__struct_fields__:
            mine, theirs = getattr(result, name), getattr(part, name)
            both = dict(Counter(mine) + Counter(theirs)) if isinstance(mine, dict) else mine + theirs
            setattr(result, name, both)
    return result


def unique_tokens(sequences: Sequence[Sequence[int]]) -> int:
    """Number of tokens when common beginnings are counted once: the nodes of their prefix tree."""
    ordered = [np.asarray(ids, dtype=np.int32) for ids in sorted(map(list, sequences))]
    repeated = sum(common_tokens(one, other) for one, other in pairwise(ordered))
    return sum(map(len, ordered)) - repeated


def _goes_on(graph: TraceGraph, turn: Turn, label: LabelInfo) -> bool:
    """Whether a request is meant to go on from an earlier turn: not a new conversation, a summary or a side call."""
    if turn.parent is not None:
        return True
    if label.label not in ("agent", "subagent") or label.continues is not None:
        return False
    return any(message.role == "assistant" for message in request_of(graph, turn))
