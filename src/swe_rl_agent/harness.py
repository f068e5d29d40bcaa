"""Run a harness in a sandbox, unmodified, against one base URL and key.

``CLIHarness`` writes the config files, starts the process, holds the deadline and reads the outcome. It never looks at
the work: grading is another sandbox's business, and no reward passes through here.
"""

from __future__ import annotations

import asyncio
import posixpath
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from drivetrain.cache import Progress
from drivetrain.errors import ConfigError
from drivetrain.sandboxes.protocol import BgJob, Mount, SandboxError, SandboxHandle
from swe_rl_agent.bundle import Bundle
from swe_rl_agent.bundle_glibc import why_not_started
from swe_rl_agent.bundle_own import bundle_of
from swe_rl_agent.last_word import LastWord
from swe_rl_agent.log_readers import READERS
from swe_rl_agent.log_work import WORK_READERS, LoggedWork
from swe_rl_agent.names import lookup
from swe_rl_agent.plan import LaunchPlan, ToolsEndpoint, make_plan
from swe_rl_agent.preset import EXIT_CODE, INFRASTRUCTURE, Preset, StopReason

STDOUT, STDERR = ".drivetrain/stdout.log", ".drivetrain/stderr.log"
MAX_LOG_BYTES = 64 << 20
CUT_LOG_BYTES = 16 << 20
"""What is kept of a longer log, its end: Pi's last event repeats the whole conversation."""
TAIL_BYTES = 16384

_CAPTURE = 'umask 077; mkdir -p "${1%/*}" && out=$1 err=$2 in=$3 && shift 3 && exec "$@" >"$out" 2>"$err" <"$in"'
"""Output goes to files inside: the last words are at the end, and a bounded pipe keeps the head."""


class HarnessOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended.

    ``stop`` is decided by the harness's own last word, which is in ``word`` and ``detail``; ``exit_code`` is for the
    record (128 + signal when killed, None when unknown). ``duration_s`` is wall time of the process. The tails hold at
    most 16 KiB each, ``files`` the native logs by name; the key is replaced in all of them. ``versions`` names the
    exact harness, runtime, bundle hash and preset hash; ``config_sha256`` the filled-in configuration. ``work`` is what
    the harness's own log says it did.
    """

    stop: StopReason
    word: str
    detail: str
    exit_code: int | None
    duration_s: float
    stdout_tail: bytes
    stderr_tail: bytes
    files: Mapping[str, bytes]
    config_sha256: str
    versions: Mapping[str, str]
    work: LoggedWork = LoggedWork(complete=False)

    @property
    def infrastructure(self) -> bool:
        """True when the stop says nothing about the policy (the rollout is ungraded, not failed)."""
        return self.stop in INFRASTRUCTURE


class CLIHarness:
    """One agent harness, ready to be run in any number of sandboxes, concurrently."""

    def __init__(self, preset: Preset, bundle: Bundle | None = None) -> None:
        """Args:
        preset: what to run, with its variant already chosen.
        bundle: a built bundle; without one, :meth:`prepare` builds or finds it.
        """
        self.preset = preset
        self._bundle = bundle
        self._read = lookup("log reader", preset.log_reader, READERS)

    @property
    def name(self) -> str:
        """The agent's name, as in :func:`swe_rl_agent.registry.get_agent`."""
        return self.preset.name

    def prepare(self, cache: Path | None = None, progress: Progress | None = None) -> Bundle:
        """Build the bundle or take it from the cache. Blocking: call it before the event loop, or in a thread.

        Raises:
            MissingDependency, InfrastructureError, ConfigError: see :func:`swe_rl_agent.bundle_own.bundle_of`.
        """
        if self._bundle is None:
            self._bundle = bundle_of(self.preset, cache, progress)
        return self._bundle

    @property
    def bundle(self) -> Bundle:
        """The bundle.

        Raises:
            ConfigError: :meth:`prepare` was not called.
        """
        if self._bundle is None:
            raise ConfigError(f"The bundle of {self.name} is not ready.", fix="Call prepare() first.")
        return self._bundle

    def mounts(self) -> tuple[Mount, ...]:
        """What the sandbox must mount for :meth:`run` (``SandboxSpec.mounts``)."""
        return (self.bundle.mount(),) if self.bundle.mounted else ()

    async def run(
        self,
        sandbox: SandboxHandle,
        *,
        task: str,
        base_url: str,
        api_key: str,
        model: str,
        context_length: int,
        cwd: str,
        deadline_s: float,
        max_output_tokens: int,
        max_turns: int = 0,
        tools: ToolsEndpoint | None = None,
    ) -> HarnessOutcome:
        """Let the harness work on ``task`` until it ends or the deadline.

        The caller owns the sandbox and closes it: a shell command the harness left in the background lives until then.

        Args:
            sandbox: created with :meth:`mounts`; its HOME must be private to this run.
            task: problem statement, given to the harness as the user's request.
            base_url: model endpoint as seen from inside, without trailing slash and without ``/v1``.
            api_key: session key; written to a file of mode 0600 in HOME, never to argv or env.
            model: model name the harness asks for (part of some prompts: keep one per experiment).
            context_length: tokens the model can hold.
            cwd: where the harness starts, inside path.
            deadline_s: wall seconds after which its whole process tree is killed.
            max_output_tokens: tokens of one answer.
            max_turns: the harness's own step limit where it has one; 0 = none (the gateway's budget holds anyway).
            tools: an environment's tools over MCP.

        Raises:
            ConfigError: a value the harness cannot take; nothing was started.
            SandboxError: the sandbox failed (infrastructure); a failing harness is an outcome, not an error.
        """
        plan = make_plan(
            self.preset,
            bundle=self.bundle.target,
            home=sandbox.home,
            cwd=cwd,
            task=task,
            base_url=base_url,
            api_key=api_key,
            model=model,
            context_length=context_length,
            max_output_tokens=max_output_tokens,
            max_turns=max_turns,
            tools=tools,
        )
        for file in plan.files:
            await sandbox.write(file.path, file.data, mode=0o600)
        stdout, stderr = (posixpath.join(sandbox.home, name) for name in (STDOUT, STDERR))
        argv = ["/bin/sh", "-c", _CAPTURE, "sh", stdout, stderr, plan.stdin, *plan.argv]
        started = time.monotonic()
        job = await sandbox.start(argv, cwd=cwd, env=plan.env)
        exit_code, expired = await self._until_end(job, deadline_s, sandbox, stdout)
        duration = time.monotonic() - started
        return await self._outcome(sandbox, plan, job, (stdout, stderr), api_key, exit_code, expired, duration)

    async def _until_end(
        self, job: BgJob, deadline_s: float, sandbox: SandboxHandle, stdout: str
    ) -> tuple[int | None, bool]:
        """Wait; whatever way this is left, the harness no longer runs. Returns exit code and "deadline passed"."""
        try:
            if not self.preset.linger_s:
                return (await job.wait(timeout_s=deadline_s)).exit_code, False
            async with asyncio.timeout(deadline_s):
                return await self._until_last_word(job, sandbox, stdout), False
        except TimeoutError:
            await job.kill(self.preset.timeouts.kill_grace_s)
            return job.poll(), True
        finally:
            if job.poll() is None:  # cancelled, or the sandbox failed: do not leave it running
                await asyncio.shield(job.kill(0.0))

    async def _until_last_word(self, job: BgJob, sandbox: SandboxHandle, stdout: str) -> int | None:
        """Wait for the end of a harness that may not end: once it has said its last word it gets ``linger_s`` more."""
        spoken = False
        while True:
            try:
                return (await job.wait(timeout_s=self.preset.linger_s)).exit_code
            except TimeoutError:
                if spoken:
                    await job.kill(self.preset.timeouts.kill_grace_s)
                    return job.poll()
            end = await sandbox.exec(["tail", "-c", str(TAIL_BYTES), stdout])
            spoken = self._read(end.stdout, b"").word in self.preset.stops

    async def _outcome(
        self,
        sandbox: SandboxHandle,
        plan: LaunchPlan,
        job: BgJob,
        logs: tuple[str, str],
        api_key: str,
        exit_code: int | None,
        expired: bool,
        duration_s: float,
    ) -> HarnessOutcome:
        (stdout, whole), (stderr, _) = [await self._log(sandbox, path, api_key) for path in logs]
        native, native_whole = await self._log(sandbox, plan.native_log, api_key) if plan.native_log else (b"", True)
        work = WORK_READERS[self.preset.log_reader](stdout, native)
        stderr = stderr or scrub(job.tail(TAIL_BYTES), api_key)  # /bin/sh itself failed
        stdout = _without(stdout, self.preset.log_noise)
        by_code = self.preset.log_reader == EXIT_CODE
        last = _exit_word(exit_code, stderr) if by_code else self._read(stdout, native)
        stop = self.preset.stops.get(last.word, "crashed")
        if stop == "model_error" and any(mark in last.detail.lower() for mark in self.preset.overflow_marks):
            stop = "context_overflow"
        if expired:
            stop = "deadline"
        bundle = self.bundle
        detail = last.detail
        if stop == "crashed":
            unfit = await self._why_not_started(sandbox, plan, exit_code, stderr)
            said = f"no last word in the log, exit code {exit_code}: {stderr[-500:].decode(errors='replace').strip()}"
            detail = unfit or detail or said
        return HarnessOutcome(
            stop=stop,
            word=last.word,
            detail=detail,
            exit_code=exit_code,
            duration_s=duration_s,
            stdout_tail=stdout[-TAIL_BYTES:],
            stderr_tail=stderr[-TAIL_BYTES:],
            files={posixpath.basename(plan.native_log): native} if native else {"events.jsonl": stdout},
            config_sha256=plan.config_sha256,
            versions={
                "agent": f"{bundle.name} {bundle.version}",
                "runtime": bundle.runtime,
                "bundle_sha256": bundle.sha256,
                "preset_sha256": self.preset.sha256,
                "variant": self.preset.variant,
            },
            work=msgspec.structs.replace(work, complete=stop == "completed" and whole and native_whole),
        )

    async def _why_not_started(
        self, sandbox: SandboxHandle, plan: LaunchPlan, exit_code: int | None, stderr: bytes
    ) -> str:
        """What this image lacks; "" when it lacks nothing, or the bundle is not in it at all."""
        bundle = self.bundle
        if exit_code == 127:
            there = await sandbox.exec(["/bin/sh", "-c", 'test -e "$1"', "sh", plan.argv[0]])
            if there.exit_code != 0:
                return ""
        return why_not_started(f"{bundle.name} {bundle.version}", bundle.target, bundle.glibc, exit_code, stderr)

    async def _log(self, sandbox: SandboxHandle, path: str, api_key: str) -> tuple[bytes, bool]:
        """A log of the run without the key, and whether that is all of it."""
        data = await _read_end(sandbox, path)
        return scrub(data, api_key), len(data) != CUT_LOG_BYTES


def _exit_word(exit_code: int | None, stderr: bytes) -> LastWord:
    return LastWord(f"exit {exit_code}", stderr[-500:].decode(errors="replace").strip())


def scrub(data: bytes, api_key: str) -> bytes:
    """Replace the session key wherever it appears."""
    return data.replace(api_key.encode(), b"<api_key>")


def _without(log: bytes, noise: tuple[str, ...]) -> bytes:
    """A line-based log without the lines that start with one of ``noise``."""
    if not noise:
        return log
    starts = tuple(prefix.encode() for prefix in noise)
    return b"".join(line for line in log.splitlines(keepends=True) if not line.startswith(starts))


async def _read_end(sandbox: SandboxHandle, path: str) -> bytes:
    """A log of the run, its last part if it is too large; b"" if the harness never wrote it."""
    try:
        return await sandbox.read(path, max_bytes=MAX_LOG_BYTES)
    except FileNotFoundError:
        return b""
    except SandboxError:
        result = await sandbox.exec(["tail", "-c", str(CUT_LOG_BYTES), path], max_output_bytes=CUT_LOG_BYTES)
        return result.stdout
