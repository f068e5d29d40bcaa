"""Look a name up in a registry; an unknown one is answered with the closest known names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from drivetrain.errors import ConfigError

T = TypeVar("T")


def lookup(what: str, name: str, known: Mapping[str, T]) -> T:
    """Return ``known[name]``.

    Args:
        what: the kind of thing, for the message ("agent", "variant of pi").

    Raises:
        ConfigError: no such name; the message lists close matches and all names.
    """
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    guess = f"Did you mean {' or '.join(close)}? " if close else ""
    raise ConfigError(f"Unknown {what}: {name!r}.", fix=f"{guess}Known: {', '.join(sorted(known)) or 'none'}.")
