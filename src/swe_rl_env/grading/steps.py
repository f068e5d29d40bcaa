"""The row's commands as the grader runs them: with a report beside the log, where the runner writes one by the way.

Two kinds of rows. Those with a named parser are read by it, bug for bug, since their ids were made with it; a report is
then a second opinion (:mod:`swe_rl_env.grading.second_opinion`) and must not change what the parser reads. Those with
the parser ``report_exact`` are read from the report and from nothing else.
"""

from __future__ import annotations

import shlex

import msgspec

from drivetrain.errors import ConfigError
from swe_rl_env.parsers import reports
from swe_rl_env.parsers.structured import Structured, structured_for
from swe_rl_env.tasks.adapters.base import in_testbed
from swe_rl_env.tasks.log_parsers import REPORT_EXACT
from swe_rl_env.tasks.model import InstallConfig

_PYTEST = ("parse_log_pytest", "parse_log_pytest_options", "parse_log_pytest_v2", "parse_log_matplotlib")
_COMPARED = {**dict.fromkeys(_PYTEST, reports.pytest_xml), "parse_log_jest": reports.jest_json}
_PYTEST_USAGE_ERROR = 4


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One command: ``script`` leaves its exit code in ``$?``. ``report`` is the file it is asked to write, None when it
    writes none; ``structured`` says how results are read from it (from the output when there is no file)."""

    script: str
    report: str | None = None
    structured: Structured | None = None


def steps_of(install: InstallConfig, folder: str) -> list[Step]:
    """Every command of a row in order; reports lie in ``folder`` (inside path), a new one of an unknown name.

    Raises:
        ConfigError: ``report_exact`` and a command that writes no report; loading a row refuses that already.
    """
    if install.log_parser == REPORT_EXACT:
        report = f"{folder}/report"
        structured = structured_for(install.test_cmd, report)
        if structured is None:
            raise ConfigError(f"log_parser {REPORT_EXACT} needs one plain call of a known runner.")
        return [Step(script=structured.command, report=None if structured.in_output else report, structured=structured)]
    return [_step(command, install.log_parser, f"{folder}/report-{n}") for n, command in enumerate(install.test_cmd)]


def _step(command: str, parser: str, report: str) -> Step:
    lead = in_testbed("") if command.startswith(in_testbed("")) else ""
    structured = structured_for([command.removeprefix(lead)], report) if parser in _COMPARED else None
    if structured is None or not structured.beside or structured.read is not _COMPARED[parser]:
        return Step(script=command)
    script = f"{lead}{structured.command}"
    if parser in _PYTEST:
        # A pytest that cannot report refuses the option before it runs anything: then the row's own command is run, and
        # an empty report says so.
        refused = f'[ "$drivetrain_code" = {_PYTEST_USAGE_ERROR} ] && [ ! -e {shlex.quote(report)} ]'
        script = (
            f"{script}\ndrivetrain_code=$?\nif {refused}; then\n: >{shlex.quote(report)}\n{command}\n"
            "drivetrain_code=$?\nfi\n"
            '(exit "$drivetrain_code")'
        )
    return Step(script=script, report=report, structured=structured)
