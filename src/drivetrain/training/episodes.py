"""Live episodes of real agents for ``train_live``: engine, gateway, sandboxes around the model being trained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from drivetrain.cache import Progress
from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import ModelDir
from drivetrain.errors import ConfigError
from drivetrain.gateway.fence_threads import ThreadFence
from drivetrain.rollout.config import REFERENCE_AGENTS, EpisodeSpec, RolloutConfig
from drivetrain.rollout.episode import EpisodeRunner
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.stack import open_stack
from drivetrain.training.live import LiveTask
from drivetrain.training.sources import EpisodeRequest, LiveSource
from drivetrain.training.weights import fenced_sync


class LiveRollouts:
    """A context that gives ``train_live`` its source, its tasks and its weight sync.

    The engine serves the trainer's own module: nothing is copied, and ``sync`` only closes the gateway's fence, bumps
    the policy version, drops cached keys and values and opens it again. Every episode is recorded in ``run`` like those
    of ``drivetrain rollout``.

    Args:
        config: agents, tasks and limits; ``n`` is the GRPO group size.
        model: the model directory that the trainer loads.
        run: where journal, results and rows go.
        tell: receives progress lines.

    Raises:
        ConfigError: an agent without a model is named.
    """

    def __init__(self, config: RolloutConfig, model: ModelDir, run: RunDir, tell: Progress) -> None:
        idle = [agent for agent in config.agents if agent in REFERENCE_AGENTS]
        if idle:
            raise ConfigError(f"agent {idle[0]!r} uses no model; there is nothing to train.", fix="Name a real agent.")
        self._config = config
        self._model = model
        self._run = run
        self._tell = tell
        self._parts = AsyncExitStack()
        self._source: LiveSource | None = None
        self._engine: EmbeddedEngine | None = None
        self._runner: EpisodeRunner | None = None
        self._publish: Callable[[int], None] | None = None
        self._step = 0
        self._count = 0

    def __enter__(self) -> LiveRollouts:
        return self

    def __exit__(self, *_: object) -> None:
        if self._source is not None:
            self._source.wait(self._parts.aclose())
            self._source.close()

    @property
    def tasks(self) -> list[LiveTask]:
        """The training set: every agent on every task."""
        return [LiveTask(task_id=task, agent=agent) for task in self._config.tasks for agent in self._config.agents]

    def make_source(self, model: Any, _tokenizer: Any) -> LiveSource:
        """Start engine, gateway and runner around the trainer's module.

        Raises:
            ConfigError, MissingDependency: see :func:`drivetrain.rollout.stack.open_stack`.
        """
        source = LiveSource(self._episode, concurrency=self._config.concurrency)
        self._source = source
        self._engine = EmbeddedEngine(
            self._model, model=model, threads=self._config.threads, max_batch=self._config.concurrency
        )
        source.wait(self._start(self._engine))
        return source

    def sync(self, step: int) -> None:
        """The weights changed: episodes from now on are sampled by policy version ``step``.

        Raises:
            MaskedFractionExceeded: too many sampled tokens were lost to faults so far.
        """
        self._step = step
        if self._runner is not None:
            self._runner.guard.check()
        if self._publish is not None and self._engine is not None and step != self._engine.policy_version:
            self._publish(step)

    async def _start(self, engine: EmbeddedEngine) -> None:
        self._parts.push_async_callback(engine.aclose)
        await engine.start()
        self._runner = await self._parts.enter_async_context(
            open_stack(self._config, self._run, self._tell, engine=engine, model=self._model)
        )
        assert self._runner.gateway is not None
        fence = ThreadFence(self._runner.gateway.fence, asyncio.get_running_loop())
        # Episodes have ended when weights move. A call that outlived its episode is held: it must not stop the run.
        self._publish = fenced_sync(fence, lambda step: engine.update_weights(None, step), on_deadline="hold")

    async def _episode(self, request: EpisodeRequest) -> RolloutResult:
        assert self._runner is not None
        self._count += 1
        name = f"step{self._step}.{request.task_id}.{request.agent}.{request.group}"
        spec = EpisodeSpec(
            rollout_id=name if request.training else f"{name}.eval{self._count}",
            task_id=request.task_id,
            agent=request.agent,
            group=request.group,
            seed=request.seed,
        )
        result = await self._runner.run(spec)
        self._tell(f"{result.rollout_id}: {result.status}, reward {result.reward}, {result.turns} turns")
        return result
