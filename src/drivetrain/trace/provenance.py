"""Where turns come from: what stays the same from turn to turn, recorded once per session.

What differs is on the turn itself: dialect, requested and effective sampling, policy versions, times. An export joins
both by :attr:`drivetrain.trace.turn.Turn.provenance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from drivetrain.trace.turn import Turn


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record of a session. Empty = not known.

    ``engine`` is the engine's name, ``template_sha256`` the digest of the chat template's source and
    ``tokenizer_sha256`` that of ``tokenizer.json``; ``drivetrain`` is this package's version. ``harness`` and
    ``harness_version`` are what the runner said when it opened the session, else the first product of ``user_agent``.
    """

    drivetrain: str = ""
    model: str = ""
    engine: str = ""
    template_sha256: str = ""
    tokenizer_sha256: str = ""
    harness: str = ""
    harness_version: str = ""
    user_agent: str = ""


class SessionProvenance(msgspec.Struct, kw_only=True):
    """All that is known of a session's origin: its records, and digests of the configuration files of its sandbox."""

    records: list[Provenance] = []
    config_sha256: dict[str, str] = {}

    def of(self, turn: Turn) -> Provenance | None:
        """The record of a turn; None when the journal holds none."""
        return self.records[turn.provenance - 1] if 0 < turn.provenance <= len(self.records) else None

    def of_turns(self, turns: Iterable[Turn]) -> list[Provenance]:
        """The records of some turns, each once, in order."""
        numbers = sorted({turn.provenance for turn in turns if self.of(turn) is not None})
        return [self.records[number - 1] for number in numbers]

    def learn(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Take over an event of the journal; other kinds mean nothing here."""
        if kind == PROVENANCE_EVENT:
            self.records.append(msgspec.convert(dict(detail), Provenance))
        elif kind == CONFIG_EVENT:
            self.config_sha256 |= detail["sha256"]


PROVENANCE_EVENT = "provenance"
CONFIG_EVENT = "config_hashes"


def turn_provenance(turn: Turn) -> dict[str, Any]:
    """What a turn itself says of its origin, for exports: times in seconds since the epoch, 0.0 = not known."""
    return {
        "dialect": turn.dialect,
        "requested_sampling": msgspec.to_builtins(turn.requested),
        "effective_sampling": turn.effective,
        "policy_version_dispatched": turn.policy_version_dispatched,
        "policy_version_start": turn.policy_version_start,
        "policy_version_end": turn.policy_version_end,
        "policy_spans": [list(span) for span in turn.policy_spans],
        "received_at": turn.started_at,
        "gate_entered_at": turn.gate_entered_at,
        "dispatched_at": turn.dispatched_at,
        "first_token_at": turn.first_token_at,
        "completed_at": turn.completed_at,
        "committed_at": turn.committed_at,
        "delivered_at": turn.delivered_at,
    }


def session_provenance(provenance: SessionProvenance, turns: Sequence[Turn]) -> dict[str, Any]:
    """What a session says of the origin of some of its turns, for exports."""
    return {
        "records": msgspec.to_builtins(provenance.of_turns(turns)),
        "config_sha256": dict(provenance.config_sha256),
    }
