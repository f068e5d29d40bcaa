"""Go on with a run that was stopped: what finished is kept, what did not starts anew."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.journal.reader import StoredSession
from drivetrain.journal.wal import is_being_written
from drivetrain.rollout.config import EpisodeSpec, RolloutConfig, episodes_of
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir

_SAME = ("selection", "model", "template_sha256", "engine", "policy_version", "agents")


class ResumedRun(RunDir):
    """A run folder that is gone on with, under the settings in its ``run.json``.

    A rollout is finished when its result is recorded, whatever its status. One that was going on when the run stopped
    has none: its rows, if some were written, are dropped here, its session stays in the journal, and it is run again
    in a new session.

    Raises:
        ConfigError: there is no run in the folder, its settings cannot be read, or a process is working on it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(RunDir.open(path).path)
        self._before = self.info()
        try:
            self.config = msgspec.convert(self._before.get("config"), RolloutConfig)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the settings in {path / 'run.json'} cannot be read: {error}.") from error
        if self.journal.is_file() and is_being_written(self.journal):
            raise ConfigError(f"a process is working on {path}.", fix="Wait until it has ended.")
        for file in (self._results, self._rows):
            _drop_torn_line(file)
        self.finished: dict[str, RolloutResult] = {result.rollout_id: result for result in self.results()}
        _keep_rows_of(self._rows, set(self.finished))

    def missing(self) -> list[EpisodeSpec]:
        """The rollouts that have no result."""
        return [spec for spec in episodes_of(self.config) if spec.rollout_id not in self.finished]

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Note in ``run.json`` that the run went on, and when (seconds since the epoch).

        Raises:
            ConfigError: model, template, engine, policy or an agent's bundle is not what the run began with.
        """
        now = msgspec.json.decode(msgspec.json.encode(info))
        changed = [name for name in _SAME if now.get(name) != self._before.get(name)]
        if changed:
            name = changed[0]
            raise ConfigError(
                f"{name} was {self._before.get(name)} when {self.path} began, and is {now.get(name)} now.",
                fix="Start another run; rollouts of one run must be alike.",
            )
        super().write_info({**self._before, "resumed": [*self._before.get("resumed", ()), time.time()]})


async def seal_unfinished(gateway: Gateway | None) -> int:
    """Seal the sessions that a stopped run left open, so that no key of theirs opens anything; how many."""
    if gateway is None:
        return 0
    left = gateway.sessions.open_sessions()
    for session in left:
        await gateway.seal_session(session.id)
    return len(left)


def counted_sessions(sessions: Sequence[StoredSession], results: Sequence[RolloutResult]) -> list[StoredSession]:
    """The sessions of a run without those of attempts that were stopped and run again.

    A rollout with a result counts with that result's session, one without with its newest.
    """
    of_result = {result.rollout_id: result.session_id for result in results}
    newest = {session.labels.get("rollout", session.id): session.id for session in sessions}  # oldest first
    chosen = {rollout: of_result.get(rollout) or session for rollout, session in newest.items()}
    return [session for session in sessions if chosen[session.labels.get("rollout", session.id)] == session.id]


def _drop_torn_line(file: Path) -> None:
    """A line without its end was being written when the process was killed."""
    if file.is_file():
        data = file.read_bytes()
        if not data.endswith(b"\n"):
            _replace(file, data[: data.rfind(b"\n") + 1])


def _keep_rows_of(file: Path, finished: set[str]) -> None:
    """Rows are written before their result, so that the last rollout's may be there without one."""
    if file.is_file():
        lines = file.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if msgspec.json.decode(line, type=_Owner).rollout_id in finished]
        if len(kept) < len(lines):
            _replace(file, b"".join(kept))


def _replace(file: Path, data: bytes) -> None:
    temporary = file.with_name(file.name + ".tmp")
    temporary.write_bytes(data)
    temporary.replace(file)


class _Owner(msgspec.Struct):
    rollout_id: str
