"""The embedded engine: transformers in this process, exact log-probs, the trainer's own weights if it wants.

Importing this module needs no torch; :meth:`EmbeddedEngine.start` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Completion, ContextOverflow, EngineError, Sampling
from drivetrain.engines.quiet import no_progress_bars
from drivetrain.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from drivetrain.engines.slots import Metrics, SlotLoop


class EmbeddedEngine:
    """Implements :class:`drivetrain.engines.protocol.Engine` on one thread of this process.

    Args:
        model_dir: where the weights are; with ``model`` only its name and context length are used.
        dtype: of the loaded weights. ``bfloat16`` halves memory; its log-probs are off by 3e-2 on average.
        max_batch: requests that run at the same time; more wait in order of arrival.
        threads: torch threads of the engine thread; default: half of the usable cores. On a machine where something
            else runs as well, fewer is faster: one busy core slows two-thread steps several times.
        cache_bytes: bound of the keys and values kept for later calls (SmolLM2-135M in fp32: 46 kB per token).
        model: a module to serve by reference, usually the trainer's. Change its weights only inside :meth:`paused`
            and tell with :meth:`update_weights`.
        prefill_chunk: prompt tokens per step while nobody decodes.
        busy_prefill_chunk: prompt tokens per step while somebody does.
        policy_version: of the initial weights.
    """

    def __init__(
        self,
        model_dir: ModelDir,
        *,
        dtype: Literal["float32", "bfloat16"] = "float32",
        max_batch: int = 8,
        threads: int | None = None,
        cache_bytes: int = 1 << 30,
        model: Any = None,
        prefill_chunk: int = 512,
        busy_prefill_chunk: int = 64,
        policy_version: int = 0,
    ) -> None:
        if max_batch < 1 or prefill_chunk < 1 or busy_prefill_chunk < 1:
            raise ConfigError("max_batch, prefill_chunk and busy_prefill_chunk must be at least 1.")
        self._dir = model_dir
        self._dtype = dtype
        self._model = model
        self._shared = model is not None
        self._version = policy_version
        self._options = {
            "max_batch": max_batch,
            "cache_bytes": cache_bytes,
            "prefill_chunk": prefill_chunk,
            "busy_prefill_chunk": busy_prefill_chunk,
            "threads": threads or max(1, len(os.sched_getaffinity(0)) // 2),
        }
        self._loop: SlotLoop | None = None
        self._starting: asyncio.Lock | None = None

    @property
    def name(self) -> str:
        """``embedded:<model>``."""
        return f"embedded:{self._dir.name}"

    @property
    def context_length(self) -> int:
        """Largest prompt + completion, in tokens."""
        return self._dir.context_length

    @property
    def policy_version(self) -> int:
        """Version of the weights that would serve a call dispatched now."""
        return self._version

    @property
    def model(self) -> Any:
        """The torch module being served; touch it only inside :meth:`paused`."""
        return self._model

    async def start(self) -> None:
        """Load the model unless one was given, and start the engine thread; idempotent.

        Raises:
            MissingDependency: torch or transformers is not installed.
            ConfigError: the weights cannot be loaded, or the architecture cannot be served.
        """
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self._loop is None:
                self._loop = await asyncio.to_thread(self._load)

    async def aclose(self) -> None:
        """Fail what runs, end the thread and let go of the model; idempotent."""
        loop, self._loop = self._loop, None
        if loop is not None:
            await asyncio.to_thread(loop.close)
        if not self._shared:
            self._model = None

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        request_id: str,  # noqa: ARG002
        session_id: str = "",  # noqa: ARG002
    ) -> Completion:
        """Sample a completion. See :class:`drivetrain.engines.protocol.Engine`.

        ``request_id`` and ``session_id`` are not needed: cached keys are found by token prefix, whoever computed them.

        Raises:
            ContextOverflow: the prompt leaves no room.
            EngineError: invalid arguments, a failed step, or the engine is closed.
        """
        from drivetrain.engines.slots import Slot

        loop = self._running()
        self._check(prompt_ids, sampling)
        slot = Slot(prompt_ids, sampling, self.context_length - len(prompt_ids))
        loop.submit(slot)
        # wrap_future hands a cancellation of this task on to the slot, which the loop frees before its next step.
        return await asyncio.wrap_future(slot.answer)

    def metrics(self) -> Metrics:
        """Counters since start, and gauges now."""
        return self._running().snapshot()

    @contextlib.contextmanager
    def paused(self) -> Iterator[Any]:
        """Hold the engine still between two steps and lend out the module; from any thread, may nest.

        Requests keep waiting and go on afterwards. The step that runs when this is entered ends first.
        """
        loop = self._running()
        loop.pause()
        try:
            yield self._model
        finally:
            loop.resume()

    async def pause(self) -> None:
        """:meth:`paused` for async callers; undo with :meth:`resume`."""
        await asyncio.to_thread(self._running().pause)

    async def resume(self) -> None:
        """Undo one :meth:`pause`."""
        self._running().resume()

    def update_weights(self, state_dict: Mapping[str, Any] | None, version: int) -> None:
        """Serve other weights from the next step on, as policy ``version``; blocks until the current step ends.

        ``None`` says that the served module was changed in place (shared weights). Cached keys and values are
        dropped; running requests compute theirs again, and their completions carry both versions.

        Raises:
            EngineError: ``state_dict`` does not fit the model; nothing was changed then.
        """
        with self.paused():
            if state_dict is not None:
                _load_weights(self._model, state_dict)
            self._running().forget()
            self._version = version

    async def reset_prefix_cache(self) -> None:
        """Drop all cached keys and values; running requests compute theirs again."""
        await asyncio.to_thread(self._forget)

    async def set_policy_version(self, version: int) -> None:
        """The served module was changed in place and is policy ``version`` now; see :meth:`update_weights`."""
        await asyncio.to_thread(self.update_weights, None, version)

    def _forget(self) -> None:
        with self.paused():
            self._running().forget()

    def share(self, model: Any, version: int | None = None) -> None:
        """Serve ``model`` by reference from the next step on, e.g. once the trainer has built it."""
        if self._loop is None:
            self._model, self._shared = model, True
        else:
            with self.paused():
                self._loop.model = self._model = model
                self._shared = True
                self._loop.forget()
        self._version = self._version if version is None else version

    def _running(self) -> SlotLoop:
        if self._loop is None:
            raise EngineError("the embedded engine is not running.", fix="Await start() first.", retryable=False)
        return self._loop

    def _load(self) -> SlotLoop:
        try:
            import torch
            from transformers import AutoModelForCausalLM

            from drivetrain.engines.slots import SlotLoop
        except ImportError as error:
            raise MissingDependency(
                f"the embedded engine needs torch and transformers ({error}).",
                fix="Install them with: pip install 'drivetrain[engine]'",
            ) from error
        if self._model is None:
            try:
                with no_progress_bars():
                    model: Any = AutoModelForCausalLM.from_pretrained(
                        self._dir.path, dtype=getattr(torch, self._dtype), local_files_only=True
                    )
                self._model = model.eval()
            except (OSError, ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"the weights in {self._dir.path} cannot be loaded: {error}",
                    fix="Point at a directory written by save_pretrained() of a causal language model.",
                ) from error
        return SlotLoop(self._model, version=lambda: self._version, **self._options)

    def _check(self, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        if len(prompt_ids) >= self.context_length:
            raise ContextOverflow(len(prompt_ids), self.context_length)
        if len(prompt_ids) == 0 or min(prompt_ids) < 0 or max(prompt_ids) >= self._dir.vocab_size:
            raise EngineError(
                f"a prompt needs at least one id and ids in [0, {self._dir.vocab_size}).", retryable=False
            )
        if sampling.max_tokens < 1 or not 0 < sampling.temperature < float("inf"):
            raise EngineError("max_tokens must be at least 1 and temperature above 0.", retryable=False)


def _load_weights(model: Any, state_dict: Mapping[str, Any]) -> None:
    """Copy ``state_dict`` into ``model``, after checking that all of it fits: half an update is worse than none."""
    import torch

    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    unknown = sorted(set(state_dict) - set(own))
    # Tied parameters have several names; one of them is enough.
    given = {id(own[key]) for key in state_dict if key in own}
    missing = sorted(key for key, value in model.state_dict(keep_vars=True).items() if id(value) not in given)
    wrong = sorted(key for key in state_dict if key in own and state_dict[key].shape != own[key].shape)
    for problem, keys in (("unknown", unknown), ("missing", missing), ("of another shape", wrong)):
        if keys:
            raise EngineError(
                f"the new weights do not fit {type(model).__name__}: {len(keys)} {problem}, first {keys[0]}.",
                fix="Pass the state_dict() of the same architecture.",
                retryable=False,
            )
    with torch.no_grad():
        for key, value in state_dict.items():
            own[key].copy_(value)
