"""Live episodes of real agents for ``train_live``: engine, gateway, sandboxes around the model being trained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from drivetrain.cache import Progress
from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.fingerprint import ChecksWeights
from drivetrain.engines.fingerprint_torch import fingerprint_of
from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Engine
from drivetrain.errors import ConfigError
from drivetrain.gateway.fence_threads import ThreadFence
from drivetrain.rollout.config import EpisodeSpec, RolloutConfig
from drivetrain.rollout.episode import EpisodeRunner
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.stack import open_stack
from drivetrain.training.fenced import WeightTransfer
from drivetrain.training.file_transfer import named_weights
from drivetrain.training.live import LiveTask
from drivetrain.training.sources import EpisodeRequest, LiveSource
from drivetrain.training.weights import fenced_sync
from swe_rl_agent.registry import agent_name
from swe_rl_env.tasks.model import SweTask

FIXED_TEXT = (
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n    return ordered[middle]\n\n"
    "The river rises in the hills, turns twice around the old town and reaches the sea after forty miles."
)
"""What a server and the trainer are asked about after every update."""


class LiveRollouts:
    """A context that gives ``train_live`` its source, its tasks and its weight sync.

    The embedded engine serves the trainer's own module: nothing is copied, and ``sync`` only closes the gateway's
    fence, bumps the policy version, drops cached keys and values and opens it again. A server gets the weights through
    ``transfer`` meanwhile, and must then say of a fixed text what the trainer's module says, at the start as well.
    Every episode is recorded in ``run`` like those of ``drivetrain rollout``.

    Args:
        config: agents, tasks and limits; ``n`` is the GRPO group size.
        model: the model directory that the trainer loads.
        run: where journal, results and rows go.
        tell: receives progress lines.
        tasks: see :func:`drivetrain.rollout.stack.open_stack`.
        transfer: sends weights to the server that ``config.engine`` names; it is set up here.
        tolerance: how far the server's log-probs may be off, nats, mean: 1e-3 holds float32, 0.1 bfloat16.

    Raises:
        ConfigError: an agent without a model is named, or a server to which nothing would send weights.
    """

    def __init__(
        self,
        config: RolloutConfig,
        model: ModelDir,
        run: RunDir,
        tell: Progress,
        tasks: Sequence[SweTask] | None = None,
        *,
        transfer: WeightTransfer | None = None,
        tolerance: float = 1e-3,
    ) -> None:
        if config.engine.is_remote != (transfer is not None):
            raise ConfigError(
                f"engine {config.engine.kind} takes weights {'only through a' if transfer is None else 'without any'} "
                "transfer.",
                fix="Give transfer=FileTransfer(urls, folder) with a server, and none with the embedded engine.",
            )
        config.require_trainable()
        self._config = config
        self._model = model
        self._run = run
        self._tell = tell
        self._known = tasks
        self._transfer = transfer
        self._tolerance = tolerance
        self._parts = AsyncExitStack()
        self._source: LiveSource | None = None
        self._engine: Engine | None = None
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
        agents = [agent_name(agent) for agent in self._config.agents]  # a preset's path is no name
        return [LiveTask(task_id=task, agent=agent) for task in self._config.tasks for agent in agents]

    @property
    def source(self) -> LiveSource:
        """What :meth:`make_source` made.

        Raises:
            ConfigError: nothing yet.
        """
        if self._source is None:
            raise ConfigError("no trainer has asked for episodes yet.", fix="Call make_source first.")
        return self._source

    def make_source(self, model: Any, tokenizer: Any) -> LiveSource:
        """Start engine, gateway and runner around the trainer's module.

        Raises:
            ConfigError, MissingDependency: see :func:`drivetrain.rollout.stack.open_stack`.
            WeightsMismatch: the server serves other weights than the trainer has loaded.
        """
        source = LiveSource(self._episode, concurrency=self._config.concurrency)
        self._source = source
        source.wait(self._serve_module(model) if self._transfer is None else self._join_server(model, tokenizer))
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

    async def _serve_module(self, model: Any) -> None:
        engine = EmbeddedEngine(
            self._model, model=model, threads=self._config.threads, max_batch=self._config.concurrency
        )
        self._parts.push_async_callback(engine.aclose)
        await engine.start()
        fence = await self._open(engine)
        # Episodes have ended when weights move. A call that outlived its episode is held: it must not stop the run.
        self._publish = fenced_sync(fence, lambda step: engine.update_weights(None, step), on_deadline="hold")

    async def _join_server(self, model: Any, tokenizer: Any) -> None:
        transfer = self._transfer
        assert transfer is not None
        await asyncio.to_thread(transfer.init_weight_transfer)
        self._parts.push_async_callback(asyncio.to_thread, transfer.destroy)
        fence = await self._open(None)
        ids = tokenizer(FIXED_TEXT)["input_ids"]
        engine = self._engine
        if isinstance(engine, ChecksWeights):
            await engine.check_weights(fingerprint_of(model, ids, tolerance=self._tolerance))

        def publish(step: int) -> None:
            with fence.paused("drain", on_deadline="hold") as update:
                transfer.send_weights(named_weights(model))
                update.version = step
                update.fingerprint = fingerprint_of(model, ids, tolerance=self._tolerance)

        self._publish = publish

    async def _open(self, engine: Engine | None) -> ThreadFence:
        self._runner = await self._parts.enter_async_context(
            open_stack(self._config, self._run, self._tell, engine=engine, model=self._model, tasks=self._known)
        )
        gateway = self._runner.gateway
        assert gateway is not None
        self._engine = gateway.engine
        return ThreadFence(gateway.fence, asyncio.get_running_loop())

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
        if result.session_id and self._runner.gateway is not None:
            self._runner.gateway.sessions.forget(result.session_id)  # it is in the journal
        self._tell(f"{result.rollout_id}: {result.status}, reward {result.reward}, {result.turns} turns")
        return result
