"""Sessions of real agents for a trainer that calls OpenEnv's loop-owning interface (TRL's ``HarnessRolloutWorker``)."""

from __future__ import annotations

import asyncio
import logging
import threading
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import msgspec
from openenv.core.harness import ResourceSessionFactory
from openenv.core.harness.capture.upstream import training_sampling

from drivetrain.cache import Progress
from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Engine
from drivetrain.errors import ConfigError, InfrastructureError
from drivetrain.rollout.config import EpisodeSpec, RolloutConfig
from drivetrain.rollout.episode import EpisodeRunner
from drivetrain.rollout.gate import LocalGate, kept_version, serve_gate, set_version
from drivetrain.rollout.loop_thread import LoopThread
from drivetrain.rollout.mask_guard import MaskedFractionExceeded
from drivetrain.rollout.openenv.session import AgentSession, EpisodeProgress, Recorded, why_ungraded
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.route import route_of
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.stack import open_stack
from drivetrain.trace.export.openenv import ExportFinding, training_trace
from drivetrain.trace.labels import relabelled
from swe_rl_agent.registry import agent_name
from swe_rl_env.tasks.model import SweTask

_log = logging.getLogger(__name__)
_IN_A_ROW = 3
_LONGEST_WAIT_S = 30.0
_sleep = asyncio.sleep


class AgentSessions:
    """The ``harness_session_factory`` of a TRL worker: picklable, because TRL spawns a child and calls it there, once.

    Calling it starts the gateway, the engine client and the sandboxes that all sessions of that process share; what is
    wrong with the set-up is raised there, so that TRL's ``start`` fails with it.

    Example::

        HarnessRolloutWorker(harness_session_factory=AgentSessions(config, run="runs/a", gate=folder), ...)

    Args:
        config: agents, tasks, engine, limits. ``temperature`` is overruled by the trainer's; ``n`` and ``concurrency``
            are TRL's ``num_generations`` and ``max_inflight_tasks`` (set ``concurrency`` to the latter: the embedded
            engine's batch follows it).
        run: folder for journal, results and rows; default: a new one under ``runs/``.
        gate: folder of the trainer's :class:`~drivetrain.rollout.gate.SocketGate`, when weights move while agents run.
        default_agent: agent of prompts that name none.
        tasks: see :func:`drivetrain.rollout.stack.open_stack`.
    """

    def __init__(
        self,
        config: RolloutConfig,
        *,
        run: str | Path | None = None,
        gate: str | Path | None = None,
        default_agent: str = "",
        tasks: Sequence[SweTask] | None = None,
    ) -> None:
        self._config = config
        self._run = Path(run) if run is not None else None
        self._gate = Path(gate) if gate is not None else None
        self._default_agent = default_agent
        self._tasks = tasks

    def __call__(self, *, sampling: Mapping[str, Any] | None = None) -> AgentSessionFactory:
        """Start everything.

        Args:
            sampling: what the trainer computes log-probs under: ``temperature``, and everything else neutral.

        Raises:
            ConfigError, MissingDependency, EngineError, SandboxError: see :func:`drivetrain.rollout.stack.open_stack`;
                also sampling that takes tokens off the trained distribution.
        """
        return AgentSessionFactory(
            self._config,
            run=self._run,
            gate=self._gate,
            default_agent=self._default_agent,
            tasks=self._tasks,
            sampling=sampling,
        )


class AgentSessionFactory(ResourceSessionFactory):  # type: ignore[misc]  # openenv ships no types
    """Makes sessions on parts that are started by the constructor and closed by :meth:`close`, at the latest when the
    process exits.

    Args:
        config, run, gate, default_agent, tasks: see :class:`AgentSessions`.
        sampling: see :meth:`AgentSessions.__call__`.
        engine: an engine to use instead of the one that ``config`` names, started and closed with this; ``model`` is
            then its model.
        tell: receives progress lines.

    Attributes:
        gate: the gateway's weight-sync gate, for a trainer in this process.
        run: where episodes are recorded.
    """

    def __init__(
        self,
        config: RolloutConfig,
        *,
        run: str | Path | None = None,
        gate: str | Path | None = None,
        default_agent: str = "",
        tasks: Sequence[SweTask] | None = None,
        sampling: Mapping[str, Any] | None = None,
        engine: Engine | None = None,
        model: ModelDir | None = None,
        tell: Progress = _log.info,
    ) -> None:
        config.require_trainable()
        self._config = _with_sampling(config, sampling)
        self._agents = {agent_name(agent) for agent in config.agents}
        self._default_agent = default_agent or (config.agents[0] if len(config.agents) == 1 else "")
        self.run = RunDir.create(Path(run) if run is not None else None)
        self._counting = threading.Lock()
        self._counts: dict[tuple[int | None, str, str], int] = {}
        self._failures = 0
        self._parts = AsyncExitStack()
        self._thread = LoopThread("drivetrain-sessions")
        self._finalizer = Finalize(None, _close, (self._thread, self._parts), exitpriority=10)
        try:
            self._runner = self._thread.wait(self._start(engine, model, tasks, Path(gate) if gate else None, tell))
        except BaseException:
            self.close()
            raise
        assert self._runner.gateway is not None
        self._gateway = self._runner.gateway
        self.gate = LocalGate(self._gateway, self._thread.loop)

    def __call__(self, *, sampling: Mapping[str, Any] | None = None) -> AgentSessionFactory:
        """This, as the ``harness_session_factory`` of a worker in this process.

        Raises:
            ConfigError: the trainer's sampling is not what the episodes are sampled with.
        """
        wanted = _with_sampling(self._config, sampling).temperature
        if wanted != self._config.temperature:
            raise ConfigError(
                f"the trainer's temperature is {wanted:g}, the episodes' is {self._config.temperature:g}.",
                fix="Give both the same.",
            )
        return self

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> AgentSession:
        """Start one episode; returns at once.

        Args:
            task: the trainer's prompt (:func:`drivetrain.rollout.route.route_of`).
            seed: the group's number: sessions of one group get different sampling seeds derived from it.
            episode_id: the trainer's name for it.

        Raises:
            ConfigError: the prompt names no task, or one that this was not started with.
            InfrastructureError: closed.
        """
        task_id, agent = route_of(task, self._default_agent)
        if task_id not in self._config.tasks or agent not in self._agents:
            raise ConfigError(
                f"a prompt asks for task {task_id!r} with agent {agent!r}, which this run was not set up for.",
                fix=f"Tasks: {', '.join(self._config.tasks)}. Agents: {', '.join(sorted(self._agents))}.",
            )
        if self._thread.closed:
            raise InfrastructureError("the session factory is closed.")
        spec = self._spec(task_id, agent, seed, episode_id)
        progress = EpisodeProgress()
        episode = self._thread.submit(self._episode(spec, progress))
        about = {"rollout_id": spec.rollout_id, "episode_id": episode_id or "", "run": str(self.run.path)}
        return AgentSession(task, episode, progress, lambda: self._forget(progress.sessions), about)

    def close(self) -> None:
        """Close sandboxes, gateway and engine; idempotent."""
        self._finalizer()

    async def _start(
        self,
        engine: Engine | None,
        model: ModelDir | None,
        tasks: Sequence[SweTask] | None,
        gate: Path | None,
        tell: Progress,
    ) -> EpisodeRunner:
        if engine is not None:
            self._parts.push_async_callback(engine.aclose)
            await engine.start()
        stack = open_stack(self._config, self.run, tell, engine=engine, model=model, tasks=tasks)
        runner = await self._parts.enter_async_context(stack)
        assert runner.gateway is not None
        if gate is not None:
            version = kept_version(gate)
            if version is not None:
                await set_version(runner.gateway.engine, version)
            served = await serve_gate(runner.gateway, gate)
            self._parts.push_async_callback(served.cleanup)
        return runner

    def _spec(self, task_id: str, agent: str, seed: int | None, episode_id: str | None) -> EpisodeSpec:
        with self._counting:
            key = (seed, task_id, agent)
            copy = self._counts[key] = self._counts.get(key, -1) + 1
        base = 0 if self._config.seed is None else self._config.seed
        group = episode_id if seed is None else seed
        return EpisodeSpec(
            rollout_id=f"g{group}.{task_id}.{agent}.{copy}",
            task_id=task_id,
            agent=agent,
            group=copy,
            seed=zlib.crc32(f"{base}:{group}:{task_id}:{agent}:{copy}".encode()),
        )

    async def _episode(self, spec: EpisodeSpec, progress: EpisodeProgress) -> Recorded:
        progress.started.set()
        try:
            if self._failures >= _IN_A_ROW:  # TRL starts the next rollout at once, however fast this one fails
                await _sleep(min(2.0 ** (self._failures - _IN_A_ROW), _LONGEST_WAIT_S))
            result = await self._runner.run(spec)
            if result.session_id:
                progress.sessions.append(result.session_id)
            self._failures = self._failures + 1 if result.status == "infra_error" else 0
            return await asyncio.to_thread(
                self._recorded, result
            )  # the trace repeats every prompt: long ones take time
        finally:
            progress.ended.set()

    def _recorded(self, result: RolloutResult) -> Recorded:
        """Never raises for what one rollout left: what cannot be exported is not trained, and named."""
        ungraded = why_ungraded(result)
        trace: Any = None
        findings: list[ExportFinding] = []
        if not ungraded:
            try:
                graph = self._gateway.sessions.get(result.session_id).graph
                trace, findings = training_trace(relabelled(graph), result.rows, only_trainable=True)
            except Exception as error:
                _log.exception("rollout %s could not be exported", result.rollout_id)
                ungraded = f"its trace could not be exported ({type(error).__name__}: {error})"
        for finding in findings:
            _log.warning("rollout %s: %s", result.rollout_id, finding)
        if ungraded:
            _log.warning("rollout %s trains nothing: %s", result.rollout_id, ungraded)
        try:
            self._runner.guard.check()
        except MaskedFractionExceeded as error:
            return Recorded(result, _empty(), ungraded, stop=error)
        return Recorded(result, _empty() if ungraded else trace, ungraded)

    def _forget(self, kept: list[str]) -> None:
        """Recorded sessions are in the journal; in memory they would pile up over a long training."""

        async def forget() -> None:
            for session_id in kept:
                self._gateway.sessions.forget(session_id)

        if kept and not self._thread.closed:
            self._thread.wait(forget())


def _with_sampling(config: RolloutConfig, sampling: Mapping[str, Any] | None) -> RolloutConfig:
    """The trainer's temperature, after checking that nothing else is asked for."""
    if sampling is None:
        return config
    try:
        checked = training_sampling(dict(sampling))
    except ValueError as error:
        raise ConfigError(
            f"the trainer's sampling cannot be trained on: {error}.", fix="Leave top_p, top_k, min_p and penalties."
        ) from error
    temperature = float(checked.get("temperature", config.temperature))
    return msgspec.structs.replace(config, temperature=temperature)


def _empty() -> Any:
    from openenv.core.harness.training import TrainingTrace

    return TrainingTrace(turns=[])


def _close(thread: LoopThread, parts: AsyncExitStack) -> None:
    """Also run at exit, in spawned children as well."""
    if thread.closed:
        return
    try:
        thread.wait(parts.aclose())
    finally:
        thread.close()
