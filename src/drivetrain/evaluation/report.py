"""What an evaluation says: pass@k with intervals, a table per repository, one line per task."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from drivetrain.evaluation.config import EvalConfig
from drivetrain.evaluation.estimate import Estimate, estimate, pass_at_k
from drivetrain.evaluation.folder import Attempt
from swe_rl_env.tasks.model import SweTask

_KS = (1, 2, 3, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100)

INTERVALS = (
    "Intervals are 95 %, over tasks: Wilson where every task scores 0 or 1, else a percentile bootstrap "
    "(10,000 resamples, fixed seed)."
)


class TaskLine(msgspec.Struct, frozen=True, kw_only=True):
    """One task: graded attempts, how many resolved it, and how many could not be graded."""

    task_id: str
    repo: str
    language: str
    graded: int
    resolved: int
    infra_errors: int
    seconds: float

    @property
    def rate(self) -> float | None:
        """Share of graded attempts that resolved it; None without any."""
        return self.resolved / self.graded if self.graded else None


class RepoLine(msgspec.Struct, frozen=True, kw_only=True):
    """One repository; ``pass_at_1`` is None when none of its tasks was graded."""

    repo: str
    tasks: int
    graded: int
    resolved: int
    infra_errors: int
    pass_at_1: Estimate | None


class EvalReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the three formats show.

    ``pass_at`` holds k -> estimate, for each k that at least one task has that many graded attempts of; its ``tasks``
    says how many have. ``pass_rate`` by task is what ``tasks ls --rates`` reads. ``reasons`` counts grades of attempts
    that did not resolve, ``stops`` how the agent ended.
    """

    config: EvalConfig
    tasks: int
    attempts: int
    graded: int
    resolved: int
    infra_errors: int
    pass_at: dict[str, Estimate]
    pass_rate: dict[str, float]
    reasons: dict[str, int]
    stops: dict[str, int]
    by_repo: tuple[RepoLine, ...]
    by_task: tuple[TaskLine, ...]
    intervals: str = INTERVALS


def make_report(config: EvalConfig, tasks: Sequence[SweTask], attempts: Sequence[Attempt]) -> EvalReport:
    """Count. Attempts that could not be graded are shown, and are in no share."""
    by_task: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_task[attempt.task_id].append(attempt)
    lines = [_task_line(task, by_task[task.instance_id]) for task in tasks]
    graded = [a for a in attempts if a.counts]
    return EvalReport(
        config=config,
        tasks=len(tasks),
        attempts=len(attempts),
        graded=len(graded),
        resolved=sum(a.status == "resolved" for a in graded),
        infra_errors=len(attempts) - len(graded),
        pass_at=_pass_at(lines),
        pass_rate={line.task_id: line.rate for line in lines if line.rate is not None},
        reasons=dict(Counter(a.reason for a in graded if a.status != "resolved").most_common()),
        stops=dict(Counter(a.stop for a in graded if a.stop).most_common()),
        by_repo=tuple(_repo_lines(lines)),
        by_task=tuple(lines),
    )


def _task_line(task: SweTask, attempts: Sequence[Attempt]) -> TaskLine:
    graded = [a for a in attempts if a.counts]
    return TaskLine(
        task_id=task.instance_id,
        repo=task.public.repo,
        language=task.public.language,
        graded=len(graded),
        resolved=sum(a.status == "resolved" for a in graded),
        infra_errors=len(attempts) - len(graded),
        seconds=round(sum(a.seconds for a in attempts), 1),
    )


def _pass_at(lines: Sequence[TaskLine]) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {}
    most = max((line.graded for line in lines), default=0)
    for k in sorted({k for k in _KS if k <= most} | ({most} if most else set())):
        scores = [pass_at_k(line.graded, line.resolved, k) for line in lines if line.graded >= k]
        made = estimate(scores)
        if made is not None:
            found[str(k)] = made
    return found


def _repo_lines(lines: Sequence[TaskLine]) -> list[RepoLine]:
    by_repo: dict[str, list[TaskLine]] = defaultdict(list)
    for line in lines:
        by_repo[line.repo].append(line)
    return [
        RepoLine(
            repo=repo,
            tasks=len(group),
            graded=sum(line.graded for line in group),
            resolved=sum(line.resolved for line in group),
            infra_errors=sum(line.infra_errors for line in group),
            pass_at_1=estimate([line.rate for line in group if line.rate is not None]),
        )
        for repo, group in sorted(by_repo.items())
    ]


def percent(value: float | None) -> str:
    """For people."""
    return "-" if value is None else f"{100 * value:.1f} %"


def interval(made: Estimate | None) -> str:
    """``41.2 % (30.1 to 53.0 %)``."""
    if made is None:
        return "-"
    return f"{percent(made.value)} ({100 * made.low:.1f} to {100 * made.high:.1f} %)"


def headline(report: EvalReport) -> str:
    """One sentence: what was run and what could not be graded."""
    config = report.config
    what = f"{config.agent} with {config.model}" if config.needs_model else f"reference agent {config.agent}"
    left = f"; {report.infra_errors} could not be graded and count as nothing" if report.infra_errors else ""
    return f"{what}: {report.resolved} of {report.graded} graded attempts on {report.tasks} tasks resolved{left}"


def markdown(report: EvalReport) -> str:
    """The report as Markdown."""
    out = [f"# Evaluation\n\n{headline(report)}.\n"]
    out += ["| | share | interval | tasks | method |", "|---|---:|---|---:|---|"]
    for k, made in report.pass_at.items():
        low, high = 100 * made.low, 100 * made.high
        out.append(f"| pass@{k} | {percent(made.value)} | {low:.1f} to {high:.1f} % | {made.tasks} | {made.method} |")
    out += ["", report.intervals, "", "| repository | tasks | graded | resolved | not graded | pass@1 |"]
    out.append("|---|---:|---:|---:|---:|---|")
    for line in report.by_repo:
        counts = f"{line.tasks} | {line.graded} | {line.resolved} | {line.infra_errors}"
        out.append(f"| {_cell(line.repo)} | {counts} | {interval(line.pass_at_1)} |")
    out += ["", "| task | graded | resolved | not graded | seconds |", "|---|---:|---:|---:|---:|"]
    for task in report.by_task:
        out.append(
            f"| {_cell(task.task_id)} | {task.graded} | {task.resolved} | {task.infra_errors} | {task.seconds:.0f} |"
        )
    for title, counts_of in (("Why attempts did not resolve", report.reasons), ("How the agent ended", report.stops)):
        if counts_of:
            out += ["", f"{title}: {_counts(counts_of)}."]
    return "\n".join(out) + "\n"


def _counts(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in values.items())


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
