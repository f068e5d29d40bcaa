"""What a validation of many tasks found: for the quarantine file, as JSON, and as a table for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from drivetrain.errors import ConfigError
from swe_rl_env.grading.campaign import Checked, Plan
from swe_rl_env.tasks.quarantine import Entry

BEGIN, END = "<!-- tasks validate: begin -->", "<!-- tasks validate: end -->"
"""Lines in a document between which :func:`write_table` puts the table."""


def quarantined(results: Sequence[Checked]) -> dict[str, Entry]:
    """Entries of the quarantine file for the tasks that are not fit."""
    return {
        c.instance_id: Entry(kind=c.kind, reasons=c.reasons[:20], backend=c.backend) for c in results if c.kind != "fit"
    }


def summary(results: Sequence[Checked], plan: Plan) -> dict[str, object]:
    """The report as JSON-ready data."""
    kinds = Counter(c.kind for c in results)
    return {
        "plan": msgspec.to_builtins(plan),
        "tasks": len(results),
        "kinds": dict(sorted(kinds.items())),
        "pass_rate": {c.instance_id: c.gold_rate for c in results if c.gold_rate is not None},
        "results": [msgspec.to_builtins(c) for c in results],
    }


def markdown(results: Sequence[Checked], plan: Plan) -> str:
    """The report as a Markdown table, below a paragraph of totals.

    Results of several kinds of sandbox stand side by side; a task is listed once, in the order of first mention.
    """
    places = list(dict.fromkeys(c.backend for c in results))
    tasks: dict[str, dict[str, Checked]] = {}
    for c in results:
        tasks.setdefault(c.instance_id, {})[c.backend] = c
    columns = [f"{place}: {name}" for place in places for name in ("gold", "no-op", "other order", "suite, s")]
    head = ["task", "language", "F2P", "P2P", *columns, "result"]
    ruler = ["---", "---", "---:", "---:", *(["---", "---", "---", "---:"] * len(places)), "---"]
    lines = [_totals(results, plan, places), "", _row(head), f"|{'|'.join(ruler)}|"]
    for name, found in tasks.items():
        one = next(iter(found.values()))
        cells = [cell for place in places for cell in _cells(found.get(place))]
        size = [str(one.fail_to_pass), str(one.pass_to_pass)]
        lines.append(_row([name, one.language, *size, *cells, _result(found, places)]))
    return "\n".join(lines) + "\n"


def _totals(results: Sequence[Checked], plan: Plan, places: Sequence[str]) -> str:
    said = []
    for place in places:
        here = [c for c in results if c.backend == place]
        image = next((f" (image {c.image})" for c in here if c.image), "")
        said.append(f"{sum(c.kind == 'fit' for c in here)} of {len(here)} tasks are fit in {place}{image}")
    order = sum(bool(c.order_dependent) for c in results)
    shuffled = ", one more with the reference fix in another order" if plan.shuffle_seed is not None else ""
    return (
        f"{', '.join(said)}. Each was graded {plan.gold_runs} times with the reference fix and {plan.noop_runs} times "
        f"without{shuffled}. A task is fit when the fix resolves it every time, no FAIL_TO_PASS test passes without "
        f"it, and no verdict varies between equal runs; {order} have tests that depend on their order, which is a "
        "remark: graded runs keep the suite's own order."
    )


def _cells(c: Checked | None) -> list[str]:
    if c is None:
        return ["-"] * 4
    good, bad = c.gold.count("resolved"), c.noop.count("tests_failed")
    return [f"{good}/{len(c.gold)}", f"{bad}/{len(c.noop)}", c.shuffled or "-", f"{c.suite_s:.1f}"]


def _result(found: Mapping[str, Checked], places: Sequence[str]) -> str:
    said: dict[str, list[str]] = {}
    for place, c in found.items():
        order = f", {len(c.order_dependent)} order-dependent" if c.kind == "fit" and c.order_dependent else ""
        why = f": {_cell(c.reasons[0])}" if c.reasons else ""
        said.setdefault(f"{c.kind}{order}{why}", []).append(place)
    if len(said) == 1 and len(found) == len(places):
        return next(iter(said))
    return "; ".join(f"{', '.join(where)}: {what}" for what, where in said.items())


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str, length: int = 120) -> str:
    flat = " ".join(text.replace("|", "\\|").split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"


def check_place(path: Path) -> None:
    """Accept a file that :func:`write_table` can write to.

    Raises:
        ConfigError: the file exists and does not hold each mark once, in this order.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else f"{BEGIN}{END}"
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ConfigError(
            f"{path} does not say where the table goes.", fix=f"Put the lines {BEGIN} and {END} where it shall stand."
        )


def write_table(path: Path, table: str) -> None:
    """Put the table between the marks :data:`BEGIN` and :data:`END` of a document, or make a file of it.

    Raises:
        ConfigError: see :func:`check_place`.
    """
    check_place(path)
    text = path.read_text(encoding="utf-8") if path.exists() else f"{BEGIN}{END}\n"
    before, _, rest = text.partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
