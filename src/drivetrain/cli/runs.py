"""Finding things in a run folder, for the commands that read one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drivetrain.errors import ConfigError
from drivetrain.journal.reader import JournalReader, StoredSession
from drivetrain.rollout.resume import counted_sessions
from drivetrain.rollout.run_dir import RunDir
from drivetrain.tokens.tokenizer import Tokenizer


def run_sessions(run: RunDir, reader: JournalReader) -> list[StoredSession]:
    """The sessions of a run, oldest first, without those of attempts that were stopped and run again."""
    return counted_sessions(reader.sessions(), run.results())


def find_session(sessions: Sequence[StoredSession], which: str) -> StoredSession:
    """The session whose id or rollout id is ``which`` or, if only one does, begins with it.

    Raises:
        ConfigError: none does, or several do.
    """
    found = [s for s in sessions if s.id.startswith(which) or s.labels.get("rollout", "").startswith(which)]
    exact = [s for s in found if which in (s.id, s.labels.get("rollout"))]
    if len(exact or found) == 1:
        return (exact or found)[0]
    names = ", ".join(s.labels.get("rollout", s.id) for s in sessions[:8])
    problem = "no" if not found else f"{len(found)}"
    raise ConfigError(f"{problem} rollout begins with {which!r}.", fix=f"Name one of: {names}.")


def run_tokenizer(run: RunDir) -> Tokenizer | None:
    """Tokenizer of the run's model, where it is still there."""
    model = run.info().get("model")
    path = Path(model["path"]) / "tokenizer.json" if model else None
    return Tokenizer.from_file(path) if path is not None and path.is_file() else None
