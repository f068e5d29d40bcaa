"""Grade a patch: base + what counts of the patch + hidden tests + canary, in a fresh sandbox without a network.

The tree is put together on the host, in git's object store: restoring protected files is then a matter of ids and
cannot be led astray by links, attributes or file names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import msgspec

from drivetrain.errors import InfrastructureError
from drivetrain.sandboxes.protocol import (
    Limits,
    SandboxBackend,
    SandboxError,
    SandboxGone,
    SandboxHandle,
    SandboxSpec,
    SandboxStartError,
)
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.building.gitio import Entry, GitError, Scratch
from swe_rl_env.building.tario import pack
from swe_rl_env.errors import PatchRejected
from swe_rl_env.grading.canary import Canary, plant
from swe_rl_env.grading.grade import ErrorReason, Grade, judge, rejected, ungraded, unresolved, with_findings
from swe_rl_env.grading.image_run import ImageTree, image_tree, prepare, run_in_image
from swe_rl_env.grading.protect import Protection, unsafe
from swe_rl_env.grading.suite import SuiteRun, ensure_runner, run_suite
from swe_rl_env.work.findings import Finding
from swe_rl_env.work.patch import PatchLimits, collect, is_compiled
from swe_rl_env.work.survey import is_full, network_attempts
from swe_rl_env.work.workspace import ROOT, Workspace

# Start, upload and clean-up come on top of the suite's own limit before the sandbox ends itself; seconds.
_TTL_MARGIN_S = 300.0


class GradingTree(msgspec.Struct, frozen=True, kw_only=True):
    """The tree to run: a tar, the dropped paths with the reason for each, and whether anything of the patch is left."""

    tar: bytes
    dropped: tuple[Finding, ...]
    empty: bool


def grading_tree(built: BuiltTask, patch: bytes, canary: Canary) -> GradingTree:
    """Put the tree together (blocking).

    Raises:
        GitError: the patch does not apply to the base commit, so it was not taken by :func:`collect_patch`.
    """
    base = built.task.base_commit
    with Scratch(built.git_dir) as s:
        before = s.entries(base)
        tree = s.apply(base, patch) if patch.strip() else s.run("rev-parse", f"{base}^{{tree}}").decode().strip()
        after = s.entries(tree)
        changed = s.changed(base, tree)
        rule = Protection(built, {_text(p) for p in before})
        drop = {p: kind for p in changed if (kind := rule.covers(_text(p)) or unsafe(s, p, after.get(p)))}
        restore: dict[bytes, Entry | None] = {p: before.get(p) for p in drop}
        tree = s.with_entries(tree, restore) if restore else tree
        empty = not s.changed(base, tree)
        final = s.apply(tree, built.test_patch)
        # Byte code is left behind: a stale or forged .pyc could stand in for the source beside it.
        files = [
            (path, mode, data + canary.appended.get(_text(path), b""))
            for path, mode, data in s.contents(final)
            if not is_compiled(_text(path))
        ]
    files += [(p.encode(), "100644", data) for p, data in canary.files.items()]
    dropped = [Finding(kind=kind, path=_text(p), detail="dropped") for p, kind in sorted(drop.items())]
    return GradingTree(tar=pack(files), dropped=tuple(dropped), empty=empty)


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


async def grade(
    built: BuiltTask,
    patch: bytes,
    backend: SandboxBackend,
    *,
    timeout_s: float | None = None,
    labels: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    image: str | None = None,
    run_empty: bool = False,
    shuffle_seed: int | None = None,
) -> Grade:
    """Grade a patch that was taken against the base commit. Never raises for what the patch does.

    Args:
        timeout_s: limit of the suite in seconds of wall clock; default the row's own.
        labels: of the sandbox, for the reaper.
        limits: of the sandbox; its ``ttl_s`` is replaced by the suite's limit and a margin.
        image: of the sandbox; None = the backend's default.
        run_empty: run the suite even when nothing of the patch is left (to validate a task); otherwise that is
            unresolved without a sandbox.
        shuffle_seed: order of the tests (to validate a task), see :func:`~swe_rl_env.grading.suite.run_suite`.
    """
    timeout_s = built.task.install.timeout_s if timeout_s is None else timeout_s
    clock = _Clock()
    canary: Canary | None = None
    tree: GradingTree | ImageTree
    try:
        if built.task.image is not None:
            tree = await asyncio.to_thread(image_tree, built, patch)
            canary, image = tree.canary, built.task.image
        else:
            canary = plant(built)
            tree = await asyncio.to_thread(grading_tree, built, patch, canary)
    except GitError as e:
        return ungraded(built, "apply_failed", str(e), patch_bytes=len(patch), timings=clock.timings())
    except (InfrastructureError, OSError) as e:
        return ungraded(built, "infra_error", str(e), patch_bytes=len(patch), timings=clock.timings())
    clock.lap("prepare")
    dropped = tuple(f.path for f in tree.dropped)
    known: dict[str, object] = {"dropped_paths": dropped, "patch_bytes": len(patch), "findings": tree.dropped}
    if tree.empty and not run_empty:
        return unresolved(built, "empty_patch", "No change is left to test.", **known, timings=clock.timings())
    spec = SandboxSpec(
        image=image,
        workdir=built.task.checkout if built.task.image is not None else ROOT,
        mounts=built.environment.mounts,
        network="none",
        labels={"role": "grading", **(labels or {})},
        limits=msgspec.structs.replace(limits or Limits(), ttl_s=timeout_s + _TTL_MARGIN_S),
    )
    try:
        run, tried = await _run(backend, spec, built, tree, canary, timeout_s, clock, shuffle_seed)
    except (InfrastructureError, OSError) as e:
        return ungraded(built, _error_reason(e), f"{type(e).__name__}: {e}", **known, timings=clock.timings())
    known |= {"exit_code": run.exit_code, "log_tail": run.log_tail, "timings": clock.timings()}
    known["findings"] = (*tree.dropped, *tried, *run.findings)
    if run.timed_out:
        return unresolved(built, "timeout", f"The tests took longer than {timeout_s:g} s.", **known)
    state = canary.check(run.verdicts) if canary is not None else "none"
    return judge(built, run.verdicts, state, run.complete, **known)


async def _run(
    backend: SandboxBackend,
    spec: SandboxSpec,
    built: BuiltTask,
    tree: GradingTree | ImageTree,
    canary: Canary | None,
    timeout_s: float,
    clock: _Clock,
    shuffle_seed: int | None,
) -> tuple[SuiteRun, list[Finding]]:
    repo = built.task.checkout
    box = await backend.create(spec)
    try:
        clock.lap("start")
        if isinstance(tree, ImageTree):
            await prepare(box, built, tree)
            clock.lap("upload")
            run = await run_in_image(box, built, canary, timeout_s)
        else:
            assert canary is not None
            await ensure_runner(box, built)
            await box.upload(tree.tar, repo)
            clock.lap("upload")
            run = await run_suite(box, built, repo, canary, timeout_s, shuffle_seed=shuffle_seed)
        clock.lap("run")
        tried = await _tried(box)
    except SandboxGone:
        raise
    except SandboxError:
        # No room for one more process is what the suite left behind, anything else the machinery's doing.
        if not await is_full(box, spec.limits.pids):
            raise
        tail = "The tests left so many processes that no other could be started."
        run = SuiteRun(verdicts={}, complete=False, timed_out=False, exit_code=-1, log_tail=tail)
        tried = []
    finally:
        await box.close()
    return run, tried


async def _tried(box: SandboxHandle) -> list[Finding]:
    """Network attempts of the suite; nothing when the sandbox cannot say."""
    try:
        found = await network_attempts(box)
    except SandboxError:
        return []
    return [msgspec.structs.replace(f, detail=f"{f.detail} (during the tests)") for f in found]


def _error_reason(error: Exception) -> ErrorReason:
    if isinstance(error, SandboxStartError):
        return "sandbox_start_failed"
    if isinstance(error, SandboxGone):
        return "sandbox_lost"
    return "infra_error"


async def grade_workspace(
    workspace: Workspace,
    built: BuiltTask,
    backend: SandboxBackend,
    *,
    timeout_s: float | None = None,
    labels: Mapping[str, str] | None = None,
    patch_limits: PatchLimits | None = None,
) -> tuple[bytes, Grade]:
    """Take the patch and grade it; the patch is empty when it was rejected or could not be taken."""
    try:
        taken = await collect(workspace, built, limits=patch_limits)
    except PatchRejected as e:
        return b"", rejected(built, e)
    except (InfrastructureError, OSError) as e:
        return b"", ungraded(built, _error_reason(e), f"{type(e).__name__}: {e}")
    graded = await grade(built, taken.patch, backend, timeout_s=timeout_s, labels=labels, image=workspace.image)
    return taken.patch, with_findings(graded, taken.findings)


class _Clock:
    """Laps in seconds."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._laps[name] = round(now - self._last, 3)
        self._last = now

    def timings(self) -> dict[str, float]:
        return {**self._laps, "total": round(time.monotonic() - self._start, 3)}
