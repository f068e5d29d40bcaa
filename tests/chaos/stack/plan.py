"""The shape of one chaos run and the files in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.chaos.stack.schedule import KINDS, Kind
from tests.chaos.stack.wires import WIRES


class Plan(msgspec.Struct, kw_only=True):
    """``seconds`` of faults over ``harnesses`` agents in ``groups`` processes and ``boxes`` more in sandboxes.

    The run goes on until ``least_turns`` were seen, however slow the machine. ``mistake`` is one of the served
    process's own, for the checker to find.
    """

    folder: Path
    seed: int
    seconds: float
    harnesses: int = 52
    groups: int = 3
    boxes: int = 1
    wires: Sequence[str] = tuple(WIRES)
    relayed_share: float = 0.5
    gives_up: float = 0.08
    thinks_s: float = 2.0
    kinds: Sequence[Kind] = KINDS
    every_s: float = 2.4
    least_turns: int = 100
    mistake: str = ""
    model: Path | None = None
    """Folder of a model whose tokenizer is used; None makes a tiny one."""

    @property
    def journal(self) -> Path:
        return self.folder / "run" / "journal.sqlite"

    @property
    def controls(self) -> Path:
        return self.folder / "controls"

    @property
    def diaries(self) -> Path:
        return self.folder / "diaries"

    @property
    def socket(self) -> Path:
        """In a folder of its own: a sandbox sees all that is in it."""
        return self.folder / "socket" / "g"

    @property
    def sandboxes(self) -> Path:
        return self.folder / "sandboxes"

    @property
    def faults(self) -> Path:
        """What was done, in lines of JSON: ``t``, ``kind``, ``what`` and whatever else belongs to it."""
        return self.folder / "faults.jsonl"

    @property
    def rows(self) -> Path:
        """The rows of every session, exported from the journal."""
        return self.folder / "rows.jsonl"

    @property
    def live_rows(self) -> Path:
        """The rows of some sessions as the running gateway gave them."""
        return self.folder / "live.jsonl"

    @property
    def relayed(self) -> Path:
        """What the relay saw the gateway send."""
        return self.folder / "relayed.jsonl"

    @property
    def stop(self) -> Path:
        return self.folder / "stop"
