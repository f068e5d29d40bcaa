"""One episode from an open gateway to a graded result. It never raises for what goes wrong inside one rollout."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from drivetrain.errors import ConfigError, DrivetrainError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.sessions import Session
from drivetrain.gateway.turn import STOPPING
from drivetrain.rollout.config import EpisodeSpec, RolloutConfig
from drivetrain.rollout.cross_check import LogFinding, cross_check
from drivetrain.rollout.mask_guard import MaskGuard
from drivetrain.rollout.patience import patience_of
from drivetrain.rollout.result import RolloutResult, RolloutStatus
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.sandboxes.protocol import Limits, Mount, NetworkPolicy, SandboxBackend
from drivetrain.trace.sample import HarnessTrace
from swe_rl_agent.harness import CLIHarness, HarnessOutcome
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.grading.grade import Grade
from swe_rl_env.grading.run import grade_workspace
from swe_rl_env.tasks.catalog import prompt_for
from swe_rl_env.work.agents import AGENTS
from swe_rl_env.work.workspace import Workspace, open_workspace

_log = logging.getLogger(__name__)
_TRUNCATED = ("max_turns", "deadline", "length")
_CLOSING_S = 600.0
Phase = Literal["starting", "agent", "grading"]
"""What a rollout that has begun is at: its sandbox is made ready, its agent works, its work is graded."""


class EpisodeRunner:
    """Runs episodes against shared parts.

    Args:
        config: limits and sampling.
        backend: makes the agent's and the grader's sandboxes.
        tasks: built tasks by id.
        harnesses: prepared harnesses by agent name.
        run: where results are written.
        gateway: serves the harnesses' model calls; not needed for reference agents.
        gateway_socket: the Unix socket on which it serves them.
        selection: what is trained; default: the labels of ``config``, without preset rules.

    Attributes:
        guard: counts the sampled tokens of finished rollouts; whoever runs many of them checks it.
        running: what each rollout that has begun and not ended is at, by its id.
    """

    def __init__(
        self,
        config: RolloutConfig,
        backend: SandboxBackend,
        tasks: Mapping[str, BuiltTask],
        harnesses: Mapping[str, CLIHarness],
        run: RunDir,
        *,
        gateway: Gateway | None = None,
        gateway_socket: Path | None = None,
        selection: Selection | None = None,
    ) -> None:
        self._config = config
        self._backend = backend
        self._tasks = tasks
        self._harnesses = harnesses
        self._run = run
        self._gateway = gateway
        self._socket = gateway_socket
        self._selection = selection or Selection(train_labels=config.train_labels)
        self.guard = MaskGuard(config.max_masked_fraction)
        self.running: dict[str, Phase] = {}

    @property
    def gateway(self) -> Gateway | None:
        """What serves the harnesses' model calls."""
        return self._gateway

    async def run(self, spec: EpisodeSpec) -> RolloutResult:
        """Run, grade and record one rollout."""
        started = time.monotonic()
        result = _Draft(spec)
        self.running[spec.rollout_id] = "starting"
        try:
            if spec.agent in AGENTS:
                await self._reference(spec, result)
            else:
                await self._agent(spec, result)
        except DrivetrainError as error:
            result.fail("infra_error", str(error))
        except Exception as error:  # a defect in one rollout must not take the others down (case row F8)
            _log.exception("rollout %s failed unexpectedly", spec.rollout_id)
            result.fail("infra_error", f"{type(error).__name__}: {error}")
        finally:
            self.running.pop(spec.rollout_id, None)
        result.timings["total"] = time.monotonic() - started
        finished = result.finish(self._selection)
        self._run.append(finished)
        self.guard.add(finished.turns, finished.sampled_tokens)
        return finished

    async def _reference(self, spec: EpisodeSpec, result: _Draft) -> None:
        built = self._tasks[spec.task_id]
        workspace = await self._workspace(built, spec, "none", ())
        try:
            self.running[spec.rollout_id] = "agent"
            await AGENTS[spec.agent](workspace, built)
            await self._grade(workspace, built, spec, result)
        finally:
            await workspace.close()

    async def _agent(self, spec: EpisodeSpec, result: _Draft) -> None:
        if self._gateway is None or self._socket is None:
            raise ConfigError(f"agent {spec.agent!r} needs a model, and no gateway is running.")
        built, harness = self._tasks[spec.task_id], self._harnesses[spec.agent]
        session, key = await self._gateway.open_session(
            self._policy(spec),
            labels={
                "rollout": spec.rollout_id,
                "task": spec.task_id,
                "agent": spec.agent,
                "agent_version": harness.bundle.version,
                "group": str(spec.group),
            },
        )
        result.session = session
        workspace: Workspace | None = None
        try:
            clock = time.monotonic()
            workspace = await self._workspace(built, spec, "gateway", harness.mounts())
            result.timings["workspace"] = time.monotonic() - clock
            self.running[spec.rollout_id] = "agent"
            outcome = await self._harness(harness, workspace, built, key)
            await self._gateway.seal_session(session.id)
            await self._gateway.note_config_hashes(session.id, {"harness_config": outcome.config_sha256})
            self._keep_logs(spec, outcome)
            result.harness(outcome)
            if result.status != "infra_error":
                await self._grade(workspace, built, spec, result)
        finally:
            await self._gateway.seal_session(session.id)
            if workspace is not None:
                await workspace.close()

    async def _workspace(
        self, built: BuiltTask, spec: EpisodeSpec, network: NetworkPolicy, mounts: tuple[Mount, ...]
    ) -> Workspace:
        return await open_workspace(
            self._backend,
            built,
            network=network,
            gateway_socket=self._socket if network == "gateway" else None,
            extra_mounts=mounts,
            image=self._config.image,
            limits=Limits(ttl_s=self._config.deadline_s + _CLOSING_S),
            labels={"role": "agent", "group": str(spec.group)},
        )

    async def _harness(self, harness: CLIHarness, workspace: Workspace, built: BuiltTask, key: str) -> HarnessOutcome:
        assert self._gateway is not None
        return await harness.run(
            workspace.sandbox,
            task=prompt_for(built.task),
            base_url=workspace.sandbox.gateway_url(),
            api_key=key,
            model=self._gateway.model,
            context_length=self._gateway.engine.context_length,
            cwd=workspace.repo,
            deadline_s=self._config.deadline_s,
            max_output_tokens=self._config.max_tokens,
            max_turns=self._config.max_turns,
        )

    async def _grade(self, workspace: Workspace, built: BuiltTask, spec: EpisodeSpec, result: _Draft) -> None:
        self.running[spec.rollout_id] = "grading"
        patch, grade = await grade_workspace(
            workspace, built, self._backend, labels={"role": "grader", "group": str(spec.group)}
        )
        folder = self._run.folder(spec.rollout_id)
        (folder / "work.patch").write_bytes(patch)
        (folder / "tests.log").write_text(grade.log_tail, encoding="utf-8")
        if grade.tests:
            (folder / "verdicts.json").write_bytes(msgspec.json.encode(_verdicts(built, grade)))
        result.grade(grade)

    def _policy(self, spec: EpisodeSpec) -> SessionPolicy:
        config = self._config
        assert self._gateway is not None
        return SessionPolicy(
            model=self._gateway.model,
            temperature=config.temperature,
            max_turns=config.max_turns,
            max_tokens_per_turn=config.max_tokens,
            seed=spec.seed,
            patience=patience_of(self._harnesses[spec.agent].preset),
        )

    def _keep_logs(self, spec: EpisodeSpec, outcome: HarnessOutcome) -> None:
        folder = self._run.folder(spec.rollout_id)
        for name, data in {
            **outcome.files,
            "stdout.log": outcome.stdout_tail,
            "stderr.log": outcome.stderr_tail,
        }.items():
            (folder / name).write_bytes(data)


class _Draft:
    """A result while it is being made."""

    def __init__(self, spec: EpisodeSpec) -> None:
        self.spec = spec
        self.session: Session | None = None
        self.status: RolloutStatus = "ok"
        self.error = ""
        self.timings: dict[str, float] = {}
        self._reward: float | None = None
        self._grade: Grade | None = None
        self._outcome: HarnessOutcome | None = None

    def fail(self, status: RolloutStatus, error: str) -> None:
        """Machinery failed: no reward, never zero (design invariant 8)."""
        self.status, self.error, self._reward = status, error, None

    def harness(self, outcome: HarnessOutcome) -> None:
        """How the harness ended."""
        self._outcome = outcome
        self.timings["harness"] = outcome.duration_s
        stopped = self.session is not None and self.session.events.get("budget_stop", 0) > 0
        if outcome.infrastructure:
            self.fail("infra_error", f"{outcome.stop}: {outcome.detail}")
        elif stopped or outcome.stop in _TRUNCATED:
            self.status = "truncated"

    def grade(self, grade: Grade) -> None:
        """What the tests said."""
        self._grade = grade
        self.timings |= {f"grade_{name}": seconds for name, seconds in grade.timings.items()}
        if grade.outcome == "error":
            self.fail("unscorable", f"{grade.reason}: {grade.detail}")
        else:
            self._reward = grade.reward

    def finish(self, selection: Selection) -> RolloutResult:
        """The result, rows included."""
        graph = self.session.graph if self.session is not None else None
        rows: list[HarnessTrace] = []
        if self.session is not None:
            rows = selection.rows(self.session.graph, self.spec.agent, reward=self._reward, session_id=self.session.id)
        reasons: dict[str, int] = {}
        for turn in graph or ():
            if turn.fork_reason:
                reasons[turn.fork_reason] = reasons.get(turn.fork_reason, 0) + 1
        outcome, grade = self._outcome, self._grade
        log_findings: list[LogFinding] = []
        if graph is not None and outcome is not None:
            labels = selection.labels(graph, self.spec.agent)
            log_findings = cross_check(graph, labels, outcome.work, served_besides=(STOPPING,))
        return RolloutResult(
            rollout_id=self.spec.rollout_id,
            session_id=self.session.id if self.session is not None else "",
            task_id=self.spec.task_id,
            agent=self.spec.agent,
            group=self.spec.group,
            status=self.status,
            reward=self._reward,
            rows=rows,
            turns=len(graph) if graph is not None else 0,
            fork_reasons=reasons,
            sampled_tokens=selection.sampled(graph, self.spec.agent) if graph is not None else {},
            log_findings=log_findings,
            error=self.error,
            timings={name: round(seconds, 3) for name, seconds in self.timings.items()},
            grade={} if grade is None else _grade_summary(grade),
            harness={} if outcome is None else _harness_summary(outcome),
        )


def _verdicts(built: BuiltTask, grade: Grade) -> dict[str, dict[str, str]]:
    """What each expected test did; for people, beside the log."""
    private = built.task.private
    kinds = {"FAIL_TO_PASS": private.fail_to_pass, "PASS_TO_PASS": private.pass_to_pass}
    return {kind: {test: grade.tests.get(test, "MISSING") for test in tests} for kind, tests in kinds.items()}


def _grade_summary(grade: Grade) -> dict[str, object]:
    fields = msgspec.to_builtins(grade)
    return {name: value for name, value in fields.items() if name not in ("log_tail", "timings", "tests")}


def _harness_summary(outcome: HarnessOutcome) -> dict[str, object]:
    return {
        "stop": outcome.stop,
        "word": outcome.word,
        "detail": outcome.detail,
        "exit_code": outcome.exit_code,
        "config_sha256": outcome.config_sha256,
        "versions": dict(outcome.versions),
    }
