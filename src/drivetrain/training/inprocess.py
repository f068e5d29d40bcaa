"""AsyncGRPO's rollout worker on a thread of this process: no vLLM package, no pickling, closures allowed.

Grouping, advantages, staleness stamps and metrics are TRL's: this only runs TRL's own harness loop, which TRL 1.16
offers in a spawned child alone. The loop is a private class, so the TRL version is checked.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from drivetrain.errors import ConfigError, DrivetrainError
from drivetrain.training.fenced import Versioned
from drivetrain.training.tokenizer import loop_owning_tokenizer
from drivetrain.training.versions import known_warnings, require_trl

_STOP_S = 120.0


class WorkerFailed(DrivetrainError):
    """The rollout loop ended with an error; ``__cause__`` is that error."""


class _Value:
    """As ``multiprocessing.Value``, for threads."""

    def __init__(self, value: float) -> None:
        self.value = value
        self._lock = threading.Lock()

    def get_lock(self) -> threading.Lock:
        return self._lock


class InProcessWorker:
    """Implements TRL's ``RolloutWorkerProtocol``: ``AsyncGRPOTrainer(rollout_worker=InProcessWorker(...))``.

    Args:
        harness_session_factory: called once, by :meth:`start`, with ``sampling=``; closed by :meth:`stop` if it has a
            ``close``.
        weights: told of every version, see :class:`~drivetrain.training.fenced.FencedWeights`.
        queue_maxsize: of ``rollout_buffer``; 0 = no limit.
        loop_kwargs: TRL's ``HarnessRolloutWorker`` arguments: ``model_name``, ``dataset``, ``reward_funcs``,
            ``processing_class``, ``eos_token_ids``, ``num_generations``, ``max_inflight_tasks``, ``temperature`` (the
            trainer's, which nothing checks), ``rollout_reward_fn`` ...

    Attributes:
        rollout_buffer: scored samples for the trainer.
        metrics_queue: what TRL's loop measured.

    Raises:
        ConfigError, MissingDependency: another TRL minor version, or none.
    """

    def __init__(
        self,
        *,
        harness_session_factory: Callable[..., Any],
        weights: Versioned | None = None,
        queue_maxsize: int = 0,
        **loop_kwargs: Any,
    ) -> None:
        require_trl()
        if "processing_class" not in loop_kwargs:
            raise ConfigError("a worker needs the tokenizer.", fix="Give processing_class=.")
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(queue_maxsize)
        self.metrics_queue: queue.Queue[Any] = queue.Queue(4096)
        self._make_factory = harness_session_factory
        self._weights = weights
        self._loop_kwargs = {**loop_kwargs, "queue_maxsize": queue_maxsize}
        self._version = _Value(0)
        self._heartbeat = _Value(0.0)
        self._failed = threading.Event()
        self._error: BaseException | None = None
        self._factory: Any = None
        self._loop: Any = None
        self._thread: threading.Thread | None = None
        if weights is not None:
            weights.attach()

    @property
    def model_version(self) -> int:
        """The version that TRL told last."""
        return int(self._version.value)

    def start(self) -> None:
        """Start the shared parts and the loop; what is wrong with the set-up is raised here."""
        if self._thread is not None:
            return
        from accelerate.state import PartialState

        with known_warnings():
            from trl.experimental.async_grpo.openenv_harness import _HarnessRolloutLoop

        PartialState()  # accelerate's loggers, which the loop uses, refuse to log before it
        self._heartbeat.value = time.time()
        kwargs = {**self._loop_kwargs, "processing_class": loop_owning_tokenizer(self._loop_kwargs["processing_class"])}
        self._loop = _HarnessRolloutLoop(
            harness_session_factory=self._open,
            rollout_buffer=self.rollout_buffer,
            model_version_value=self._version,
            heartbeat_value=self._heartbeat,
            failed_event=threading.Event(),
            exception_info_queue=queue.Queue(1),
            metrics_queue=self.metrics_queue,
            **kwargs,
        )
        self._thread = threading.Thread(target=self._run, name="drivetrain-rollout-loop", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the episodes that run, the loop and the shared parts; idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            asyncio_loop: asyncio.AbstractEventLoop = self._loop._loop
            if thread.is_alive() and not asyncio_loop.is_closed():
                asyncio_loop.call_soon_threadsafe(self._loop._stop_event.set)
            thread.join(_STOP_S)
        factory, self._factory = self._factory, None
        if factory is not None and hasattr(factory, "close"):
            factory.close()

    def update_model_version(self, model_version: int) -> None:
        """TRL's weights are this version now; the gate opens."""
        self._version.value = int(model_version)
        if self._weights is not None:
            self._weights.publish(int(model_version))

    def check_health(self, stale_after_s: float) -> None:
        """Raise when the loop has ended, or has not come round for ``stale_after_s`` seconds.

        Raises:
            WorkerFailed: why.
        """
        if self._failed.is_set():
            raise WorkerFailed(f"the rollout loop has failed: {self._error}.") from self._error
        age = time.time() - self._heartbeat.value
        if age > stale_after_s:
            raise WorkerFailed(f"the rollout loop has not come round for {age:.0f} s.")

    def _open(self, **options: Any) -> Any:
        self._factory = self._make_factory(**options)
        return self._factory

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # the trainer learns of it in check_health
            self._error = error
            self._failed.set()
