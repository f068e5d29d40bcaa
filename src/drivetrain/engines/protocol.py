"""What the gateway asks of an inference engine: token ids in, token ids and log-probs out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from drivetrain.errors import InfrastructureError
from drivetrain.messages import Message, ToolSpec

EngineFinish = Literal["stop", "length", "abort"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Effective sampling of one call.

    The distribution is the full softmax of ``logits / temperature`` (top_p = 1, top_k off, min_p off, no penalties),
    so that the reported log-probs are those the trainer recomputes (design section 4, "Generate").
    ``temperature`` must be > 0. ``seed`` makes the call reproducible; ``None`` draws a fresh one.
    Generation ends after sampling one of ``stop_token_ids`` (the stop token *is* part of the completion).
    ``extra`` holds knobs that a session honours on top (``top_p``, ``stop`` ...), only those that the engine declares
    (:func:`honoured_knobs`); a turn that was sampled with one is not trained.
    """

    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    extra: dict[str, Any] = {}


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine sampled.

    ``token_ids`` and ``logprobs`` have equal length; ``logprobs[i]`` is the natural log-probability of
    ``token_ids[i]`` under the full post-temperature distribution. ``finish_reason`` is ``stop`` when a stop token was
    sampled (it is the last id), ``length`` when ``max_tokens`` or the context ran out, ``abort`` when cancelled.
    Policy versions are those of the weights at the first and after the last step (design invariant 7). Where they
    differ, ``version_spans`` holds runs of (number of tokens, version) that cover ``token_ids``, if the engine knows.
    ``first_token_at`` is when the first token was sampled, seconds since the epoch; 0.0 = not known.
    ``reported_tokens`` is the engine's own count of sampled tokens (its usage), None where it keeps none.
    ``prompt_ids`` is the prompt that an engine which makes its own sampled behind; None = the one it was given. A turn
    whose prompt is another than the one sent is not trained.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: EngineFinish
    policy_version_start: int
    policy_version_end: int
    version_spans: Sequence[tuple[int, int]] = ()
    first_token_at: float = 0.0
    reported_tokens: int | None = None
    prompt_ids: Sequence[int] | None = None


class EngineError(InfrastructureError):
    """The engine could not answer.

    ``status`` is the HTTP status of an engine behind HTTP, ``kind`` its own name for the error and ``retry_after_s``
    the wait it asked for; None and "" when there are none. ``retryable`` says whether the same call may succeed later.
    """

    def __init__(
        self,
        what: str,
        *,
        fix: str = "",
        retryable: bool = True,
        status: int | None = None,
        kind: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(what, fix=fix)
        self.retryable = retryable
        self.status = status
        self.kind = kind
        self.retry_after_s = retry_after_s


class EngineMalformed(EngineError):
    """The engine answered with something that is no completion: no JSON, a page, no choice, no token ids."""


class ContextOverflow(EngineError):
    """The prompt leaves no room for a single new token."""

    def __init__(self, prompt_tokens: int, context_length: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens; the model's context is {context_length} tokens.",
            retryable=False,
        )
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length


@runtime_checkable
class Engine(Protocol):
    """A trainer-controlled sampler. Cancelling the awaiting task cancels the generation."""

    @property
    def name(self) -> str:
        """Identity for provenance, e.g. ``embedded:SmolLM2-135M-Instruct``."""

    @property
    def context_length(self) -> int:
        """Largest prompt + completion, in tokens."""

    @property
    def policy_version(self) -> int:
        """Version of the weights that would serve a call dispatched now."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session_id: str = ""
    ) -> Completion:
        """Sample a completion of ``prompt_ids``.

        ``session_id`` is a cache hint only: calls of one session usually share a token prefix.

        Raises:
            ContextOverflow: the prompt leaves no room.
            EngineError: anything else went wrong.
        """

    async def start(self) -> None:
        """Load what is needed; idempotent."""

    async def aclose(self) -> None:
        """Cancel what runs and free everything; idempotent."""


def honoured_knobs(engine: Engine) -> frozenset[str]:
    """Knobs that an engine takes in :attr:`Sampling.extra`: its attribute ``honoured_knobs``, none when it has none."""
    return frozenset(getattr(engine, "honoured_knobs", ()))


def max_temperature(engine: Engine) -> float:
    """Hottest temperature an engine samples at: its attribute ``max_temperature``, infinite when it has none."""
    return float(getattr(engine, "max_temperature", math.inf))


@runtime_checkable
class GeneratesPacked(Protocol):
    """An engine that takes a prompt as an array: a list of tens of thousands of ids costs milliseconds per call."""

    async def generate_packed(
        self, prompt_ids: npt.NDArray[np.int32], sampling: Sampling, *, request_id: str, session_id: str = ""
    ) -> Completion:
        """As :meth:`Engine.generate`, of a one-dimensional array."""


@runtime_checkable
class GeneratesFromMessages(Protocol):
    """An engine that renders prompts itself; its completions carry :attr:`Completion.prompt_ids`."""

    async def generate_from_messages(
        self,
        prompt_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        *,
        request_id: str,
        session_id: str = "",
    ) -> Completion:
        """Sample a completion of ``messages``, which ``prompt_ids`` are the trace's rendering of.

        ``messages`` is the whole conversation, assistant messages of ours as they were served; ``tools`` as the model
        first saw them.

        Raises:
            ContextOverflow: the prompt leaves no room.
            EngineError: anything else went wrong.
        """


@runtime_checkable
class Pausable(Protocol):
    """An engine that can hold its running calls still."""

    async def pause(self) -> None:
        """Return when no step runs and none will start before :meth:`resume`; calls keep what they have sampled."""

    async def resume(self) -> None:
        """Go on with the calls that were held, and with those that came meanwhile."""


@runtime_checkable
class PrefixCached(Protocol):
    """An engine that keeps keys and values from call to call."""

    async def reset_prefix_cache(self) -> None:
        """Forget them all; calls that are running compute theirs again.

        Raises:
            EngineError: it could not.
        """


@runtime_checkable
class VersionSettable(Protocol):
    """An engine that does not count weight updates by itself."""

    async def set_policy_version(self, version: int) -> None:
        """The weights now served are policy ``version``; call while no step runs."""
