"""Agents without a sandbox: coroutines that call a real gateway as harnesses do, in an ``EpisodeRunner``'s place."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from drivetrain.engines.models import ModelDir
from drivetrain.engines.protocol import Engine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.gateway.sessions import Session
from drivetrain.messages import Call, Message, ToolSpec
from drivetrain.rollout.config import EpisodeSpec, RolloutConfig
from drivetrain.rollout.mask_guard import MaskGuard
from drivetrain.rollout.result import RolloutResult, RolloutStatus
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.tokens.codec import TokenCodec

TOOLS: tuple[ToolSpec, ...] = (ToolSpec("bash"),)


class Outcome:
    """How an episode ended; a reward of None is no grade."""

    def __init__(
        self, reward: float | None = 1.0, status: RolloutStatus = "ok", error: str = "", stop: str = "completed"
    ) -> None:
        self.reward, self.status, self.error, self.stop = reward, status, error, stop


class Client:
    """One session's calls; they offer ``tools``."""

    def __init__(self, gateway: Gateway, session: Session) -> None:
        self.tools = TOOLS
        self._gateway = gateway
        self._session = session
        self._numbers = itertools.count()

    async def ask(self, history: list[Message]) -> Message:
        """The reply to a conversation, delivered."""
        call = Call("test", "policy", tuple(history), self.tools)
        served = await self._gateway.serve(self._session, call, str(next(self._numbers)).encode())
        await self._gateway.delivered(self._session, served)
        return served.reply.as_message()

    async def talk(self, history: list[Message], turns: int, pause_s: float = 0.0) -> list[Message]:
        """So many more turns of a conversation."""
        for _ in range(turns):
            history = [*history, await self.ask(history)]
            await asyncio.sleep(pause_s)
            history = [*history, Message("user", f"Go on, {len(history)}.")]
        return history


Agent = Callable[[Client, EpisodeSpec], Awaitable[Outcome]]


def opening(name: str) -> list[Message]:
    """A conversation's first request."""
    return [Message("system", f"You are {name}."), Message("user", f"Do the work of {name}.")]


async def plain(client: Client, spec: EpisodeSpec) -> Outcome:
    """Three turns; every second copy succeeds."""
    await client.talk(opening("an agent"), 3)
    return Outcome(float(spec.group % 2))


async def forking(client: Client, spec: EpisodeSpec) -> Outcome:
    """Two conversations interleaved (A B A B A), then A goes back to its first turn and takes another way."""
    a, b = opening("agent A"), opening("agent B")
    a = await client.talk(a, 1)
    early = a
    b = await client.talk(b, 1)
    a = await client.talk(a, 1)
    b = await client.talk(b, 1)
    await client.talk(a, 1)
    await client.talk([*early[:-1], Message("user", "Forget that. Start again.")], 2)
    return Outcome(float(spec.group % 2))


async def timed_out(client: Client, spec: EpisodeSpec) -> Outcome:
    """The deadline ends it; the work is graded."""
    await client.talk(opening("a slow agent"), 2)
    return Outcome(float(spec.group % 2), "truncated", stop="deadline")


async def crashing(client: Client, spec: EpisodeSpec) -> Outcome:
    """A defect of ours."""
    await client.talk(opening("an agent"), 1)
    raise ValueError("a defect in the runner")


async def lost(client: Client, spec: EpisodeSpec) -> Outcome:
    """The sandbox vanished."""
    await client.talk(opening("an agent"), 1)
    return Outcome(None, "infra_error", "the sandbox is gone", stop="crashed")


async def ungradable(client: Client, spec: EpisodeSpec) -> Outcome:
    """The grader failed."""
    await client.talk(opening("an agent"), 2)
    return Outcome(None, "unscorable", "the tests could not be run")


async def silent(client: Client, spec: EpisodeSpec) -> Outcome:
    """An agent that never calls its model, and is graded."""
    return Outcome(0.0)


class ScriptedRunner:
    """``EpisodeRunner``'s shape: ``agents`` by task id."""

    def __init__(self, gateway: Gateway, run: RunDir, config: RolloutConfig, agents: Mapping[str, Agent]) -> None:
        self.gateway = gateway
        self.guard = MaskGuard(config.max_masked_fraction)
        self._run = run
        self._config = config
        self._agents = agents
        self.running = 0

    async def run(self, spec: EpisodeSpec) -> RolloutResult:
        """One episode."""
        policy = SessionPolicy(
            model="policy",
            temperature=self._config.temperature,
            max_tokens_per_turn=self._config.max_tokens,
            seed=spec.seed,
        )
        session, _ = await self.gateway.open_session(policy, labels={"rollout": spec.rollout_id})
        self.running += 1
        try:
            outcome = await self._agents[spec.task_id](Client(self.gateway, session), spec)
        finally:
            await self.gateway.seal_session(session.id)
            self.running -= 1
        rows = Selection().rows(session.graph, spec.agent, reward=outcome.reward, session_id=session.id)
        result = RolloutResult(
            rollout_id=spec.rollout_id,
            session_id=session.id,
            task_id=spec.task_id,
            agent=spec.agent,
            group=spec.group,
            status=outcome.status,
            reward=outcome.reward,
            rows=rows,
            turns=len(session.graph),
            error=outcome.error,
            harness={"stop": outcome.stop, "exit_code": 0},
        )
        self._run.append(result)
        return result


def stack_of(codec: TokenCodec, agents: Mapping[str, Agent], runners: list[ScriptedRunner]) -> Any:
    """What stands in for ``open_stack``; the runners it made are added to ``runners``."""

    @asynccontextmanager
    async def open_stack(
        config: RolloutConfig, run: RunDir, tell: Any, *, engine: Engine, model: ModelDir, tasks: Any = None
    ) -> AsyncIterator[ScriptedRunner]:
        run.write_info({"model": None})
        gateway = Gateway(engine, codec, run.journal, model="policy")
        runners.append(ScriptedRunner(gateway, run, config, agents))
        try:
            yield runners[-1]
        finally:
            await gateway.aclose()

    return open_stack
