"""Log parsers: the text a suite printed -> ``{test id: PASSED | FAILED | SKIPPED | ERROR}``.

Two ways to read results, never mixed in one task:

* The 76 parser names of SWE-rebench V2 rows (:func:`get_parser`). They reproduce the dataset's parsers result for
  result, including ids cut at blanks and colliding names, because the rows' expected ids were made with them.
* Reports (:func:`structured_for`): the same command with a machine-readable report, for rows whose ids are exact. For
  rows with a named parser a report is a second opinion: a contradiction is a finding, never a verdict.

Every parser runs in time linear in the log, whatever it holds; ids that outgrow the log raise
:class:`LogUnreadable`.
"""

from swe_rl_env.parsers.names import normalise_id, normalise_ids, normalise_results
from swe_rl_env.parsers.registry import get_parser, parser_names, read_log
from swe_rl_env.parsers.results import LogParser, LogUnreadable, Status
from swe_rl_env.parsers.structured import Structured, structured_for

__all__ = [
    "LogParser",
    "LogUnreadable",
    "Status",
    "Structured",
    "get_parser",
    "normalise_id",
    "normalise_ids",
    "normalise_results",
    "parser_names",
    "read_log",
    "structured_for",
]
