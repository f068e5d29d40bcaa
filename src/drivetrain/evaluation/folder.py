"""The folder of an evaluation: configuration, one line per attempt, reports, and what each attempt left."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.evaluation.config import EvalConfig
from drivetrain.lines import append_line, read_lines

Status = Literal["resolved", "unresolved", "infra_error"]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try of one task.

    ``infra_error`` says nothing about the model: it counts as nothing, and is tried again when the evaluation goes on.
    ``reason`` is the grade's, ``stop`` how the agent ended, ``tries`` how often it was started. Seconds.
    """

    task_id: str
    index: int
    status: Status
    reason: str = ""
    stop: str = ""
    detail: str = ""
    tries: int = 1
    patch_bytes: int = 0
    seconds: float = 0.0
    agent_s: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether it was graded."""
        return self.status != "infra_error"


class _Stored(msgspec.Struct, kw_only=True):
    config: EvalConfig


class EvalFolder:
    """``eval.json``, ``attempts.jsonl`` (appended as attempts finish), ``report.{json,md,html}``,
    ``attempts/<task>.<index>/`` (patch, test log, the agent's own logs)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = path / "attempts.jsonl"

    @classmethod
    def open(cls, path: Path | None, config: EvalConfig) -> EvalFolder:
        """A new folder, by default ``evals/<time>-<random>``, or one to go on with.

        Raises:
            ConfigError: the folder holds an evaluation of something else; the message names the differences.
        """
        if path is None:
            path = Path("evals") / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        file = path / "eval.json"
        if file.is_file():
            stored = cls(path).config()
            ours, theirs = msgspec.structs.asdict(config), msgspec.structs.asdict(stored)
            differ = [
                f"{name} was {theirs[name]!r}, is {ours[name]!r}"
                for name in ours
                if ours[name] != theirs[name] and name != "infra_tries"
            ]
            if differ:
                raise ConfigError(
                    f"{path} holds an evaluation of something else: {'; '.join(differ)}.",
                    fix="Name another folder with --out, or give the same options.",
                )
        return cls(path)

    def start(self, config: EvalConfig) -> None:
        """Write the configuration, once the names in it are known to be good."""
        self.path.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.format(msgspec.json.encode(_Stored(config=config)), indent=2)
        (self.path / "eval.json").write_bytes(data + b"\n")

    def config(self) -> EvalConfig:
        """What is evaluated here.

        Raises:
            ConfigError: there is no evaluation in the folder.
        """
        try:
            return msgspec.json.decode((self.path / "eval.json").read_bytes(), type=_Stored).config
        except (OSError, msgspec.DecodeError) as e:
            raise ConfigError(
                f"no evaluation at {self.path} ({e}).", fix="Name a folder that `drivetrain eval` wrote."
            ) from e

    def append(self, attempt: Attempt) -> None:
        """Record a finished attempt."""
        append_line(self._log, attempt)

    def attempts(self) -> dict[tuple[str, int], Attempt]:
        """The last record of every attempt; a line cut off by a crash is ignored."""
        return {(a.task_id, a.index): a for a in read_lines(self._log, Attempt)}

    def keep(self, task_id: str, index: int, files: Mapping[str, bytes]) -> None:
        """Store what an attempt left."""
        folder = self.path / "attempts" / f"{task_id.replace('/', '_')}.{index}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
