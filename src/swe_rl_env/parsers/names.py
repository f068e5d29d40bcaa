"""The one place where ids lose what changes from run to run.

Both sides of a comparison go through :func:`normalise_id`: what a parser read and what the row expects
(facts: SWE-rebench V2 removes a trailing ``[1.34 ms]``, an inner `` in 29 msec``, a trailing ``(1.2s)``, outer blanks).
Colour codes, which some published ids carry, go first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from swe_rl_env.parsers.results import Status, merge_worse
from swe_rl_env.parsers.text import cut_bracket_time, cut_inner_time, cut_paren_time, strip_ansi


def normalise_id(test_id: str) -> str:
    """The id without colour codes, times and outer blanks."""
    return cut_paren_time(cut_inner_time(cut_bracket_time(strip_ansi(test_id)))).strip()


def normalise_ids(test_ids: Iterable[str]) -> tuple[str, ...]:
    """Expected ids, normalised, in order and each once."""
    return tuple(dict.fromkeys(normalise_id(i) for i in test_ids))


def normalise_results(found: Mapping[str, Status]) -> dict[str, Status]:
    """What a parser read under normalised ids. Of two ids that become one, the worse status counts."""
    return merge_worse((normalise_id(i), s) for i, s in found.items())
