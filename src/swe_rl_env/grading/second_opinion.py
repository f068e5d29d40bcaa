"""What a run's report says beside the log that decides. A contradiction is a finding and changes no reward (row G9).

Code under test knows the report's path, so a report proves as little as a log does. But who forges one of them, or ends
the process before the runner has written the other, is seen here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from swe_rl_env.grading.steps import Step
from swe_rl_env.parsers import get_parser, normalise_results
from swe_rl_env.parsers.results import LogUnreadable, Status
from swe_rl_env.work.findings import Finding

_SHOWN = 5
_JEST: Mapping[Status, str] = {"PASSED": "✓", "FAILED": "✕", "ERROR": "✕", "SKIPPED": "○"}


def contradictions(
    parser: str,
    verdicts: Mapping[str, str],
    steps: Sequence[Step],
    reports: Sequence[bytes | None],
    *,
    xfail_passes: bool = False,
) -> tuple[Finding, ...]:
    """Compare the named parser's verdicts (normalised ids) with the reports, one per step; at most one finding.

    Only PASSED or not is compared, and only for steps that were asked for a report (an empty one: the runner cannot). A
    cut id stands for several tests of a report: then one of them has to agree.
    """
    pairs = zip(steps, reports, strict=True)
    asked = [(step, report) for step, report in pairs if step.report is not None and report != b""]
    if not asked:
        return ()
    passed = sum(v == "PASSED" for v in verdicts.values())
    if passed and all(report is None for _, report in asked):
        return (_finding([f"there is no report, though the log says that {passed} tests passed"]),)
    said: dict[str, set[Status]] = {}
    for step, report in asked:
        if report is not None and step.structured is not None:
            for name, status in _as_named(parser, step.structured.read(report.decode("utf-8", "replace"))):
                said.setdefault(name, set()).add(status)
    found = []
    for name, verdict in verdicts.items():
        statuses = said.get(name, set())
        agree = (verdict == "PASSED") in {s == "PASSED" for s in statuses}
        if statuses and not agree and not (xfail_passes and verdict == "PASSED" and "SKIPPED" in statuses):
            found.append(f"{name}: {verdict} in the log, {'/'.join(sorted(statuses))} in the report")
        elif verdict == "PASSED" and not statuses and len(asked) == len(steps):
            found.append(f"{name}: PASSED in the log, not in the report")
    return (_finding(found),) if found else ()


def _as_named(parser: str, report: Mapping[str, Status]) -> Iterable[tuple[str, Status]]:
    """A report's results under the ids that the named parser gives them: it is shown the lines it looks for."""
    read = get_parser(parser)
    for test_id, status in report.items():
        name = " ".join(test_id.splitlines())
        line = f"{_JEST[status]} {name.rpartition(' > ')[2]}" if parser == "parse_log_jest" else f"{status} {name}"
        try:
            yield from normalise_results(read(f"{line}\n")).items()
        except LogUnreadable:
            continue


def _finding(problems: Sequence[str]) -> Finding:
    more = f", and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return Finding(kind="report_disagrees", detail=f"{'; '.join(p[:200] for p in problems[:_SHOWN])}{more}")
