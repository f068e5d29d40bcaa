"""Is a task fit for training here? The reference fix must always resolve it, doing nothing never."""

from __future__ import annotations

import msgspec

from drivetrain.sandboxes.protocol import SandboxBackend
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.grading.grade import Grade
from swe_rl_env.grading.run import grade, grade_workspace
from swe_rl_env.work.agents import AGENTS
from swe_rl_env.work.workspace import open_workspace


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs say. ``problems`` is empty for a fit task; ``flaky`` are ids whose verdict varied between runs."""

    instance_id: str
    problems: tuple[str, ...]
    flaky: tuple[str, ...]
    gold: tuple[Grade, ...]
    noop: tuple[Grade, ...]

    @property
    def ok(self) -> bool:
        """Whether the task may be used."""
        return not self.problems


async def validate_task(
    built: BuiltTask, backend: SandboxBackend, *, gold_runs: int = 3, noop_runs: int = 2
) -> Validation:
    """Run the oracle as an agent, then grade its patch and the empty one several times, suites included.

    Raises:
        SandboxError: the oracle's workspace failed; a failed grading run is reported as a problem instead.
    """
    workspace = await open_workspace(backend, built)
    try:
        await AGENTS["oracle"](workspace, built)
        patch, first = await grade_workspace(workspace, built, backend)
    finally:
        await workspace.close()
    gold = [first, *[await grade(built, patch, backend) for _ in range(gold_runs - 1)]]
    noop = [await grade(built, b"", backend, run_empty=True) for _ in range(noop_runs)]
    problems = [f"gold run {n}: {g.reason} ({g.detail})" for n, g in enumerate(gold, 1) if g.reward != 1.0]
    if patch != built.gold_patch:
        problems.append("the oracle's patch differs from the reference fix")
    for n, g in enumerate(noop, 1):
        if g.reason != "tests_failed":
            problems.append(f"no-op run {n}: {g.reason} ({g.detail})")
        elif g.f2p_passed:
            problems.append(f"no-op run {n}: {g.f2p_passed} FAIL_TO_PASS tests pass without the fix")
    flaky = _varying(gold) | _varying(noop)
    problems += [f"verdict varies: {i}" for i in sorted(flaky)]
    return Validation(
        instance_id=built.task.instance_id,
        problems=tuple(problems),
        flaky=tuple(sorted(flaky)),
        gold=tuple(gold),
        noop=tuple(noop),
    )


def _varying(grades: list[Grade]) -> set[str]:
    ids = {i for g in grades for i in g.tests}
    return {i for i in ids if len({g.tests.get(i) for g in grades}) > 1}
