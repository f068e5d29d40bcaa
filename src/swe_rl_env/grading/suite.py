"""Run a task's suite in an open sandbox and read what it did; one way per log parser.

Both ways keep to the row's own command, with three additions: settings and results of the runner come from outside
the checkout, the result carries a nonce drawn per run, and modules that cannot be collected do not stop the others.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, cast

import msgspec

from drivetrain.sandboxes.protocol import ExecResult, SandboxError, SandboxGone, SandboxHandle, SandboxStartError
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.grading.canary import Canary
from swe_rl_env.grading.tap import mark_command, parse_tap
from swe_rl_env.grading.verdicts import Verdict
from swe_rl_env.work.findings import Finding

LOG_BYTES = 16 << 20
_TAIL_CHARS = 4000
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class SuiteRun(msgspec.Struct, frozen=True, kw_only=True):
    """What came out. ``complete`` = the run reported its own end; ``timed_out`` = the deadline ended it."""

    verdicts: Mapping[str, Verdict]
    complete: bool
    timed_out: bool
    exit_code: int
    log_tail: str
    findings: tuple[Finding, ...] = ()


_HAS_PYTEST = "import importlib.util as u, sys; sys.exit(u.find_spec('pytest') is None)"


async def ensure_runner(box: SandboxHandle, built: BuiltTask) -> None:
    """Prove that the task's runner works in this sandbox before anybody's work is in it: afterwards a run without a
    report is the work's doing, and worth 0.

    Raises:
        SandboxStartError: it does not, for instance because an image lacks a library.
    """
    environment = built.environment
    argv = ["node", "-e", "0"] if environment.python is None else [environment.python, "-I", "-c", _HAS_PYTEST]
    done = await box.exec(argv, cwd="/", env={"PATH": environment.path}, timeout_s=60)
    if done.exit_code != 0 or done.timed_out:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-300:]
        raise SandboxStartError(
            f"The test runner of {built.task.instance_id} does not work in this sandbox: {said or done.exit_code}.",
            fix="Tasks made from archives use this machine's interpreters: choose the local sandbox, or an image with "
            "their libraries.",
        )


def can_shuffle(built: BuiltTask) -> bool:
    """Whether the task's runner can run its tests in another order."""
    return built.task.install.log_parser == "pytest_nodeid_exact"


async def run_suite(
    box: SandboxHandle,
    built: BuiltTask,
    repo: str,
    canary: Canary,
    timeout_s: float,
    *,
    shuffle_seed: int | None = None,
) -> SuiteRun:
    """Run to the end or the deadline (seconds of wall clock); everything the suite started is killed then.

    ``shuffle_seed`` draws another order of the files and of the tests in each (only where :func:`can_shuffle`).
    """
    folder = f"{box.workdir}/.{secrets.token_hex(8)}"
    if built.task.install.log_parser == "tap_blocks_per_file":
        return await _run_tap(box, built, repo, folder, timeout_s)
    return await _run_pytest(box, built, repo, folder, canary, timeout_s, shuffle_seed)


async def _run_pytest(
    box: SandboxHandle,
    built: BuiltTask,
    repo: str,
    folder: str,
    canary: Canary,
    timeout_s: float,
    shuffle_seed: int | None,
) -> SuiteRun:
    arguments = built.task.install.pytest_arguments()
    if _names_files(built, arguments):
        arguments += sorted(canary.files)  # otherwise the canary would not be collected
    env = built.environment.variables(built.task, repo)
    nonce, report = secrets.token_hex(16), f"{folder}/{secrets.token_hex(8)}.json"
    config = {
        "args": ["--continue-on-collection-errors", *arguments],
        "pythonpath": [p for p in env.get("PYTHONPATH", "").split(":") if p],
        "report": report,
        "nonce": nonce,
        "shuffle_seed": shuffle_seed,
    }
    runner = (files("swe_rl_env") / "inside" / "pytest_runner.py").read_bytes()
    await box.write(f"{folder}/run.py", runner)
    await box.write(f"{folder}/run.json", json.dumps(config).encode())
    done = await box.exec(
        [str(built.environment.python), "-P", "-s", f"{folder}/run.py", f"{folder}/run.json"],
        cwd=repo,
        env={**env, "PYTHONPATH": ""},
        timeout_s=timeout_s,
        max_output_bytes=LOG_BYTES,
    )
    data = b""
    if not done.timed_out:
        try:
            data = await box.read(report)
        except FileNotFoundError:
            # The run never got to its end. If that is because the sandbox died, this raises SandboxGone instead; no
            # room for one more process is what the run left behind.
            try:
                await box.exec(["/bin/true"], cwd="/")
            except SandboxGone:
                raise
            except SandboxError:
                pass
    verdicts = _read_report(data, nonce)
    return SuiteRun(
        verdicts=verdicts or {},
        complete=verdicts is not None,
        timed_out=done.timed_out,
        exit_code=done.exit_code,
        log_tail=tail(done),
    )


def _names_files(built: BuiltTask, arguments: list[str]) -> bool:
    """Whether the command lists test files or folders instead of collecting everything."""
    tests = {i.split("::", 1)[0] for i in built.task.private.expected}
    named = [a.split("::", 1)[0].rstrip("/") for a in arguments]
    return any(t == a or t.startswith(f"{a}/") for a in named for t in tests)


def _read_report(data: bytes, nonce: str) -> dict[str, Verdict] | None:
    """Verdicts of a report that carries the nonce, else None."""
    try:
        report: Any = json.loads(data)
        if report["nonce"] != nonce:
            return None
        return {str(i): cast(Verdict, v) for i, v in report["verdicts"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


async def _run_tap(box: SandboxHandle, built: BuiltTask, repo: str, folder: str, timeout_s: float) -> SuiteRun:
    nonce = secrets.token_hex(16)
    # The script removes itself before it starts anything: the nonce is then in no file, argv or environment.
    lines = ['rm -f -- "$0"', *(mark_command(c, nonce) for c in built.task.install.test_cmd)]
    script = "".join(f"{line}\n" for line in lines)
    await box.write(f"{folder}/run.sh", script.encode())
    env = built.environment.variables(built.task, repo)
    done = await box.exec(
        ["/bin/sh", f"{folder}/run.sh"], cwd=repo, env=env, timeout_s=timeout_s, max_output_bytes=LOG_BYTES
    )
    text = done.stdout.decode("utf-8", "replace")
    verdicts, complete = parse_tap(text, nonce)
    return SuiteRun(
        verdicts=verdicts,
        complete=complete and bool(verdicts) and not done.truncated,
        timed_out=done.timed_out,
        exit_code=done.exit_code,
        log_tail=tail(done),
    )


def tail(done: ExecResult) -> str:
    """The end of the output, for people."""
    text = done.stdout.decode("utf-8", "replace")
    if done.stderr:
        text += "\n--- stderr\n" + done.stderr[-_TAIL_CHARS:].decode("utf-8", "replace")
    return _ANSI.sub("", text)[-_TAIL_CHARS:]
