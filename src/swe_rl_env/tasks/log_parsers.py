"""Which log parser names a row may carry. Checked when a row is loaded: grading is too late to find a wrong one."""

from __future__ import annotations

import importlib
import importlib.util
import re

from drivetrain.errors import ConfigError

EXACT = ("pytest_nodeid_exact", "tap_blocks_per_file")
"""Readers of our own rows: exact ids from a report. Not to be mixed with the named parsers, whose ids are cut."""

_NAMED = "swe_rl_env.parsers"


def check_log_parser(name: str) -> None:
    """Accept a name that results can be read with.

    Raises:
        ConfigError: no such parser; the message names close matches.
    """
    if name in EXACT:
        return
    if importlib.util.find_spec(_NAMED) is not None:
        importlib.import_module(_NAMED).get_parser(name)
    elif not re.fullmatch(r"parse_\w+", name):
        raise ConfigError(f"Unknown log_parser {name!r}.", fix=f"Use {', '.join(EXACT)} or a parse_... name.")
