"""The folder a run leaves behind: journal, results, rows, patches, logs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.rollout.result import RolloutResult
from drivetrain.trace.sample import HarnessTrace


class _StoredRow(msgspec.Struct, kw_only=True):
    rollout_id: str
    row: HarnessTrace


class RunDir:
    """Files of one run.

    ``run.json`` (what was run), ``journal.sqlite`` (every turn, committed before its reply), ``results.jsonl`` and
    ``rows.jsonl`` (appended as rollouts finish), ``rollouts/<id>/`` (patch, test log, harness logs).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "journal.sqlite"
        self._results = path / "results.jsonl"
        self._rows = path / "rows.jsonl"

    @classmethod
    def create(cls, path: Path | None = None) -> RunDir:
        """A new run folder; by default ``runs/<time>-<random>`` below the current folder.

        It is made with the first file in it, so that a refused run leaves nothing behind.

        Raises:
            ConfigError: the folder holds a run already.
        """
        if path is None:
            path = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        if (path / "run.json").exists():
            raise ConfigError(f"{path} holds a run already.", fix="Name another folder with --out.")
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run folder.

        Raises:
            ConfigError: there is no run in it.
        """
        if not (path / "run.json").is_file():
            raise ConfigError(f"no run at {path}.", fix="Name a folder that `drivetrain rollout` wrote.")
        return cls(path)

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Write ``run.json``."""
        self.path.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(info), indent=2)
        (self.path / "run.json").write_bytes(text + b"\n")

    def info(self) -> dict[str, Any]:
        """Read ``run.json``."""
        return msgspec.json.decode((self.path / "run.json").read_bytes(), type=dict[str, Any])

    def folder(self, rollout_id: str) -> Path:
        """Folder for the files of one rollout."""
        path = self.path / "rollouts" / rollout_id
        path.mkdir(parents=True, exist_ok=True)
        return path

    def append(self, result: RolloutResult) -> None:
        """Record a finished rollout: its rows first, then its result."""
        with self._rows.open("ab") as file:
            for row in result.rows:
                file.write(msgspec.json.encode(_StoredRow(rollout_id=result.rollout_id, row=row)) + b"\n")
        with self._results.open("ab") as file:
            file.write(msgspec.json.encode(msgspec.structs.replace(result, rows=[])) + b"\n")

    def results(self) -> list[RolloutResult]:
        """Finished rollouts with their rows, in the order in which they finished."""
        if not self._results.is_file():
            return []
        rows: dict[str, list[HarnessTrace]] = {}
        if self._rows.is_file():
            for line in self._rows.read_bytes().splitlines():
                stored = msgspec.json.decode(line, type=_StoredRow)
                rows.setdefault(stored.rollout_id, []).append(stored.row)
        results = []
        for line in self._results.read_bytes().splitlines():
            result = msgspec.json.decode(line, type=RolloutResult)
            results.append(msgspec.structs.replace(result, rows=rows.get(result.rollout_id, [])))
        return results
