"""Which log parser names a row may carry. Checked when a row is loaded: grading is too late to find a wrong one."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.errors import ConfigError
from swe_rl_env.parsers import get_parser, structured_for

EXACT = ("pytest_nodeid_exact", "tap_blocks_per_file")
"""Readers of our own archive rows: exact ids from a report. Not to be mixed with named parsers, whose ids are cut."""
REPORT_EXACT = "report_exact"
"""Reader of image rows whose ids came from the runner's own report (:func:`~swe_rl_env.parsers.structured_for`)."""


def check_log_parser(name: str, test_cmd: Sequence[str], *, archive: bool) -> None:
    """Accept a name that the results of these commands can be read with.

    Raises:
        ConfigError: no such parser (the message names close matches), or one that is not for such a row.
    """
    if archive:
        if name in EXACT:
            return
        get_parser(name)
        raise ConfigError(
            f"{name!r} cuts test ids, and the ids of archive rows are exact.", fix=f"Use {' or '.join(EXACT)}."
        )
    if name in EXACT:
        raise ConfigError(f"{name!r} reads rows made from archives.", fix=f"Use a named parser, or {REPORT_EXACT}.")
    if name != REPORT_EXACT:
        get_parser(name)
    elif structured_for(test_cmd, "report") is None:
        raise ConfigError(
            f"{REPORT_EXACT} needs a test_cmd that is one plain call of a runner that writes reports.",
            fix="See swe_rl_env.parsers.structured.",
        )
