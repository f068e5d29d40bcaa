"""Which rollout of which run is meant?"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from drivetrain.errors import ConfigError
from drivetrain.journal.reader import JournalReader
from drivetrain.rollout.run_dir import RunDir

_SHOWN = 8


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout of a run, by its exact id."""

    run: RunDir
    rollout_id: str


def find_rollouts(where: str, which: str | None, *, runs: Path) -> list[Target]:
    """The rollouts that were named.

    Args:
        where: a run folder, the folder of one rollout in it (``RUN/rollouts/ID``), or a rollout of a run below
            ``runs``; of several runs that hold it the newest is taken.
        which: a rollout or session id, the beginning is enough; None = every rollout of the run.
        runs: folder of run folders.

    Raises:
        ConfigError: no such run or rollout, or more than one rollout begins like that.
    """
    path = Path(where)
    if (path / "run.json").is_file():
        run = RunDir.open(path)
        names = rollout_names(run)
        chosen = list(dict.fromkeys(names.values())) if which is None else [choose(names, which, path)]
        return [Target(run=run, rollout_id=name) for name in chosen]
    if which is None and path.parent.name == "rollouts" and (path.parent.parent / "run.json").is_file():
        run = RunDir.open(path.parent.parent)
        return [Target(run=run, rollout_id=choose(rollout_names(run), path.name, run.path))]
    if which is not None or path.is_dir():
        raise ConfigError(f"no run at {path}.", fix="Name a folder that `drivetrain rollout` wrote.")
    return [_newest(where, runs)]


def rollout_names(run: RunDir) -> dict[str, str]:
    """Rollout and session ids of a run, each with the rollout it names; also of rollouts that have not finished.

    Raises:
        ConfigError: the run has neither a journal nor a result.
    """
    results = run.results()
    names = {result.rollout_id: result.rollout_id for result in results}
    owners = {result.session_id: result.rollout_id for result in results if result.session_id}
    names |= owners
    if run.journal.is_file():
        for session in JournalReader(run.journal).sessions():
            label = session.labels.get("rollout", session.id)
            # Labels are the caller's: a second session of the same label goes by its own id.
            name = owners.get(session.id) or (session.id if label in names else label)
            names |= {name: name, session.id: name}
    elif not results:
        raise ConfigError(
            f"{run.path} has no journal and no results: nothing was recorded there yet.",
            fix="Wait for its first model call, or name another run.",
        )
    return names


def choose(names: dict[str, str], which: str, path: Path) -> str:
    """The rollout whose id or session id is ``which`` or, if only one does, begins with it.

    Raises:
        ConfigError: none does (close names are suggested), or several do.
    """
    if which in names:
        return names[which]
    found = sorted({rollout for name, rollout in names.items() if name.startswith(which)})
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{len(found)} rollouts of {path} begin with {which!r}.", fix=f"Name one: {_listed(found)}.")
    raise ConfigError(f"there is no rollout {which!r} in {path}.", fix=_suggestion(which, list(names), names))


def _newest(which: str, runs: Path) -> Target:
    """A rollout by its id alone, in the newest run that holds it."""
    folders = sorted((p.parent for p in runs.glob("*/run.json")), key=lambda p: p.stat().st_mtime, reverse=True)
    known: dict[str, str] = {}
    for folder in folders:
        run = RunDir.open(folder)
        try:
            names = rollout_names(run)
        except ConfigError:  # a run that has recorded nothing holds no rollout
            continue
        if any(name.startswith(which) for name in names):
            return Target(run=run, rollout_id=choose(names, which, folder))
        known = {**names, **known}
    if not folders:
        raise ConfigError(
            f"{which} is no run folder, and there is no run in {runs.absolute()}.",
            fix="Name the run: drivetrain trace view RUN ROLLOUT.",
        )
    raise ConfigError(
        f"{which} is neither a run folder nor a rollout of a run in {runs}.", fix=_suggestion(which, list(known), known)
    )


def _suggestion(which: str, ids: Sequence[str], names: dict[str, str]) -> str:
    close = difflib.get_close_matches(which, ids, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    rollouts = sorted(set(names.values()))
    return f"It holds {_listed(rollouts)}." if rollouts else "It holds none."


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
