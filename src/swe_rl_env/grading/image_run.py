"""Grade a patch of an image's task: a fresh sandbox of the same image, history flattened, the row's own commands.

What the named parser reads in the commands' output decides (for ``report_exact`` the runner's report): every expected
id PASSED, both sides without their times.
Only the files that differ from the image are put in, so whatever the agent did elsewhere is not there.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec

from drivetrain.sandboxes.protocol import ExecResult, SandboxError, SandboxGone, SandboxHandle
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.building.gitio import Entry, Scratch
from swe_rl_env.building.image import flatten
from swe_rl_env.building.tario import pack
from swe_rl_env.grading.canary import Canary
from swe_rl_env.grading.image_canary import plant_in
from swe_rl_env.grading.protect import Protection, unsafe
from swe_rl_env.grading.second_opinion import contradictions
from swe_rl_env.grading.steps import Step, steps_of
from swe_rl_env.grading.suite import LOG_BYTES, SuiteRun, tail
from swe_rl_env.grading.verdicts import Verdict
from swe_rl_env.parsers import LogUnreadable, Status, get_parser, normalise_id, normalise_results
from swe_rl_env.parsers.pytest_ import xfail_as_pass
from swe_rl_env.tasks.adapters.swe_bench import XFAIL_PASSES
from swe_rl_env.tasks.log_parsers import REPORT_EXACT
from swe_rl_env.work.findings import Finding
from swe_rl_env.work.patch import is_compiled


class ImageTree(msgspec.Struct, frozen=True, kw_only=True):
    """What to change in the image: files to put in, paths to remove, and what of the patch was dropped."""

    tar: bytes
    removed: tuple[bytes, ...]
    dropped: tuple[Finding, ...]
    empty: bool
    canary: Canary | None


def image_tree(built: BuiltTask, patch: bytes) -> ImageTree:
    """Base + what counts of the patch + the hidden tests + canary, as a difference to the image (blocking).

    Raises:
        GitError: the patch does not apply to the base.
    """
    base = built.task.base_commit
    with Scratch(built.git_dir) as s:
        before = s.entries(base)
        tree = s.apply(base, patch) if patch.strip() else s.run("rev-parse", f"{base}^{{tree}}").decode().strip()
        after = s.entries(tree)
        rule = Protection(built, {_text(p) for p in before})
        changed = s.changed(base, tree)
        drop = {p: kind for p in changed if (kind := rule.covers(_text(p)) or unsafe(s, p, after.get(p)))}
        restore: dict[bytes, Entry | None] = {p: before.get(p) for p in drop}
        tree = s.with_entries(tree, restore) if restore else tree
        empty = not s.changed(base, tree)
        final = s.apply(tree, built.test_patch)
        entries = s.entries(final)
        differing = [p for p in s.changed(base, final) if not is_compiled(_text(p))]
        files = {p: (m, d) for p, m, d in s.contents_of(final, [p for p in differing if p in entries])}
    tests = [_text(p) for p in files if _text(p) in built.task.private.test_patch_paths]
    canary = plant_in(built, tests)
    added = canary.appended if canary else {}
    tar = pack((p, m, d + added.get(_text(p), b"")) for p, (m, d) in files.items())
    return ImageTree(
        tar=tar,
        removed=tuple(p for p in differing if p not in entries),
        dropped=tuple(Finding(kind=k, path=_text(p), detail="dropped") for p, k in sorted(drop.items())),
        empty=empty,
        canary=canary,
    )


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


async def prepare(box: SandboxHandle, built: BuiltTask, tree: ImageTree) -> None:
    """Make the image's checkout the tree to test.

    Raises:
        BuildError: the history cannot be flattened.
        SandboxError: the sandbox failed.
    """
    repo = built.task.checkout
    await flatten(box, repo)
    if tree.removed:
        names = b"\0".join(tree.removed) + b"\0"
        await box.exec(["/bin/sh", "-c", "xargs -0 rm -f --"], cwd=repo, stdin=names)
    await box.upload(tree.tar, repo)


async def run_in_image(box: SandboxHandle, built: BuiltTask, canary: Canary | None, timeout_s: float) -> SuiteRun:
    """The row's commands in one shell, each whatever the one before returned, and what the parser reads.

    A marker with a nonce closes each command; without the last one the run did not finish. The nonce is in no file,
    argument or environment of the commands: the script removes itself, and its markers go before anything is parsed.
    """
    nonce = secrets.token_hex(16)
    folder = f"{box.home}/.{secrets.token_hex(8)}"
    steps = steps_of(built.task.install, folder)
    lines = ['rm -f -- "$0"']
    for number, step in enumerate(steps, 1):
        lines += [step.script, f'echo "### {nonce} {number} $?"']
    await box.write(f"{folder}/run.sh", "".join(f"{line}\n" for line in lines).encode())
    bash = await box.exec(["/bin/sh", "-c", "command -v bash || echo /bin/sh"], cwd="/")
    shell = bash.stdout.decode().strip() or "/bin/sh"
    env = {k: v.replace("{workdir}", built.task.checkout) for k, v in built.task.install.env.items()}
    done = await box.exec(
        [shell, f"{folder}/run.sh"],
        cwd=built.task.checkout,
        env={"PYTHONDONTWRITEBYTECODE": "1", **env},
        timeout_s=timeout_s,
        max_output_bytes=LOG_BYTES,
    )
    reports = [None if done.timed_out else await _report(box, step) for step in steps]
    run = await asyncio.to_thread(_read, done, built, steps, reports, nonce)
    if built.task.install.log_parser == REPORT_EXACT:
        return run
    ids = (*built.task.private.expected, *(canary.expected if canary else ()))
    return msgspec.structs.replace(run, verdicts=_by_row_ids(ids, run.verdicts))


async def _report(box: SandboxHandle, step: Step) -> bytes | None:
    """What the step wrote; None when nothing is there, empty when it is too large to read or no file."""
    if step.report is None:
        return None
    try:
        return await box.read(step.report, max_bytes=LOG_BYTES)
    except FileNotFoundError:
        return None
    except SandboxGone:
        raise
    except SandboxError:
        return b""


def _read(
    done: ExecResult, built: BuiltTask, steps: Sequence[Step], reports: Sequence[bytes | None], nonce: str
) -> SuiteRun:
    marker = re.compile(rf"^### {nonce} (\d+) (\d+)$\n?", re.MULTILINE)
    out = done.stdout.decode("utf-8", "replace")
    ends = [int(m[1]) for m in marker.finditer(out)]
    out = marker.sub("", out)
    verdicts: dict[str, Status] = {}
    findings: tuple[Finding, ...] = ()
    try:
        if built.task.install.log_parser == REPORT_EXACT:
            verdicts, readable = _exact(steps[0], reports[0], out)
        else:
            # Standard error behind standard output, as the rows' expectations were made.
            text = out + "\n" + done.stderr.decode("utf-8", "replace")
            verdicts, findings = _named(built, text, steps, reports)
            readable = True
    except LogUnreadable:  # the log is the code's own, so this is a verdict about the code
        readable = False
    return SuiteRun(
        verdicts=cast("dict[str, Verdict]", verdicts),
        complete=readable and ends == list(range(1, len(steps) + 1)) and not done.truncated,
        timed_out=done.timed_out,
        exit_code=done.exit_code,
        log_tail=tail(done),
        findings=() if done.timed_out else findings,
    )


def _exact(step: Step, report: bytes | None, out: str) -> tuple[dict[str, Status], bool]:
    """What the report says, and whether there is one."""
    assert step.structured is not None
    text = out if step.structured.in_output else (report or b"").decode("utf-8", "replace")
    found = step.structured.read(text)
    return found, bool(found)


def _named(
    built: BuiltTask, text: str, steps: Sequence[Step], reports: Sequence[bytes | None]
) -> tuple[dict[str, Status], tuple[Finding, ...]]:
    parser, xfail_passes = built.task.install.log_parser, built.task.dataset in XFAIL_PASSES
    verdicts = normalise_results(get_parser(parser)(xfail_as_pass(text) if xfail_passes else text))
    return verdicts, contradictions(parser, verdicts, steps, reports, xfail_passes=xfail_passes)


def _by_row_ids(ids: Iterable[str], verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Verdicts under the row's own spelling of the expected ids."""
    return {i: verdicts[n] for i in ids if (n := normalise_id(i)) in verdicts}
