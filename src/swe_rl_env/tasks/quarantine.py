"""The quarantine file: which tasks are left out here, and why.

``drivetrain tasks validate`` writes it, loaders respect it. It says what was seen on one machine: by default it lies
in the cache folder, beside the built tasks. Infrastructure failures are kept in it for the record, but say nothing
about a task and leave none out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from drivetrain.cache import cache_root
from drivetrain.errors import ConfigError

NOT_THE_TASKS_FAULT = "infrastructure"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Why one task is in quarantine. ``kind``: flaky, unsolvable, no_signal or infrastructure; ``at``: ISO, UTC."""

    kind: str
    reasons: tuple[str, ...]
    backend: str
    at: str = ""

    @property
    def excludes(self) -> bool:
        """Whether loaders leave the task out."""
        return self.kind != NOT_THE_TASKS_FAULT


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    version: int = 1
    tasks: dict[str, Entry] = {}


def quarantine_path(path: Path | None = None) -> Path:
    """``path``, else ``$DRIVETRAIN_QUARANTINE``, else ``quarantine.json`` in the cache folder."""
    return path or Path(os.environ.get("DRIVETRAIN_QUARANTINE") or cache_root() / "quarantine.json")


def read_quarantine(path: Path | None = None) -> dict[str, Entry]:
    """Entries by task id; empty when there is no file.

    Raises:
        ConfigError: the file is not a quarantine file.
    """
    path = quarantine_path(path)
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as e:
        raise ConfigError(f"{path} is no quarantine file: {e}.", fix="Repair or delete it, then validate again.") from e
    if stored.version != 1:
        raise ConfigError(f"{path} has version {stored.version}, known is 1.", fix="Delete it and validate again.")
    return stored.tasks


def update_quarantine(path: Path | None, bad: dict[str, Entry], fit: Iterable[str]) -> Path:
    """Add or replace ``bad`` and release ``fit``; entries of other tasks stay. The file is replaced as a whole.

    Returns:
        Where it is.
    """
    target = quarantine_path(path)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    released = set(fit)
    kept = {name: entry for name, entry in read_quarantine(target).items() if name not in released}
    added = {name: msgspec.structs.replace(entry, at=entry.at or now) for name, entry in bad.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    temp = target.with_name(f".{target.name}.{os.getpid()}")
    data = msgspec.json.encode(_File(tasks=dict(sorted({**kept, **added}.items()))))
    temp.write_bytes(msgspec.json.format(data, indent=2) + b"\n")
    temp.replace(target)
    return target
