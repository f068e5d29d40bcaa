"""One rollout of an agent that owns its loop, as OpenEnv's ``TrainableSession`` (openenv 0.10, trl.md section 5.3)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

import msgspec
from openenv.core.harness import Message, ResourceSession, ToolResult, VerifyResult
from openenv.core.harness.training import TrainingTrace

from drivetrain.errors import InfrastructureError
from drivetrain.rollout.mask_guard import MaskedFractionExceeded
from drivetrain.rollout.result import RolloutResult

_log = logging.getLogger(__name__)
_GRADED = ("ok", "truncated")
_CLOSING_S = 10.0


class EpisodeProgress:
    """How far an episode is: ``started`` on its loop, ``ended`` with its clean-up; ``sessions`` are in the gateway."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.ended = threading.Event()
        self.sessions: list[str] = []


class Recorded(msgspec.Struct, frozen=True):
    """What an episode left: its result, its trace (empty where nothing of it may be trained), why nothing may, and why
    the whole run should stop."""

    result: RolloutResult
    trace: Any
    ungraded: str = ""
    stop: MaskedFractionExceeded | None = None


class RunStopped(ValueError):
    """So many sampled tokens are lost to faults that going on would train on what is left over (case row B7).

    A ``ValueError`` on purpose: it is the kind of error that TRL's worker, and so the run, ends with.
    """


class EpisodeUngraded(InfrastructureError):
    """The machinery failed, or the work could not be graded: the rollout has no reward, and is no zero."""


class AgentSession(ResourceSession):  # type: ignore[misc]  # openenv ships no types
    """A running episode: sandbox, agent, grading. Made by a factory; used from any thread.

    What a trainer calls, in order: :meth:`wait_for_completion`, :meth:`fetch_training_trace`, :meth:`verify`,
    :meth:`close`. Of these only the first raises for what happened to this rollout, and never an error that TRL takes
    for a broken contract (``ValueError``, ``TypeError``, ``KeyError``), which would stop its worker (case row E7).

    Args:
        prompt: the trainer's.
        episode: ends with what the episode left; cancelling it cancels the episode.
        progress: of the episode, also after it was cancelled.
        forget: called once, when the session is closed.
        about: names the episode, for :meth:`verify`.
    """

    def __init__(
        self,
        prompt: Any,
        episode: Future[Recorded],
        progress: EpisodeProgress,
        forget: Callable[[], None],
        about: Mapping[str, Any],
    ) -> None:
        self._prompt = prompt
        self._episode = episode
        self._progress = progress
        self._forget: Callable[[], None] | None = forget
        self._about = dict(about)
        self._closing = threading.Lock()

    def initial_messages(self) -> list[Message]:
        """The trainer's prompt. The agent gets the task's own statement."""
        if not isinstance(self._prompt, list):
            return [{"role": "user", "content": str(self._prompt)}]
        return [{"role": message["role"], "content": message["content"]} for message in self._prompt]

    def list_tools(self) -> list[Any]:
        """None: the agent brings its own and calls them itself."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:  # noqa: ARG002 (OpenEnv's names)
        """Always an error, see :meth:`list_tools`."""
        return ToolResult(error=f"there is no tool {name!r}: the agent of this session calls its own.")

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Wait until the agent has ended and its work is graded; the agent's exit code, 0 where there is none.

        Raises:
            TimeoutError: the deadline ended the agent (its work is graded and its turns are in the trace), or
                ``timeout_s`` passed (the episode goes on).
            EpisodeUngraded: nothing of this rollout may be trained or counted: TRL leaves it out of the baseline.
        """
        try:
            recorded = self._episode.result(timeout_s)
        except CancelledError:
            raise EpisodeUngraded("the session was closed before its episode ended.") from None
        if recorded.ungraded:
            raise EpisodeUngraded(f"rollout {recorded.result.rollout_id}: {recorded.ungraded}")
        if recorded.result.harness.get("stop") == "deadline":
            raise TimeoutError(f"rollout {recorded.result.rollout_id}: the agent's deadline passed.")
        return int(recorded.result.harness.get("exit_code") or 0)

    def fetch_training_trace(self) -> TrainingTrace:
        """The turns, each once, branch by branch, parents first; empty where nothing may be trained.

        Raises:
            RunStopped: faults cost more sampled tokens than the run allows (``max_masked_fraction``); over all its
                rollouts, never over one.
        """
        recorded = self._recorded()
        if recorded is not None and recorded.stop is not None:
            raise RunStopped(str(recorded.stop)) from recorded.stop
        return TrainingTrace(turns=[]) if recorded is None else recorded.trace

    def verify(
        self,
        transcript: list[Message],  # noqa: ARG002 (OpenEnv's names; the reward never comes from the agent's words)
        final_state: Any | None = None,  # noqa: ARG002
    ) -> VerifyResult:
        """What the tests said; ``env_reward`` is None for an ungraded rollout."""
        recorded = self._recorded()
        if recorded is None:
            return VerifyResult(env_reward=None, done=False, artifacts=dict(self._about))
        result = recorded.result
        return VerifyResult(
            env_reward=None if recorded.ungraded else result.reward,
            done=True,
            metrics={
                "status": result.status,
                "turns": result.turns,
                "rows": len(result.rows),
                "forks": dict(result.fork_reasons),
                "timings": dict(result.timings),
            },
            artifacts={**self._about, "session_id": result.session_id, "error": recorded.ungraded},
        )

    def close(self) -> None:
        """End the episode if it still runs and wait for its clean-up; idempotent, never raises."""
        self._episode.cancel()
        if self._progress.started.is_set() and not self._progress.ended.wait(_CLOSING_S):
            _log.warning("rollout %s: clean-up goes on in the background", self._about.get("rollout_id"))
        with self._closing:
            forget, self._forget = self._forget, None
        if forget is not None:
            try:
                forget()
            except Exception:
                _log.warning("rollout %s was not forgotten", self._about.get("rollout_id"), exc_info=True)

    def _recorded(self) -> Recorded | None:
        episode = self._episode
        sound = episode.done() and not episode.cancelled() and episode.exception() is None
        return episode.result() if sound else None


def why_ungraded(result: RolloutResult) -> str:
    """Why a rollout has no place in its group's baseline; empty when it has one (design invariant 8)."""
    if result.status not in _GRADED or result.reward is None:
        return f"{result.status}: {result.error or 'no reward'}"
    if not result.rows:
        return "no turn of it can be trained"
    return ""
