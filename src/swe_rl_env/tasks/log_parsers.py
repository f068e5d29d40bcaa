"""Which log parser names a row may carry. Checked when a row is loaded: grading is too late to find a wrong one."""

from __future__ import annotations

from swe_rl_env.parsers import get_parser

EXACT = ("pytest_nodeid_exact", "tap_blocks_per_file")
"""Readers of our own rows: exact ids from a report. Not to be mixed with the named parsers, whose ids are cut."""


def check_log_parser(name: str) -> None:
    """Accept a name that results can be read with.

    Raises:
        ConfigError: no such parser; the message names close matches.
    """
    if name not in EXACT:
        get_parser(name)
