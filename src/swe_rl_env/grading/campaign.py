"""Validate many tasks: several at a time, each recorded as it finishes, so that a stopped campaign can go on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from drivetrain.cache import Progress, content_key, silent
from drivetrain.errors import DrivetrainError
from drivetrain.lines import append_line, read_lines
from drivetrain.sandboxes.protocol import SandboxBackend
from swe_rl_env.building.prepare import prepare_task
from swe_rl_env.grading.validate import Kind, Validation, validate_task
from swe_rl_env.tasks.model import SweTask
from swe_rl_env.tasks.quarantine import Entry


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How each task is validated; ``shuffle_seed`` None = no run in another order."""

    gold_runs: int = 3
    noop_runs: int = 3
    shuffle_seed: int | None = 0


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report.

    ``gold`` and ``noop`` are outcome reasons, one per run; ``shuffled`` that of the run in another order. ``seconds``
    are wall time of all runs, ``suite_s`` of one (the median of the gold runs). ``key`` changes when the task or the
    plan does: such a task is validated anew.
    """

    instance_id: str
    language: str
    kind: Kind
    reasons: tuple[str, ...]
    gold: tuple[str, ...]
    noop: tuple[str, ...]
    shuffled: str | None
    fail_to_pass: int
    pass_to_pass: int
    flaky: tuple[str, ...] = ()
    order_dependent: tuple[str, ...] = ()
    seconds: float = 0.0
    suite_s: float = 0.0
    backend: str = ""
    key: str = ""

    @property
    def gold_rate(self) -> float | None:
        """Share of gold runs that resolved; None when nothing ran."""
        return self.gold.count("resolved") / len(self.gold) if self.gold else None


async def validate_tasks(
    tasks: Sequence[SweTask],
    backend: SandboxBackend,
    folder: Path,
    *,
    plan: Plan | None = None,
    concurrency: int = 1,
    on_done: Callable[[Checked, int, int], None] = lambda _c, _n, _m: None,
    tell: Progress = silent,
) -> list[Checked]:
    """Validate what ``folder`` does not know yet; results in the order of ``tasks``.

    Args:
        folder: ``checked.jsonl`` in it grows by one line per finished task.
        on_done: called with a result, how many are done, and how many there are in all.

    A task whose build or sandbox fails is recorded as ``infrastructure``, and validated again the next time.
    """
    plan = plan or Plan()
    log = folder / "checked.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    known = {c.key: c for c in read_checked(folder) if c.kind != "infrastructure"}
    results: dict[str, Checked] = {}
    gate = asyncio.Semaphore(concurrency)

    async def one(task: SweTask) -> None:
        key = _key(task, plan, backend)
        if key in known:
            results[task.instance_id] = known[key]
            return
        async with gate:
            checked = await _check(task, backend, plan, key, tell)
        append_line(log, checked)
        results[task.instance_id] = checked
        on_done(checked, len(results), len(tasks))

    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(one(task))
    return [results[task.instance_id] for task in tasks]


def read_checked(folder: Path) -> list[Checked]:
    """Results in a folder, oldest first; a line cut off by a crash is ignored."""
    return read_lines(folder / "checked.jsonl", Checked)


def _key(task: SweTask, plan: Plan, backend: SandboxBackend) -> str:
    return content_key("validate-1", msgspec.to_builtins(task), msgspec.to_builtins(plan), backend.name)


async def _check(task: SweTask, backend: SandboxBackend, plan: Plan, key: str, tell: Progress) -> Checked:
    started = time.monotonic()
    try:
        built = await prepare_task(task, backend, None, tell)
        done = await validate_task(
            built, backend, gold_runs=plan.gold_runs, noop_runs=plan.noop_runs, shuffle_seed=plan.shuffle_seed
        )
    except DrivetrainError as error:
        reason = f"{type(error).__name__}: {error}"
        done = Validation(
            instance_id=task.instance_id, kind="infrastructure", problems=(reason,), flaky=(), gold=(), noop=()
        )
    return _line(task, done, backend.name, key, time.monotonic() - started)


def _line(task: SweTask, done: Validation, backend: str, key: str, seconds: float) -> Checked:
    runs = sorted(g.timings.get("run", 0.0) for g in done.gold)
    return Checked(
        instance_id=task.instance_id,
        language=task.public.language,
        kind=done.kind,
        reasons=done.problems,
        gold=tuple(g.reason for g in done.gold),
        noop=tuple(g.reason for g in done.noop),
        shuffled=None if done.shuffled is None else done.shuffled.reason,
        fail_to_pass=len(task.private.fail_to_pass),
        pass_to_pass=len(task.private.pass_to_pass),
        flaky=done.flaky,
        order_dependent=done.order_dependent,
        seconds=round(seconds, 1),
        suite_s=round(runs[len(runs) // 2], 2) if runs else 0.0,
        backend=backend,
        key=key,
    )


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
    """The report as a Markdown table with a line of totals."""
    fit = sum(c.kind == "fit" for c in results)
    order = sum(bool(c.order_dependent) for c in results)
    backends = ", ".join(sorted({c.backend for c in results}))
    shuffled = ", one more with the reference fix in another order" if plan.shuffle_seed is not None else ""
    lines = [
        f"{fit} of {len(results)} tasks are fit. Each was graded {plan.gold_runs} times with the reference fix and "
        f"{plan.noop_runs} times without{shuffled} (sandbox: {backends}). A task is fit when the fix resolves it every "
        f"time, no FAIL_TO_PASS test passes without it, and no verdict varies between equal runs; {order} have tests "
        "that depend on their order, which is a remark: graded runs keep the suite's own order.",
        "",
        "| task | language | F2P | P2P | gold | no-op | other order | suite, s | result |",
        "|---|---|---:|---:|---|---|---|---:|---|",
    ]
    for c in results:
        good, bad = c.gold.count("resolved"), c.noop.count("tests_failed")
        remark = f"fit, {len(c.order_dependent)} order-dependent" if c.kind == "fit" and c.order_dependent else c.kind
        why = f": {_cell(c.reasons[0])}" if c.reasons else ""
        lines.append(
            f"| {c.instance_id} | {c.language} | {c.fail_to_pass} | {c.pass_to_pass} | {good}/{len(c.gold)} "
            f"| {bad}/{len(c.noop)} | {c.shuffled or '-'} | {c.suite_s:.1f} | {remark}{why} |"
        )
    return "\n".join(lines) + "\n"


def _cell(text: str, length: int = 120) -> str:
    flat = " ".join(text.replace("|", "\\|").split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"
