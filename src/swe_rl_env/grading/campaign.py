"""Validate many tasks: several at a time, each recorded as it finishes, so that a stopped campaign can go on."""

from __future__ import annotations

import asyncio
import time
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


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How each task is validated; ``shuffle_seed`` None = no run in another order."""

    gold_runs: int = 3
    noop_runs: int = 3
    shuffle_seed: int | None = 0


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report.

    ``gold`` and ``noop`` are outcome reasons, one per run; ``shuffled`` that of the run in another order. ``seconds``
    are wall time of all runs, ``suite_s`` of one (the median of the gold runs). ``backend`` and ``image`` (empty: the
    backend's default) say what it ran in. ``key`` changes with task, plan, backend and image: then all is run anew.
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
    image: str = ""
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
    image: str | None = None,
    concurrency: int = 1,
    on_done: Callable[[Checked, int, int], None] = lambda _c, _n, _m: None,
    tell: Progress = silent,
) -> list[Checked]:
    """Validate what ``folder`` does not know yet; results in the order of ``tasks``.

    Args:
        folder: ``checked.jsonl`` in it grows by one line per finished task.
        image: that the sandboxes of tasks made from archives start from; None = the backend's default.
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
        key = _key(task, plan, backend.name, image or "")
        if key in known:
            results[task.instance_id] = known[key]
            return
        async with gate:
            checked = await _check(task, backend, plan, image, key, tell)
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


def known_elsewhere(folder: Path, tasks: Sequence[SweTask], plan: Plan, backend: str) -> list[Checked]:
    """What the folder knows of the same tasks and plan in other kinds of sandbox than ``backend``, newest of each."""
    by_id = {task.instance_id: task for task in tasks}
    found: dict[tuple[str, str], Checked] = {}
    for c in read_checked(folder):
        task = by_id.get(c.instance_id)
        if task is not None and c.backend != backend and c.key == _key(task, plan, c.backend, c.image):
            found[c.backend, c.instance_id] = c
    return list(found.values())


def _key(task: SweTask, plan: Plan, backend: str, image: str) -> str:
    """Of what the runs depend on: a new statement or note about a task leaves its results standing."""
    private = task.private
    what = (task.base_commit, task.image, task.workdir, task.source_dir, task.python_version)
    patches = (private.archives, private.patch, private.test_patch)
    measured = msgspec.to_builtins((*what, *patches, private.expected, len(private.fail_to_pass), task.install))
    return content_key("validate-2", task.instance_id, measured, msgspec.to_builtins(plan), backend, image)


async def _check(
    task: SweTask, backend: SandboxBackend, plan: Plan, image: str | None, key: str, tell: Progress
) -> Checked:
    started = time.monotonic()
    try:
        built = await prepare_task(task, backend, None, tell)
        done = await validate_task(
            built,
            backend,
            gold_runs=plan.gold_runs,
            noop_runs=plan.noop_runs,
            shuffle_seed=plan.shuffle_seed,
            image=image,
        )
    except DrivetrainError as error:
        reason = f"{type(error).__name__}: {error}"
        done = Validation(
            instance_id=task.instance_id, kind="infrastructure", problems=(reason,), flaky=(), gold=(), noop=()
        )
    return _line(task, done, backend.name, image or "", key, time.monotonic() - started)


def _line(task: SweTask, done: Validation, backend: str, image: str, key: str, seconds: float) -> Checked:
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
        image=image,
        key=key,
    )
