"""Is a task fit for training here? The reference fix must always resolve it, doing nothing never."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from drivetrain.sandboxes.protocol import SandboxBackend, SandboxError
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.grading.grade import Grade
from swe_rl_env.grading.run import grade, grade_workspace
from swe_rl_env.grading.suite import can_shuffle
from swe_rl_env.work.agents import AGENTS
from swe_rl_env.work.workspace import open_workspace

Kind = Literal["fit", "flaky", "unsolvable", "no_signal", "infrastructure"]
"""``flaky``: equal runs differ. ``unsolvable``: the reference fix does not resolve it. ``no_signal``: what must fail
without the fix passes. ``infrastructure``: a run could not be graded, which says nothing about the task."""

_INFRA_TRIES = 3
"""How often one run is started before its infrastructure failure is believed."""


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs say.

    ``problems`` is empty for a fit task; ``flaky`` are ids whose verdict varied between equal runs. ``shuffled`` is the
    run in another order, where the runner can do that, and ``order_dependent`` the ids that came out differently in it:
    a remark, since graded runs always keep the suite's own order. ``seconds`` is wall time of everything.
    """

    instance_id: str
    kind: Kind
    problems: tuple[str, ...]
    flaky: tuple[str, ...]
    gold: tuple[Grade, ...]
    noop: tuple[Grade, ...]
    shuffled: Grade | None = None
    order_dependent: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the task may be used."""
        return self.kind == "fit"


async def validate_task(
    built: BuiltTask,
    backend: SandboxBackend,
    *,
    gold_runs: int = 3,
    noop_runs: int = 3,
    shuffle_seed: int | None = 0,
    image: str | None = None,
) -> Validation:
    """Run the oracle as an agent, then grade its patch and the empty one several times, suites included.

    Infrastructure failures are tried again a few times; one that stays makes the validation ``infrastructure``.

    Args:
        shuffle_seed: order of one more gold run; None for none.
        image: that the sandboxes start from; None = the backend's default. An image's task has its own.
    """
    started = time.monotonic()
    patch, first = await _retried(lambda: _oracle(built, backend, image))
    gold = [first]
    if first.outcome != "error":
        for _ in range(gold_runs - 1):
            gold.append(await _graded(built, patch, backend, image))
    noop: list[Grade] = []
    if not _errors(gold):
        for _ in range(noop_runs):
            noop.append(await _graded(built, b"", backend, image))
    shuffled = None
    if shuffle_seed is not None and can_shuffle(built) and not _errors([*gold, *noop]):
        shuffled = await _graded(built, patch, backend, image, shuffle_seed)
    flaky = _varying(gold) | _varying(noop)
    kind, problems = _judge(gold, noop, flaky, oracle_differs=first.outcome != "error" and patch != built.gold_patch)
    differs = shuffled is not None and shuffled.outcome != "error" and not flaky
    return Validation(
        instance_id=built.task.instance_id,
        kind=kind,
        problems=tuple(problems),
        flaky=tuple(sorted(flaky)),
        gold=tuple(gold),
        noop=tuple(noop),
        shuffled=shuffled,
        order_dependent=tuple(sorted(_varying([gold[0], shuffled]))) if differs and shuffled is not None else (),
        seconds=round(time.monotonic() - started, 2),
    )


async def _oracle(built: BuiltTask, backend: SandboxBackend, image: str | None) -> tuple[bytes, Grade]:
    workspace = await open_workspace(backend, built, image=image)
    try:
        await AGENTS["oracle"](workspace, built)
        return await grade_workspace(workspace, built, backend)
    finally:
        await workspace.close()


async def _graded(
    built: BuiltTask, patch: bytes, backend: SandboxBackend, image: str | None, seed: int | None = None
) -> Grade:
    async def once() -> tuple[bytes, Grade]:
        return patch, await grade(built, patch, backend, image=image, run_empty=True, shuffle_seed=seed)

    return (await _retried(once))[1]


async def _retried(attempt: Callable[[], Awaitable[tuple[bytes, Grade]]]) -> tuple[bytes, Grade]:
    """Try again while the machinery fails. A sandbox that fails as the oracle works in it becomes an error grade."""
    last: tuple[bytes, Grade] | None = None
    for _ in range(_INFRA_TRIES):
        try:
            last = await attempt()
        except SandboxError as e:
            detail = f"{type(e).__name__}: {e}"
            last = b"", Grade(instance_id="", outcome="error", reward=None, reason="infra_error", detail=detail)
        if last[1].outcome != "error":
            break
    assert last is not None
    return last


def _judge(
    gold: Sequence[Grade], noop: Sequence[Grade], flaky: set[str], *, oracle_differs: bool
) -> tuple[Kind, list[str]]:
    """The kind, and every problem in words."""
    errors = [f"{g.reason}: {g.detail}" for g in _errors([*gold, *noop])]
    if errors:
        return "infrastructure", errors
    problems = [f"gold run {n}: {g.reason} ({g.detail})" for n, g in enumerate(gold, 1) if g.reward != 1.0]
    if oracle_differs:
        problems.append("the oracle's patch differs from the reference fix")
    unsolvable = bool(problems)
    for n, g in enumerate(noop, 1):
        if g.reason != "tests_failed":
            problems.append(f"no-op run {n}: {g.reason} ({g.detail})")
        elif g.f2p_passed:
            problems.append(f"no-op run {n}: {g.f2p_passed} FAIL_TO_PASS tests pass without the fix")
    problems += [f"verdict varies: {i}" for i in sorted(flaky)]
    if flaky or len({g.reason for g in gold}) > 1 or len({g.reason for g in noop}) > 1:
        return "flaky", problems or ["equal runs end differently"]
    if unsolvable:
        return "unsolvable", problems
    return ("no_signal" if problems else "fit"), problems


def _errors(grades: Sequence[Grade]) -> list[Grade]:
    return [g for g in grades if g.outcome == "error"]


def _varying(grades: Sequence[Grade]) -> set[str]:
    ids = {i for g in grades for i in g.tests}
    return {i for i in ids if len({g.tests.get(i) for g in grades}) > 1}
