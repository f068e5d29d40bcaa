"""``Grade``: what a run of the hidden tests says about a patch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from swe_rl_env.building.build import BuiltTask
from swe_rl_env.errors import PatchRejected
from swe_rl_env.grading.canary import CanaryState
from swe_rl_env.grading.verdicts import Verdict
from swe_rl_env.work.findings import Finding

Outcome = Literal["resolved", "unresolved", "error"]
Reason = Literal[
    "resolved",
    # unresolved: the policy's doing, reward 0.0
    "tests_failed",
    "empty_patch",
    "patch_too_large",
    "too_many_files",
    "workspace_too_large",
    "workspace_exhausted",
    "unreadable_tree",
    "tampering",
    "timeout",
    "no_report",
    # error: not the policy's doing, reward None
    "apply_failed",
    "sandbox_start_failed",
    "sandbox_lost",
    "infra_error",
]
ErrorReason = Literal["apply_failed", "sandbox_start_failed", "sandbox_lost", "infra_error"]


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one patch.

    ``reward`` is 1.0, 0.0, or None when nothing could be graded (leave it out of the baseline). ``tests`` covers the
    expected ids only. ``dropped_paths`` are edits that did not count. ``findings`` are traces of cheating; they never
    change ``reward`` (case row G9). ``timings`` are seconds: prepare, start, upload, run, total. ``detail`` and
    ``log_tail`` are for people and never go to the agent.
    """

    instance_id: str
    outcome: Outcome
    reward: float | None
    reason: Reason
    detail: str = ""
    tests: Mapping[str, Verdict] = {}
    f2p_passed: int = 0
    f2p_total: int = 0
    p2p_passed: int = 0
    p2p_total: int = 0
    dropped_paths: tuple[str, ...] = ()
    canary: CanaryState = "not_run"
    exit_code: int | None = None
    patch_bytes: int = 0
    log_tail: str = ""
    timings: Mapping[str, float] = {}
    findings: tuple[Finding, ...] = ()


def unresolved(built: BuiltTask, reason: Reason, detail: str = "", **fields: object) -> Grade:
    """A grade of 0.0 with a reason."""
    return _grade(built, "unresolved", 0.0, reason, detail, fields)


def rejected(built: BuiltTask, error: PatchRejected) -> Grade:
    """The grade of work that could not be turned into a patch."""
    return unresolved(built, error.reason, str(error))


def ungraded(built: BuiltTask, reason: ErrorReason, detail: str, **fields: object) -> Grade:
    """No grade: the machinery failed, reward None."""
    return _grade(built, "error", None, reason, detail, fields)


def _grade(
    built: BuiltTask, outcome: Outcome, reward: float | None, reason: Reason, detail: str, fields: Mapping[str, object]
) -> Grade:
    private = built.task.private
    head: dict[str, object] = {
        "instance_id": built.task.instance_id,
        "outcome": outcome,
        "reward": reward,
        "reason": reason,
        "detail": detail,
        "f2p_total": len(private.fail_to_pass),
        "p2p_total": len(private.pass_to_pass),
    }
    return msgspec.convert({**head, **fields}, Grade, strict=True)


def with_findings(grade: Grade, findings: Iterable[Finding]) -> Grade:
    """The same verdict with more findings."""
    return msgspec.structs.replace(grade, findings=(*grade.findings, *findings))


def judge(
    built: BuiltTask, verdicts: Mapping[str, Verdict], canary: CanaryState, complete: bool, **fields: object
) -> Grade:
    """The rule: every FAIL_TO_PASS and PASS_TO_PASS id PASSED, in a finished run whose canary came back as planted.

    Absent, skipped and expected-to-fail are not PASSED. The exit code is no criterion: a suite may hold old failures.
    """
    private = built.task.private
    tests: dict[str, Verdict] = {i: verdicts.get(i, "MISSING") for i in private.expected}
    f2p = sum(tests[i] == "PASSED" for i in private.fail_to_pass)
    p2p = sum(tests[i] == "PASSED" for i in private.pass_to_pass)
    counts = {"tests": tests, "f2p_passed": f2p, "p2p_passed": p2p, "canary": canary, **fields}
    solved = all(v == "PASSED" for v in tests.values())
    if canary == "altered" or (solved and canary not in ("as_planted", "none")):
        detail = f"The planted tests came back {canary}."
        return with_findings(unresolved(built, "tampering", detail, **counts), (Finding(kind="canary", detail=detail),))
    if not complete:
        return unresolved(built, "no_report", "The run did not finish.", **counts)
    if not solved:
        failing = [i for i, v in tests.items() if v != "PASSED"]
        return unresolved(built, "tests_failed", f"{len(failing)} expected tests did not pass: {failing[0]}", **counts)
    return _grade(built, "resolved", 1.0, "resolved", "", counts)
