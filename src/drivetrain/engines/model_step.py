"""A trainer that owns sampling as the engine behind the gateway.

Two forms, by what the trainer can do:

* :class:`TokenStepEngine` around a *token step*, ``(prompt_ids, sampling) -> TokenSample``: token-in / token-out, the
  whole promise (design invariant 1), and ``drivetrain probe``'s checks apply. Use it where the trainer can.
* :class:`ModelStepEngine` around OpenEnv's ``ModelStep`` (RFC 005), ``(messages, tools, sampling) -> ModelStepResult``:
  the trainer renders the messages itself. It is handed the conversation as it was served; whether its prompt is the one
  the trace holds is compared id by id in every turn, and a turn that was sampled behind another prompt is kept,
  counted and not trained (note ``prompt_mismatch``). The ids are the truth: the step's ``response`` is not read, the
  reply is parsed from ``completion_ids`` as for every engine.

Steps that block run on threads of the engine's own, one at a time unless told otherwise. A running step cannot be
interrupted: when its call is cancelled, the call ends at once, the step runs to its end, keeps its place meanwhile,
and its result is dropped. Steps that wait for their place are dropped when their call is cancelled. A token step that
is a coroutine function runs on the event loop, and its cancellation is the step's own affair. ``pause`` waits for
every step that runs, those of cancelled calls included, so weights may be changed behind it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import msgspec

from drivetrain.engines.protocol import (
    Completion,
    ContextOverflow,
    EngineError,
    EngineFinish,
    EngineMalformed,
    Sampling,
)
from drivetrain.errors import ConfigError, MissingDependency
from drivetrain.messages import Message, ToolSpec

_TRANSIENT = (OSError, TimeoutError)


class TokenSample(msgspec.Struct, frozen=True):
    """What a token step returns: sampled ids, stop token included, and the log-prob of each under the full
    distribution after temperature."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]


class TokenStep(Protocol):
    """Samples behind exact prompt ids. May be a coroutine function."""

    def __call__(self, prompt_ids: list[int], sampling: dict[str, Any], /) -> TokenSample | Awaitable[TokenSample]: ...


class ModelStep(Protocol):
    """``openenv.core.harness.ModelStep``, spelled without importing it."""

    def __call__(self, messages: list[dict[str, Any]], tools: list[Any], sampling: dict[str, Any], /) -> Any: ...


class _Steps:
    """Places for steps, weights' version and the gate; what both engines share."""

    def __init__(self, *, context_length: int, at_once: int, name: str, policy_version: int) -> None:
        if at_once < 1 or context_length < 1:
            raise ConfigError("at_once and context_length must be at least 1.")
        self._context = context_length
        self._name = name
        self._version = policy_version
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(at_once, thread_name_prefix=name)
        self._places = asyncio.Semaphore(at_once)
        self._at_once = at_once
        self._going = asyncio.Event()
        self._going.set()

    @property
    def name(self) -> str:
        """As given; default ``model_step`` or ``token_step``."""
        return self._name

    @property
    def context_length(self) -> int:
        """Largest prompt + completion, in tokens."""
        return self._context

    @property
    def policy_version(self) -> int:
        """Version of the weights that would serve a call dispatched now."""
        return self._version

    async def start(self) -> None:
        """Nothing to load."""

    async def aclose(self) -> None:
        """Start no further step. One that runs ends in its own time, and its result is dropped."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    async def set_policy_version(self, version: int) -> None:
        """The trainer's weights are policy ``version`` now."""
        self._version = version

    async def pause(self) -> None:
        """Return when no step runs; none starts before :meth:`resume`. A step that runs is not cut: it ends first."""
        self._going.clear()
        taken = 0
        try:
            for _ in range(self._at_once):
                await self._places.acquire()
                taken += 1
        except BaseException:
            self._going.set()  # a pause that did not come about holds nobody
            raise
        finally:
            for _ in range(taken):
                self._places.release()

    async def resume(self) -> None:
        """Let steps start again."""
        self._going.set()

    async def _place(self) -> None:
        """Wait for the gate and a place."""
        while True:
            await self._going.wait()
            await self._places.acquire()
            if self._going.is_set():
                return
            self._places.release()

    async def _blocking(self, step: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
        """Run a step on a thread; its place is free when the step has ended, whoever still waits for it."""
        await self._place()
        version = self._version
        try:
            if self._pool is None:
                raise EngineError(f"{self._name} is closed.", retryable=False)
            running = asyncio.get_running_loop().run_in_executor(self._pool, step, *arguments)
        except BaseException:
            self._places.release()
            raise
        running.add_done_callback(self._ended)
        return await asyncio.shield(running), version

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._places.release()
        if not running.cancelled():
            running.exception()  # nobody may be left to read it

    async def _awaited(self, step: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
        await self._place()
        version = self._version
        try:
            if self._pool is None:
                raise EngineError(f"{self._name} is closed.", retryable=False)
            return await step(*arguments), version
        finally:
            self._places.release()

    async def _run(self, prompt_ids: Sequence[int], step: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
        """The step's result and the version of the weights it began with.

        Raises:
            ContextOverflow: the prompt leaves no room.
            EngineError: the step failed.
        """
        if len(prompt_ids) >= self._context:
            raise ContextOverflow(len(prompt_ids), self._context)
        run = self._awaited if _is_async(step) else self._blocking
        try:
            return await run(step, *arguments)
        except EngineError:
            raise
        except Exception as error:
            kind = type(error).__name__
            transient = isinstance(error, _TRANSIENT)
            raise EngineError(
                f"{self._name} raised {kind}: {error}", kind=kind, status=None if transient else 500
            ) from error

    def _completion(
        self,
        ids: Any,
        logprobs: Any,
        sampling: Sampling,
        version: int,
        prompt_ids: Sequence[int] | None,
    ) -> Completion:
        sampled = _list(ids, "completion ids")
        if not sampled:
            raise EngineMalformed(
                f"{self._name} returned no completion ids.",
                fix="The step must return what it sampled as token ids, with their log-probs; text is not enough.",
                retryable=False,
            )
        return Completion(
            token_ids=sampled,
            logprobs=_list(logprobs, "log-probs"),
            finish_reason=_finish(sampled, sampling),
            policy_version_start=version,
            policy_version_end=self._version,
            prompt_ids=prompt_ids,
        )


class TokenStepEngine(_Steps):
    """Implements :class:`drivetrain.engines.protocol.Engine` with a trainer's token step.

    Args:
        step: see :class:`TokenStep`. ``sampling`` holds ``temperature, max_tokens, seed, top_p, top_k, min_p,
            stop_token_ids``, the filters at values that are none.
        context_length: largest prompt + completion of the trainer's sampler, in tokens.
        at_once: steps that may run at the same time.
        name: for provenance.
        policy_version: of the initial weights; see :meth:`set_policy_version`.
    """

    def __init__(
        self,
        step: TokenStep,
        *,
        context_length: int,
        at_once: int = 1,
        name: str = "token_step",
        policy_version: int = 0,
    ) -> None:
        super().__init__(context_length=context_length, at_once=at_once, name=name, policy_version=policy_version)
        self._step = step

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        request_id: str,  # noqa: ARG002
        session_id: str = "",  # noqa: ARG002
    ) -> Completion:
        """Let the trainer sample. See :class:`drivetrain.engines.protocol.Engine`.

        Raises:
            ContextOverflow: the prompt leaves no room.
            EngineError: the step raised, or returned no :class:`TokenSample`.
        """
        sample, version = await self._run(prompt_ids, self._step, list(prompt_ids), step_sampling(sampling))
        if not isinstance(sample, TokenSample):
            raise EngineMalformed(
                f"{self._name} returned a {type(sample).__name__}.", fix="Return a TokenSample.", retryable=False
            )
        return self._completion(sample.token_ids, sample.logprobs, sampling, version, None)


class ModelStepEngine(_Steps):
    """Implements :class:`drivetrain.engines.protocol.Engine` and
    :class:`~drivetrain.engines.protocol.GeneratesFromMessages` with an RFC 005 ``ModelStep``.

    The step gets messages as OpenEnv's own harness makes them: OpenAI's form, a call's ``arguments`` as JSON text;
    reasoning, where there is any, as ``reasoning_content``. Tools are OpenEnv ``Tool`` objects.

    Args:
        step: the trainer's. Its result must hold ``completion_ids`` (stop token included), their ``logprobs`` and
            the ``prompt_ids`` it sampled behind; without the last no turn can be trained.
        context_length: largest prompt + completion of the trainer's sampler, in tokens.
        at_once: steps that may run at the same time.
        decode_arguments: give ``arguments`` as objects instead, for steps that hand messages to a chat template as
            they are (most templates render JSON text as a quoted string).
        name: for provenance.
        policy_version: of the initial weights; see :meth:`set_policy_version`.
    """

    def __init__(
        self,
        step: ModelStep,
        *,
        context_length: int,
        at_once: int = 1,
        decode_arguments: bool = False,
        name: str = "model_step",
        policy_version: int = 0,
    ) -> None:
        super().__init__(context_length=context_length, at_once=at_once, name=name, policy_version=policy_version)
        self._step = step
        self._decode = decode_arguments

    async def generate(
        self,
        prompt_ids: Sequence[int],  # noqa: ARG002
        sampling: Sampling,  # noqa: ARG002
        *,
        request_id: str,  # noqa: ARG002
        session_id: str = "",  # noqa: ARG002
    ) -> Completion:
        """A model step cannot sample from ids alone.

        Raises:
            EngineError: always.
        """
        raise EngineError(
            f"{self._name} samples from messages, not from token ids.",
            fix="Put it behind a gateway, or give the trainer a token step (TokenStepEngine), which can be probed.",
            retryable=False,
        )

    async def generate_from_messages(
        self,
        prompt_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        *,
        request_id: str,  # noqa: ARG002
        session_id: str = "",  # noqa: ARG002
    ) -> Completion:
        """Let the trainer render and sample; the completion says which prompt it sampled behind.

        Raises:
            ContextOverflow: the prompt leaves no room.
            EngineError: the step raised, or returned no ids.
            MissingDependency: there are tools and OpenEnv is not installed.
        """
        result, version = await self._run(
            prompt_ids,
            self._step,
            [openenv_message(message, decode_arguments=self._decode) for message in messages],
            _openenv_tools(tools),
            step_sampling(sampling),
        )
        seen = _list(getattr(result, "prompt_ids", None), "prompt ids")
        return self._completion(
            getattr(result, "completion_ids", None), getattr(result, "logprobs", None), sampling, version, seen
        )


def step_sampling(sampling: Sampling) -> dict[str, Any]:
    """Sampling of a call as a step gets it: every knob by name, filters at values that are none."""
    return {
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "stop_token_ids": list(sampling.stop_token_ids),
    }


def openenv_message(message: Message, *, decode_arguments: bool = False) -> dict[str, Any]:
    """A message in the form of OpenEnv's harness loop (``LLMResponse.to_message_dict``, ``MCPHarnessAdapter``).

    ``decode_arguments`` makes objects of arguments that are JSON objects; others stay text.
    """
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": _decoded(call.arguments) if decode_arguments else call.arguments,
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        made["tool_call_id"] = message.tool_call_id
    if message.name:
        made["name"] = message.name
    return made


def _decoded(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _openenv_tools(tools: Sequence[ToolSpec]) -> list[Any]:
    if not tools:
        return []
    try:
        from openenv.core.env_server.mcp_types import Tool
    except ImportError as error:
        raise MissingDependency(
            f"a model step gets its tools as OpenEnv objects ({error}).",
            fix="Install it with: pip install 'drivetrain[openenv]'",
        ) from error
    return [Tool(name=tool.name, description=tool.description, input_schema=tool.parameters) for tool in tools]


def _finish(sampled: Sequence[int], sampling: Sampling) -> EngineFinish:
    """A step does not say why it ended: with a stop token or before its limit it ended by itself."""
    if sampled[-1] in sampling.stop_token_ids or len(sampled) < sampling.max_tokens:
        return "stop"
    return "length"


def _list(values: Any, what: str) -> list[Any]:
    """A list of what a step returned, which may be an array; None is none."""
    if values is None:
        return []
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise EngineMalformed(
            f"the step's {what} are a {type(values).__name__}.", fix="Return a list.", retryable=False
        )
    return list(values)


def _is_async(step: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(step) or inspect.iscoroutinefunction(getattr(step, "__call__", None))  # noqa: B004
