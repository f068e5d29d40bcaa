"""``CLIAgentAdapter``: OpenEnv's ``CLIHarnessAdapter`` with a real agent in a sandbox behind both of its methods.

``run_white_box`` is RFC 005's seam made real: the trainer's ``ModelStep`` samples every turn of an unmodified agent,
which reaches it through a gateway of this rollout's own, so that what comes back is a token-faithful trace.
``run_black_box`` runs the same agent against any OpenAI-compatible endpoint and intercepts nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
from openenv.core.harness import (
    CLIHarnessAdapter,
    HarnessRunLimits,
    ModelStep,
    ResourceSession,
)

from drivetrain.engines.model_step import ModelStepEngine
from drivetrain.engines.models import ModelDir, resolve_model
from drivetrain.errors import ConfigError
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.mcp import PATH as MCP
from drivetrain.gateway.model import load_codec
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.server import GatewayServer
from drivetrain.rollout.openenv.result import (
    CLIRolloutResult,
    HarnessRunFailed,
    recorded_result,
    refuse_failure,
    unrecorded_result,
)
from drivetrain.rollout.openenv.steps import CallerSteps
from drivetrain.rollout.openenv.tools import SessionTools, serve_tools
from drivetrain.rollout.patience import patience_of
from drivetrain.rollout.socket_folder import socket_folder
from drivetrain.sandboxes.protocol import Limits, Mount, NetworkPolicy, SandboxBackend, SandboxHandle, SandboxSpec
from drivetrain.sandboxes.registry import get_backend
from swe_rl_agent.harness import CLIHarness
from swe_rl_agent.plan import ToolsEndpoint
from swe_rl_agent.registry import get_agent

_SAMPLING = frozenset({"temperature", "max_tokens", "seed"})
_CLOSING_S = 120.0


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A model server for black-box runs, as the sandbox sees it: ``base_url`` without trailing slash and ``/v1``."""

    base_url: str
    api_key: str
    model: str
    context_length: int


@runtime_checkable
class WorksInSandbox(Protocol):
    """What a ``ResourceSession`` offers besides when the agent's work is files: its sandbox, and what goes in and out.

    A session whose attribute ``tools_optional`` is true can do without its tools: an agent that speaks no MCP then
    works in the sandbox with its own.

    The agent runs in a sandbox made from :meth:`sandbox_spec` (the adapter adds the agent's bundle, the network and the
    deadline). ``verify`` must not read the reward from it: collect the work in :meth:`leave`, grade it elsewhere.
    """

    def sandbox_spec(self) -> SandboxSpec:
        """Image, mounts, workdir, environment and limits."""

    async def enter(self, sandbox: SandboxHandle) -> str:
        """Put the task's files in; returns the agent's working directory."""

    async def leave(self, sandbox: SandboxHandle) -> None:
        """Take the work out; called once, after the agent has ended and before the sandbox is closed."""


class CLIAgentAdapter(CLIHarnessAdapter):  # type: ignore[misc]  # openenv ships no types
    """One agent, any number of rollouts, one after the other or from several threads.

    Args:
        agent: a harness, or its name (``drivetrain agents ls``).
        model: white box: directory or name of the model whose tokenizer and chat template the trainer samples with.
        context_length: white box: largest prompt + completion of the trainer's sampler, in tokens.
        endpoint: black box: where the agent calls its model.
        sandbox: a backend, or its name.
        deadline_s: wall time of the agent, seconds.
        max_tokens: tokens of one answer; ``limits.sampling["max_tokens"]`` goes over it.
        decode_arguments: see :class:`~drivetrain.engines.model_step.ModelStepEngine`.
    """

    def __init__(
        self,
        agent: CLIHarness | str,
        *,
        model: ModelDir | str | None = None,
        context_length: int | None = None,
        endpoint: Endpoint | None = None,
        sandbox: SandboxBackend | str = "local",
        deadline_s: float = 1800.0,
        max_tokens: int = 1024,
        decode_arguments: bool = False,
    ) -> None:
        super().__init__(runner=lambda _bridge, session, limits: self._black_box(session, limits))
        self._harness = get_agent(agent) if isinstance(agent, str) else agent
        self._model = resolve_model(model) if isinstance(model, str) else model
        self._context = context_length
        self._endpoint = endpoint
        self._sandbox = sandbox
        self._deadline_s = deadline_s
        self._max_tokens = max_tokens
        self._decode = decode_arguments

    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> CLIRolloutResult:
        """Run the agent while ``model_step`` samples, on the calling thread, one step at a time.

        ``limits.max_turns`` model calls are served, then the agent is told to stop; ``max_total_tool_calls`` counts the
        environment's tools (the agent's own are its own affair). ``limits.sampling`` may set ``temperature``,
        ``max_tokens`` and ``seed``.

        Raises:
            ConfigError: no model was given, sampling that would take tokens off the trained distribution, tools for an
                agent that speaks no MCP.
            HarnessRunFailed: the agent crashed or its model calls failed (infrastructure, never a reward of zero).
            SandboxError: the sandbox failed.
        """
        if self._model is None or self._context is None:
            raise ConfigError(
                "A white-box run needs the trainer's tokenizer and context length.",
                fix="Give CLIAgentAdapter model=... and context_length=...",
            )
        self._harness.prepare()
        steps = CallerSteps(model_step)
        model, context = self._model, self._context
        limits = limits or HarnessRunLimits()
        return steps.run(lambda: self._white_box(steps, model, context, session, limits))

    async def _white_box(
        self, steps: CallerSteps, model: ModelDir, context: int, session: ResourceSession, limits: HarnessRunLimits
    ) -> CLIRolloutResult:
        sampling = self._sampling(limits)
        engine = ModelStepEngine(steps, context_length=context, decode_arguments=self._decode)
        host = SessionTools(session, limits, offer=self._offers(session))
        async with AsyncExitStack() as stack:
            journal = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drivetrain-")))
            gateway = Gateway(engine, load_codec(model), journal / "journal.sqlite", model=model.name)
            server = GatewayServer(gateway)
            stack.push_async_callback(engine.aclose)
            stack.push_async_callback(server.aclose)
            socket = stack.enter_context(socket_folder()) / "gateway.sock"
            await server.listen_unix(socket)
            recorded, key = await gateway.open_session(self._policy(model.name, sampling, limits))
            recorded.tool_host = host if len(host) else None
            sandbox, cwd = await self._box(stack, session, "gateway", socket)
            outcome = await self._harness.run(
                sandbox,
                task=_task(session),
                base_url=sandbox.gateway_url(),
                api_key=key,
                model=model.name,
                context_length=context,
                cwd=cwd,
                deadline_s=self._deadline_s,
                max_output_tokens=sampling["max_tokens"],
                max_turns=limits.max_turns,
                tools=ToolsEndpoint(f"{sandbox.gateway_url()}{MCP}", key) if len(host) else None,
            )
            await gateway.seal_session(recorded.id)
            result = recorded_result(recorded, outcome, host, self._harness)
            if steps.error is not None:
                raise HarnessRunFailed(f"The model step raised: {steps.error}.", result) from steps.error
            refuse_failure(outcome, result)
            if isinstance(session, WorksInSandbox):
                await session.leave(sandbox)
        return result

    def _black_box(self, session: ResourceSession, limits: HarnessRunLimits) -> CLIRolloutResult:
        """What :meth:`run_black_box` (OpenEnv's) runs.

        Raises:
            ConfigError: no endpoint was given, or tools for an agent that speaks no MCP.
            HarnessRunFailed: the agent crashed or its model calls failed.
            SandboxError: the sandbox failed.
        """
        if self._endpoint is None:
            raise ConfigError("A black-box run needs a model endpoint.", fix="Give CLIAgentAdapter endpoint=...")
        self._harness.prepare()
        endpoint = self._endpoint

        def no_step(*_: Any) -> None:
            raise AssertionError("a black-box run samples nothing")

        return CallerSteps(no_step).run(lambda: self._against(endpoint, session, limits))

    async def _against(
        self, endpoint: Endpoint, session: ResourceSession, limits: HarnessRunLimits
    ) -> CLIRolloutResult:
        sampling = self._sampling(limits)
        host = SessionTools(session, limits, offer=self._offers(session))
        async with AsyncExitStack() as stack:
            sandbox, cwd = await self._box(stack, session, "open", None)
            tools = await stack.enter_async_context(serve_tools(host)) if len(host) else None
            outcome = await self._harness.run(
                sandbox,
                task=_task(session),
                base_url=endpoint.base_url,
                api_key=endpoint.api_key,
                model=endpoint.model,
                context_length=endpoint.context_length,
                cwd=cwd,
                deadline_s=self._deadline_s,
                max_output_tokens=sampling["max_tokens"],
                max_turns=limits.max_turns,
                tools=tools,
            )
            result = unrecorded_result(session.initial_messages(), outcome, host)
            refuse_failure(outcome, result)
            if isinstance(session, WorksInSandbox):
                await session.leave(sandbox)
        return result

    def _offers(self, session: ResourceSession) -> bool:
        return self._harness.preset.tools is not None or not getattr(session, "tools_optional", False)

    async def _box(
        self, stack: AsyncExitStack, session: ResourceSession, network: NetworkPolicy, socket: Path | None
    ) -> tuple[SandboxHandle, str]:
        backend = get_backend(self._sandbox) if isinstance(self._sandbox, str) else self._sandbox
        if isinstance(self._sandbox, str):
            stack.push_async_callback(backend.aclose)
        spec = session.sandbox_spec() if isinstance(session, WorksInSandbox) else SandboxSpec()
        mounts: tuple[Mount, ...] = (*spec.mounts, *self._harness.mounts())
        limits: Limits = msgspec.structs.replace(spec.limits, ttl_s=self._deadline_s + _CLOSING_S)
        sandbox = await backend.create(
            msgspec.structs.replace(spec, mounts=mounts, network=network, gateway_socket=socket, limits=limits)
        )
        stack.push_async_callback(sandbox.close)
        cwd = await session.enter(sandbox) if isinstance(session, WorksInSandbox) else sandbox.workdir
        return sandbox, cwd

    def _sampling(self, limits: HarnessRunLimits) -> dict[str, Any]:
        wrong = sorted(set(limits.sampling) - _SAMPLING)
        if wrong:
            raise ConfigError(
                f"limits.sampling sets {', '.join(wrong)}.",
                fix="Only temperature, max_tokens and seed may be set: what is trained is the whole distribution.",
            )
        return {"temperature": 1.0, "seed": None, "max_tokens": self._max_tokens, **limits.sampling}

    def _policy(self, model: str, sampling: Mapping[str, Any], limits: HarnessRunLimits) -> SessionPolicy:
        return SessionPolicy(
            model=model,
            temperature=sampling["temperature"],
            seed=sampling["seed"],
            max_turns=limits.max_turns,
            max_tokens_per_turn=sampling["max_tokens"],
            patience=patience_of(self._harness.preset),
        )


def _task(session: ResourceSession) -> str:
    """The agent's request: the texts of the initial messages. The agent brings a system prompt of its own.

    Raises:
        ConfigError: a message that is no text of the system or the user.
    """
    texts: list[str] = []
    for message in session.initial_messages():
        content = message.get("content")
        if message.get("role") not in ("system", "user") or not isinstance(content, str):
            raise ConfigError(
                "An agent takes its task as text, and the session begins with another kind of message.",
                fix="Let initial_messages() return system and user messages with string content.",
            )
        texts.append(content)
    return "\n\n".join(text for text in texts if text)
