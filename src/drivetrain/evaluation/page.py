"""The report as one HTML file: no script, nothing fetched, readable in light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from drivetrain.evaluation.estimate import Estimate
from drivetrain.evaluation.report import EvalReport, headline, interval, percent

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #3b82c4; --soft: #3b82c433 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line) }
th { text-align: left } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.scale { position: relative; height: .9rem; min-width: 12rem; background: #8882; border-radius: 3px }
.scale i { position: absolute; top: 0; bottom: 0; background: var(--soft) }
.scale b { position: absolute; top: 0; bottom: 0; width: 3px; margin-left: -1px; background: var(--bar) }
code { font-size: .9em } .note { opacity: .75 }
"""


def _bar(made: Estimate | None) -> str:
    """The interval as a band and the share as a mark, on a scale from 0 to 1."""
    if made is None:
        return ""
    left, width = 100 * made.low, 100 * (made.high - made.low)
    band = f'<i style="left:{left:.2f}%;width:{width:.2f}%"></i>'
    return f'<div class="scale">{band}<b style="left:{100 * made.value:.2f}%"></b></div>'


class _Raw(str):
    """Markup made here; every other cell is escaped."""


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def cell(tag: str, value: object) -> str:
        number = ' class="n"' if isinstance(value, int | float) or (tag == "td" and str(value).endswith("%")) else ""
        return f"<{tag}{number}>{value if isinstance(value, _Raw) else escape(str(value))}</{tag}>"

    lines = ["<table><thead><tr>", *(cell("th", name) for name in head), "</tr></thead><tbody>"]
    for row in rows:
        lines.append(f"<tr>{''.join(cell('td', value) for value in row)}</tr>")
    return "".join([*lines, "</tbody></table>"])


def page(report: EvalReport) -> str:
    """The whole file."""
    config = report.config
    facts = [
        ("agent", config.agent + (f" ({config.variant})" if config.variant else "")),
        ("model", config.model or "-"),
        ("endpoint", config.base_url or "-"),
        ("sandbox", f"{config.sandbox}, network {config.network}"),
        ("limits", f"{config.deadline_s:g} s, {config.max_tokens} tokens per answer, context {config.context_length}"),
    ]
    passed = [
        (f"pass@{k}", percent(e.value), _Raw(_bar(e)), f"{100 * e.low:.1f} to {100 * e.high:.1f} %", e.tasks, e.method)
        for k, e in report.pass_at.items()
    ]
    repos = [
        (r.repo, r.tasks, r.graded, r.resolved, r.infra_errors, interval(r.pass_at_1), _Raw(_bar(r.pass_at_1)))
        for r in report.by_repo
    ]
    tasks = [(t.task_id, t.language, t.graded, t.resolved, t.infra_errors, round(t.seconds)) for t in report.by_task]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{escape(config.agent)} evaluation</title><style>{_STYLE}</style></head><body>",
        f"<h1>Evaluation</h1><p>{escape(headline(report))}.</p>",
        _table(("pass@k", "share", "", "95 % interval", "tasks", "method"), passed),
        f"<p class='note'>{escape(report.intervals)}</p>",
        "<h2>Repositories</h2>",
        _table(("repository", "tasks", "graded", "resolved", "not graded", "pass@1", ""), repos),
        "<h2>Tasks</h2>",
        _table(("task", "language", "graded", "resolved", "not graded", "seconds"), tasks),
    ]
    for title, counts in (("Why attempts did not resolve", report.reasons), ("How the agent ended", report.stops)):
        if counts:
            parts += [f"<h2>{title}</h2>", _table(("", "attempts"), counts.items())]
    parts += ["<h2>What was run</h2>", _table(("", ""), facts), "</body></html>\n"]
    return "".join(parts)
