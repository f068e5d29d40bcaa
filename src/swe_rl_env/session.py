"""The environment for agents that own their loop (OpenEnv RFC 005): one ``ResourceSession`` per rollout.

    with SWESessionFactory() as factory:
        session = factory.create("pypi__xmltodict-0.14.2")
        CLIAgentAdapter("claude-code", model=..., context_length=...).run_white_box(step, session)
        print(session.verify([]).env_reward)
        session.close()

A session works in one of two places. An adapter that brings the agent's sandbox
(:class:`drivetrain.rollout.openenv.WorksInSandbox`) has the task checked out there, and the tools act in that sandbox,
beside the agent; for any other, the first tool call opens a sandbox of the session's own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal

from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import ResourceSession, ResourceSessionFactory, ToolResult, VerifyResult

from drivetrain.errors import ConfigError, InfrastructureError
from drivetrain.sandboxes.protocol import Limits, SandboxBackend, SandboxHandle, SandboxSpec
from swe_rl_env.building.build import BuiltTask
from swe_rl_env.errors import PatchRejected
from swe_rl_env.grading.grade import Grade, rejected, with_findings
from swe_rl_env.grading.run import grade
from swe_rl_env.models import Status, SWEAction
from swe_rl_env.server.catalogue import ResetOptions
from swe_rl_env.server.episode import Episode, verdict
from swe_rl_env.server.errors import EpisodeError
from swe_rl_env.server.host import Host
from swe_rl_env.server.perform import Bounds, Outcome, perform
from swe_rl_env.server.settings import Settings
from swe_rl_env.server.toolbox import TOOLS, action_of, text_of
from swe_rl_env.tasks.catalog import prompt_for
from swe_rl_env.tasks.model import SweTask
from swe_rl_env.work.patch import CollectedPatch, collect
from swe_rl_env.work.workspace import Workspace, check_out, workspace_spec

_log = logging.getLogger(__name__)
_OVER = "The episode is over; nothing can be done any more."


class SWESessionFactory(ResourceSessionFactory):  # type: ignore[misc]  # openenv ships no types
    """Makes sessions, from any thread; a context manager that closes what is left of them.

    Args:
        settings: source of tasks, limits, and the sandbox of graders and of sessions that open their own.
        backend: instead of the one that ``settings`` names, see :class:`~swe_rl_env.server.host.Host`.
        tasks: instead of those that ``settings`` names.
        tools: offer the environment's tools; without them an agent has only its own.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        backend: SandboxBackend | None = None,
        tasks: Sequence[SweTask] | None = None,
        tools: bool = True,
    ) -> None:
        self.host = Host(settings, backend=backend, tasks=tasks)
        self._tools = tools

    def create(self, task: Any = None, seed: int | None = None, episode_id: str | None = None) -> SWESession:
        """A session for one rollout.

        Args:
            task: a task id; a mapping (a row of a data set) with ``task``, ``instance_id`` or ``task_id``; a prompt,
                one of whose messages has the key ``task_id``; a task; or None, then ``seed`` chooses.

        Raises:
            EpisodeError: an unknown task, or one that cannot be built.
        """
        host = self.host
        if not isinstance(task, SweTask | BuiltTask):
            task = host.catalogue.choose(_options(task, seed, episode_id))
        found = task
        built = found if isinstance(found, BuiltTask) else host.run(lambda: host.built(found))
        return SWESession(host, built, episode_id=episode_id, tools=self._tools)

    def close(self) -> None:
        """Close every session's sandbox, then the backend; idempotent."""
        self.host.close()

    def __enter__(self) -> SWESessionFactory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SWESession(ResourceSession):  # type: ignore[misc]  # openenv ships no types
    """One rollout; made by :class:`SWESessionFactory`. Tools may be called from any thread, one call at a time."""

    tools_optional = True
    """An agent that speaks no MCP works in the same sandbox with tools of its own."""

    def __init__(self, host: Host, built: BuiltTask, *, episode_id: str | None, tools: bool) -> None:
        self._host = host
        self._built = built
        self._id = episode_id
        self._tools = TOOLS if tools else ()
        self._turn = threading.Lock()
        self._over = False
        self._submitted = False
        self._own: Episode | None = None
        self._lent: _Lent | None = None
        self._result: VerifyResult | None = None

    # -- ResourceSession -----------------------------------------------------------------------------------------

    def initial_messages(self) -> list[dict[str, Any]]:
        """The task as one message of the user."""
        return [{"role": "user", "content": prompt_for(self._built.task)}]

    def list_tools(self) -> list[Tool]:
        """bash, read, write, apply_patch, submit."""
        return list(self._tools)

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool. Never raises for what a model may do wrong: ``data`` is what it should read."""
        with self._turn:
            if self._over:
                return _result(_OVER, done=True, error=_OVER)
            try:
                action = action_of(name, arguments)
            except EpisodeError as error:
                return _result(str(error), error=str(error))
            if action.type == "submit":
                self._over = self._submitted = True
                return _result("Submitted. The work is graded as it is now.", done=True)
            try:
                return self._lent_step(self._lent, action) if self._lent is not None else self._own_step(action)
            except (InfrastructureError, EpisodeError) as error:
                _log.warning("a tool call failed: %s", error)
                self._over = True
                said = f"The machinery failed ({type(error).__name__})."
                return _result(said, done=True, error=said)

    def verify(self, transcript: list[dict[str, Any]], final_state: Any | None = None) -> VerifyResult:
        """Grade the work, once, in a sealed sandbox. ``env_reward`` is None when that failed, which is no zero:
        ``metrics["status"]`` then is ``infra_error`` or ``unscorable``."""
        del transcript
        with self._turn:
            if self._result is None:
                self._over = True
                stopped = isinstance(final_state, Mapping) and final_state.get("done") is False
                self._result = self._verify("truncated" if stopped and not self._submitted else "ok")
            return self._result

    def close(self) -> None:
        """Close the session's own sandbox; idempotent."""
        self._over = True
        own = self._own
        if own is not None and not own.closed:
            self._host.run(lambda: self._host.drop(own))

    # -- drivetrain.rollout.openenv.WorksInSandbox -------------------------------------------------------------------

    def sandbox_spec(self) -> SandboxSpec:
        """What the agent's sandbox must have."""
        return workspace_spec(self._built, image=self._host.settings.image, limits=Limits(), labels={"role": "agent"})

    async def enter(self, sandbox: SandboxHandle) -> str:
        """Check the task out; from now on the tools act here.

        Raises:
            ConfigError: the session has a sandbox already.
            BuildError, SandboxError: the checkout failed.
        """
        if self._lent is not None or self._own is not None:
            raise ConfigError("A session is for one rollout, and this one has begun.", fix="Create another.")
        workspace = await check_out(sandbox, self._built, self.sandbox_spec())
        self._lent = _Lent(workspace, asyncio.get_running_loop())
        return workspace.repo

    async def leave(self, sandbox: SandboxHandle) -> None:
        """Take the work out of the sandbox.

        Raises:
            SandboxError: it failed.
        """
        del sandbox
        assert self._lent is not None
        self._over = True
        try:
            self._lent.taken = await collect(self._lent.workspace, self._built)
        except PatchRejected as error:
            self._lent.taken = error

    # -- the two places ---------------------------------------------------------------------------------------------

    def _own_step(self, action: SWEAction) -> ToolResult:
        host = self._host
        if self._own is None:
            self._own = host.run(lambda: host.open(self._built, self._id))
        own = self._own
        seen = host.run(lambda: host.step(own, action))
        self._over = seen.done
        outcome = Outcome(**{field: getattr(seen, field) for field in Outcome.__struct_fields__})
        return _result(text_of(outcome), done=seen.done, error=outcome.error or None)

    def _lent_step(self, lent: _Lent, action: SWEAction) -> ToolResult:
        settings = self._host.settings
        lent.steps += 1
        if lent.steps > settings.max_steps:
            self._over = True
            return _result(_OVER, done=True, error=_OVER)
        bounds = Bounds(
            command_timeout_s=settings.command_timeout_s,
            output_bytes=settings.output_bytes,
            file_bytes=settings.file_bytes,
        )
        outcome = lent.run(perform(lent.workspace, action, bounds))
        return _result(text_of(outcome), error=outcome.error or None)

    def _verify(self, status: Status) -> VerifyResult:
        graded: Grade | None = None
        patch = b""
        try:
            if self._own is not None:
                status, patch, graded = self._grade_own(self._own, status)
            else:
                patch, graded = self._grade_taken()
        except Exception as error:  # a defect in one grading must not look like a verdict, or end the others
            _log.exception("%s could not be graded: %s", self._built.task.instance_id, error)
        if graded is None:
            status = "infra_error"
        elif graded.outcome == "error":
            status = "unscorable"
        return VerifyResult(
            env_reward=graded.reward if graded is not None else None,
            done=True,
            metrics={"status": status, **(verdict(graded) if graded is not None else {})},
            artifacts={"task": self._built.task.instance_id, "patch": patch.decode("utf-8", "replace")},
        )

    def _grade_own(self, own: Episode, status: Status) -> tuple[Status, bytes, Grade | None]:
        if not own.done:
            ending: Literal["ok", "truncated"] = "truncated" if status == "truncated" else "ok"
            self._host.run(lambda: self._host.finish(own, ending))
        return own.status, own.patch, own.grade

    def _grade_taken(self) -> tuple[bytes, Grade | None]:
        taken = self._lent.taken if self._lent is not None else CollectedPatch(patch=b"", left_out=())
        if taken is None:  # the agent's run failed, and nothing was collected
            return b"", None
        if isinstance(taken, PatchRejected):
            return b"", rejected(self._built, taken)
        settings, host = self._host.settings, self._host
        graded = host.run(
            lambda: grade(
                self._built,
                taken.patch,
                host.backend,
                timeout_s=settings.grading_timeout_s,
                labels={"role": "grader"},
                image=settings.image,
            )
        )
        return taken.patch, with_findings(graded, taken.findings)


class _Lent:
    """The agent's sandbox, which belongs to an adapter and its loop, and what was taken out of it."""

    def __init__(self, workspace: Workspace, loop: asyncio.AbstractEventLoop) -> None:
        self.workspace = workspace
        self.steps = 0
        self.taken: CollectedPatch | PatchRejected | None = None
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Wait, on another thread than the loop's."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _result(text: str, *, done: bool = False, error: str | None = None) -> ToolResult:
    """``data`` has the text also of an error: OpenEnv's own loop shows a model nothing else."""
    return ToolResult(data=text, done=done, error=error)


def _options(task: Any, seed: int | None, episode_id: str | None) -> ResetOptions:
    if isinstance(task, Sequence) and not isinstance(task, str):
        named = [m["task_id"] for m in task if isinstance(m, Mapping) and m.get("task_id")]
        task = named[-1] if named else ""
    if isinstance(task, Mapping):
        given = {name: task[name] for name in ("task", "instance_id", "task_id") if task.get(name)}
        task = ResetOptions.of(**given).id or ""
    if task == "":
        raise EpisodeError(
            "bad_request",
            "The prompt or row names no task.",
            fix='Give it, or one of its messages, the key "task_id".',
        )
    return ResetOptions.of(task=task, seed=seed, episode_id=episode_id)
