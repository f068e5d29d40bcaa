"""What a run trains: which labels, under which rules. Stored in ``run.json`` so that a check derives the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.rollout.config import DEFAULT_TRAIN_LABELS
from drivetrain.rollout.run_dir import RunDir
from drivetrain.trace.findings import Finding
from drivetrain.trace.graph import TraceGraph
from drivetrain.trace.labels import LabelInfo, LabelRule, infer_labels
from drivetrain.trace.sample import HarnessTrace, rows_of, sampled_by_reason
from drivetrain.trace.turn import Label
from drivetrain.trace.validate import check_rows


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """``train_labels`` are trained; ``label_rules`` are the preset's label rules by agent name."""

    train_labels: tuple[Label, ...] = DEFAULT_TRAIN_LABELS
    label_rules: dict[str, tuple[LabelRule, ...]] = {}

    @classmethod
    def read(cls, run: RunDir) -> Selection:
        """The selection of a recorded run; the default where ``run.json`` names none.

        Raises:
            ConfigError: it is not one that this version knows.
        """
        stored: Any = run.info().get("selection") or {}
        try:
            return msgspec.convert(stored, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the selection in {run.path / 'run.json'} is not readable: {error}.") from error

    @classmethod
    def of(cls, train_labels: Sequence[Label], rules: Mapping[str, Sequence[Any]]) -> Selection:
        """A selection from configured labels and each agent's preset rules."""
        converted = {
            agent: tuple(msgspec.convert(rule, LabelRule, from_attributes=True) for rule in found)
            for agent, found in rules.items()
            if found
        }
        return cls(train_labels=tuple(train_labels), label_rules=converted)

    def labels(self, graph: TraceGraph, agent: str) -> dict[int, LabelInfo]:
        """Label of each turn."""
        return infer_labels(graph, hints=self._rules(agent))

    def rows(self, graph: TraceGraph, agent: str, *, reward: float | None, session_id: str) -> list[HarnessTrace]:
        """Rows of a rollout."""
        chosen = frozenset(self.train_labels)
        return rows_of(graph, labels=chosen, hints=self._rules(agent), reward=reward, session_id=session_id)

    def check(self, graph: TraceGraph, agent: str, rows: Sequence[HarnessTrace]) -> list[Finding]:
        """Rows of a rollout against its graph."""
        return check_rows(graph, rows, labels=frozenset(self.train_labels), hints=self._rules(agent))

    def sampled(self, graph: TraceGraph, agent: str) -> dict[str, int]:
        """Sampled tokens of a rollout by the reason why they are not trained; ``""`` counts the trained."""
        return sampled_by_reason(graph, labels=frozenset(self.train_labels), hints=self._rules(agent))

    def _rules(self, agent: str) -> tuple[LabelRule, ...]:
        return self.label_rules.get(agent, ())
